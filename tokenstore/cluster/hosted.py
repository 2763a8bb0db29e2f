"""A shard in an event loop of its own, in a daemon thread: what an actor process holds.

The loop of the actor belongs to Ray; here the store has one that it is entered in, with a task group that outlives
every call. Calls of the actor cross over. If the loop dies, so does the process: Ray starts another one.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.abc

from tokenstore.cluster.claim import SupersededError
from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.shard import Shard, end_process, fence_of, opened
from tokenstore.cluster.values import ShardState, ShardStatus
from tokenstore.errors import StoreClosedError
from tokenstore.loop import Bell, Loop

T = TypeVar("T")
logger = logging.getLogger("tokenstore")

AGAIN_SECONDS = 1.0
"""After a failure to open, such as a disk that is not mounted yet, the next call so much later tries again."""


class _Serving:
    """An open shard, with the ways into its loop."""

    def __init__(self, shard: Shard, tasks: anyio.abc.TaskGroup) -> None:
        self.shard = shard
        self.loop = Loop()
        self._tasks = tasks
        self._guard = threading.Lock()
        self._inside: set[Callable[[], object]] = set()
        self._shut = False

    async def cross(self, function: Callable[[Shard], Awaitable[T]]) -> T:
        """Run a function in the shard's loop and await it from another."""
        done, here = Bell(), Loop()
        found: list[T] = []
        failed: list[Exception] = []

        def wake() -> None:
            here.call_soon(done.ring)

        async def run() -> None:
            try:
                found.append(await function(self.shard))
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                failed.append(error)
            finally:
                self._leave(wake)

        self._enter(wake, run)
        await done.wait()
        if failed:
            raise failed[0]
        if not found:
            raise StoreClosedError("the shard was closed; the outcome of this call is unknown")
        return found[0]

    def _enter(self, wake: Callable[[], object], run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with self._guard:
            if self._shut:
                raise StoreClosedError("the shard was closed")
            self._inside.add(wake)
        self.loop.call_soon(partial(self._start, wake, run))

    def _start(self, wake: Callable[[], object], run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self._tasks.start_soon(run)
        except RuntimeError:  # it was closed while this was on its way
            self._leave(wake)

    def _leave(self, wake: Callable[[], object]) -> None:
        with self._guard:
            self._inside.discard(wake)
        wake()

    def shut(self) -> None:
        """Let nobody in any more, and wake who is inside: the loop ends, and what was given to it may never run."""
        with self._guard:
            self._shut = True
            inside, self._inside = self._inside, set()
        for wake in inside:
            wake()


class Hosted:
    """Runs a shard, and tells how it is while it cannot run.

    Args:
        plan: The shard.
        node: Address of this node.
        end: Ends the process when another one has claimed the shard.
    """

    def __init__(self, plan: ShardPlan, node: str, *, end: Callable[[], object] = end_process) -> None:
        self.plan = plan
        self.node = node
        self._end = end
        self._guard = threading.Lock()
        self._state: ShardState = "failed"
        self._problem: Exception = StoreClosedError("the shard was never started")
        self._tried = 0.0
        self._serving: _Serving | None = None
        self._close: anyio.Event | None = None
        self._thread: threading.Thread | None = None
        self._waiting: list[Callable[[], object]] = []

    def start(self, *, create: bool = False) -> None:
        """Open the shard in its thread, unless it is open or being opened."""
        with self._guard:
            if self._state != "failed":
                return
            self._state, self._tried = "opening", time.monotonic()
            name = f"tokenstore-{self.plan.index}"
            self._thread = threading.Thread(target=partial(self._run, create), name=name, daemon=True)
            self._thread.start()

    async def ask(self, function: Callable[[Shard], Awaitable[T]]) -> T:
        """Run a function in the shard's loop, once it is open.

        Raises:
            ClusterMismatchError, OSError: It could not be opened.
        """
        serving = self._serving
        if serving is None:
            serving = await self._opened()
        return await serving.cross(function)

    async def prepare(self, *, create: bool) -> str:
        """Open the shard now, making its directory if that is wanted; give the word of the directory."""
        self.start(create=create)
        await self._settled()
        if create and self._serving is None:
            self.start(create=True)  # what it had failed at before was that there was none
        return (await self._opened()).shard.identity.word

    def status(self) -> ShardStatus:
        """Tell how the shard is, without waiting."""
        if self._serving is not None:
            return self._serving.shard.status(self.plan, self.node)
        return ShardStatus(
            index=self.plan.index,
            directory=self.plan.directory,
            pinned_to=self.plan.node,
            state=self._state,
            node=self.node,
            pid=os.getpid(),
            problem=str(self._problem) if self._state == "failed" else "",
        )

    async def close(self) -> None:
        """Finish what was accepted and close the store."""
        with self._guard:
            thread, serving, close = self._thread, self._serving, self._close
        if serving is not None and close is not None:
            serving.loop.call_soon(close.set)
        if thread is not None:
            await anyio.to_thread.run_sync(thread.join, 30.0)

    # ------------------------------------------------------------------------------------------ inside

    async def _opened(self) -> _Serving:
        if self._state == "failed" and time.monotonic() - self._tried > AGAIN_SECONDS:
            self.start()
        await self._settled()
        if self._serving is None:
            raise self._problem
        return self._serving

    async def _settled(self) -> None:
        """Wait until the shard is open or has failed."""
        done, here = Bell(), Loop()
        with self._guard:
            if self._state in ("up", "failed"):
                return
            self._waiting.append(lambda: here.call_soon(done.ring))
        await done.wait()

    def _run(self, create: bool) -> None:
        try:
            anyio.run(self._main, create)
        except SupersededError:
            self._end()
            self._turn("failed", None, StoreClosedError("another process has claimed the shard"))
        except Exception as error:
            if self._serving is not None:
                logger.critical("the loop of shard %d died; its process ends", self.plan.index, exc_info=error)
                self._end()
            self._turn("failed", None, error)
        else:
            self._turn("failed", None, StoreClosedError("the shard was closed"))

    async def _main(self, create: bool) -> None:
        make_fence = fence_of(self.plan, self.node)
        waiting = partial(self._turn, "waiting for the lock", None)
        try:
            async with (
                opened(self.plan, make_fence, create=create, end=self._end, waiting=waiting) as shard,
                anyio.create_task_group() as tasks,
            ):
                self._close = anyio.Event()
                self._turn("up", _Serving(shard, tasks))
                await self._close.wait()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            if self._serving is not None:
                self._serving.shut()

    def _turn(self, state: ShardState, serving: _Serving | None, problem: Exception | None = None) -> None:
        with self._guard:
            self._state, self._serving = state, serving
            self._problem = problem or self._problem
            waiting, self._waiting = (self._waiting, []) if state in ("up", "failed") else ([], self._waiting)
        for wake in waiting:
            wake()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
