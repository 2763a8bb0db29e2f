"""A shard in the event loop of its process: what an actor holds.

The shard lives in a task of its own, with a task group that outlives every call; calls of the same loop ask it. A loop
of its own in a thread would cost every batch two ways between threads, and the interpreter one more that wants it. If
that task dies, so does the process: Ray starts another one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import anyio

from tokenstore.cluster.claim import SupersededError
from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.shard import Shard, end_process, fence_of, opened
from tokenstore.cluster.values import ShardState, ShardStatus
from tokenstore.errors import StoreClosedError

T = TypeVar("T")
logger = logging.getLogger("tokenstore")

AGAIN_SECONDS = 1.0
"""After a failure to open, such as a disk that is not mounted yet, the next call so much later tries again."""

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Starts a task in the running loop that does not end with whoever starts it."""


class Hosted:
    """Runs a shard, and tells how it is while it cannot run. Used inside one event loop.

    Args:
        plan: The shard.
        node: Address of this node.
        spawn: Starts the shard's task.
        end: Ends the process when another one has claimed the shard.
    """

    def __init__(self, plan: ShardPlan, node: str, spawn: Spawn, *, end: Callable[[], object] = end_process) -> None:
        self.plan = plan
        self.node = node
        self._spawn = spawn
        self._end = end
        self._state: ShardState = "failed"
        self._problem: Exception = StoreClosedError("the shard was never started")
        self._tried = 0.0
        self._shard: Shard | None = None
        self._settled = anyio.Event()
        self._close = anyio.Event()
        self._over = anyio.Event()
        self._over.set()

    def start(self, *, create: bool = False) -> None:
        """Open the shard in its task, unless it is open or being opened."""
        if self._state == "failed" and self._over.is_set():
            self._state, self._tried = "opening", time.monotonic()
            self._settled, self._close, self._over = anyio.Event(), anyio.Event(), anyio.Event()
            self._spawn(partial(self._run, create))

    async def ask(self, function: Callable[[Shard], Awaitable[T]]) -> T:
        """Have the shard do something, once it is open.

        Raises:
            ClusterMismatchError, OSError: It could not be opened.
        """
        return await function(self._shard or await self._opened())

    async def prepare(self, *, create: bool) -> str:
        """Open the shard now, making its directory if that is wanted; give the word of the directory."""
        self.start(create=create)
        await self._settled.wait()
        if create and self._shard is None:
            self.start(create=True)  # what it had failed at before was that there was none
        return (await self._opened()).identity.word

    def status(self) -> ShardStatus:
        """Tell how the shard is, without waiting."""
        if self._shard is not None:
            return self._shard.status(self.plan, self.node)
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
        self._close.set()
        await self._over.wait()

    # ------------------------------------------------------------------------------------------ inside

    async def _opened(self) -> Shard:
        if self._state == "failed" and not self._close.is_set() and time.monotonic() - self._tried > AGAIN_SECONDS:
            self.start()
        await self._settled.wait()
        if self._shard is None:
            raise self._problem.with_traceback(None)  # else it would keep what the frames of each caller hold
        return self._shard

    async def _run(self, create: bool) -> None:
        try:
            await self._main(create)
        except SupersededError:
            self._end()
            self._turn("failed", problem=StoreClosedError("another process has claimed the shard"))
        except Exception as error:
            if self._shard is not None:
                logger.critical("shard %d died; its process ends", self.plan.index, exc_info=error)
                self._end()
            self._turn("failed", problem=error)
        else:
            self._turn("failed", problem=StoreClosedError("the shard was closed"))
        finally:
            self._over.set()

    async def _main(self, create: bool) -> None:
        waiting = partial(self._turn, "waiting for the lock")
        make_fence = fence_of(self.plan, self.node)
        try:
            async with opened(self.plan, make_fence, create=create, end=self._end, waiting=waiting) as shard:
                self._turn("up", shard)
                await self._close.wait()
        except BaseExceptionGroup as group:
            raise _first(group) from group

    def _turn(self, state: ShardState, shard: Shard | None = None, *, problem: Exception | None = None) -> None:
        self._state, self._shard = state, shard
        self._problem = problem or self._problem
        if state in ("up", "failed"):
            self._settled.set()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
