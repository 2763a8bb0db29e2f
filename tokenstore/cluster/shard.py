"""A shard at work: the ordinary store over its own directory, and what answers for it.

1. Operations of a batch run side by side, each through the store's own actors; one that fails is answered alone.
2. A batch is answered when all of it is done, or after `PATIENCE`: what is still going on (a lock that another process
   holds, a large rollout) is answered with a ticket, one for all of it, under which outcomes are asked for. So the
   trouble of one rollout delays nobody else for long.
3. Nothing is begun and nothing is acknowledged unless the fence still holds. A process that was superseded ends.
4. Whatever was begun is gone on with when its caller has gone.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio import to_thread

from tokenstore.cluster.claim import Claim, Fence, SupersededError, Unfenced, acquire
from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.identity import EXPECTED, Identity, identify
from tokenstore.cluster.operations import perform
from tokenstore.cluster.streams import Outbox
from tokenstore.cluster.values import ShardStatus
from tokenstore.cluster.wire import (
    Failure,
    Later,
    Lost,
    Operation,
    Outcome,
    Value,
    decode_operation,
    encode_outcome,
    pack,
    unpack,
)
from tokenstore.errors import ClusterMismatchError, StoreClosedError, TokenStoreError
from tokenstore.journal.disk import Directory, OsDisk
from tokenstore.store import TokenCaptureStore

logger = logging.getLogger("tokenstore")

PATIENCE = 0.25
"""Seconds that a batch waits for its slowest operation: many commits, far less than a lock that is held."""
WATCH_SECONDS = 0.5
"""Between two looks at the claim by a shard that nobody calls."""
FINISH_SECONDS = 20.0
"""For what is going on when a shard is closed: a lock that another process holds might not be free for longer."""
KEEP_SECONDS = 300.0
"""How long an outcome is kept that nobody asks for: its caller has gone."""

MakeFence = Callable[[Directory], Fence]
"""Makes the fence of a shard's directory."""


def end_process() -> None:
    """End this process at once: another one owns its shard."""
    logger.critical("another process has claimed this shard; this one ends")
    os._exit(3)


class _Work:
    """An operation that is going on, or done."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.done = anyio.Event()

    def finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.done.set()


class _Batch:
    """Operations that are answered together, as far as they are done."""

    def __init__(self, works: Sequence[_Work]) -> None:
        self.works = works
        self.ticket = secrets.token_hex(16)
        self.since = time.monotonic()

    @property
    def is_done(self) -> bool:
        return all(work.outcome is not None for work in self.works)

    async def first(self) -> None:
        """Wait until one of them is done."""
        async with anyio.create_task_group() as tasks:

            async def watch(work: _Work) -> None:
                await work.done.wait()
                tasks.cancel_scope.cancel()

            for work in self.works:
                tasks.start_soon(watch, work)

    async def rest(self) -> None:
        """Wait until all of them are done, or patience has ended."""
        with anyio.move_on_after(PATIENCE):
            for work in self.works:
                await work.done.wait()

    def answer(self) -> bytes:
        """Give the outcomes, a ticket for each that there is none of yet; those are what is left."""
        later = Later(self.ticket)
        encoded = pack([encode_outcome(work.outcome or later) for work in self.works])
        self.works = [work for work in self.works if work.outcome is None]
        return encoded


class Shard:
    """Answers batches with a store.

    Args:
        identity: What the directory says.
        store: The store over it, entered in the running loop.
        fence: Says whether this process may write.
        tasks: Where operations run.
        end: Ends the process when it may not.
    """

    def __init__(
        self,
        identity: Identity,
        store: TokenCaptureStore,
        fence: Fence,
        tasks: anyio.abc.TaskGroup,
        end: Callable[[], object],
    ) -> None:
        self.identity = identity
        self._store = store
        self._fence = fence
        self._tasks = tasks
        self._end = end
        self._outbox = Outbox()
        self._later: dict[str, _Batch] = {}
        self._batches = self._operations = 0
        self._going_on: set[_Work] = set()
        self._closed = False

    async def call(self, *pieces: bytes) -> bytes:
        """Do a batch of operations.

        Args:
            pieces: Of an encoded batch, as `wire.cut` makes them.

        Returns:
            An encoded batch of as many outcomes, in the same order.
        """
        blobs = unpack(b"".join(pieces))
        await self._require_fence()
        batch = _Batch([self._begin(blob) for blob in blobs])
        await batch.rest()
        await self._require_fence()
        self._batches += 1
        self._operations += len(batch.works)
        return self._answer(batch)

    async def wait(self, ticket: str) -> bytes:
        """Wait for what took longer.

        Returns:
            An encoded batch of the outcomes of all that had this ticket, in the same order; of one that is lost if
            there is no such ticket.
        """
        batch = self._later.get(ticket)
        if batch is None:
            return pack([encode_outcome(Lost())])
        await batch.first()
        await batch.rest()
        await self._require_fence()
        return self._answer(batch)

    def _answer(self, batch: _Batch) -> bytes:
        answer = batch.answer()
        if batch.works:
            self._later[batch.ticket] = batch
        else:
            self._later.pop(batch.ticket, None)
        return answer

    async def more(self, ticket: str, number: int) -> bytes:
        """Give a further part of a long answer, encoded."""
        try:
            return encode_outcome(Value(await self._outbox.more(ticket, number)))
        except LookupError:
            return encode_outcome(Lost())
        except Exception as error:  # noqa: BLE001 - it belongs to whoever reads
            return encode_outcome(Failure(error))

    def status(self, plan: ShardPlan, node: str) -> ShardStatus:
        """Tell how it is, from any thread."""
        return ShardStatus(
            index=plan.index,
            directory=plan.directory,
            pinned_to=plan.node,
            state="up",
            node=node,
            pid=os.getpid(),
            holder=self._fence.holder,
            batches=self._batches,
            operations=self._operations,
            statistics=self._store.statistics(),
        )

    async def finish(self) -> None:
        """Begin nothing more, and wait for what is going on, but not for ever."""
        self._closed = True
        with anyio.move_on_after(FINISH_SECONDS):
            for work in list(self._going_on):
                await work.done.wait()

    async def watch(self) -> None:
        """Look at the claim again and again, and forget what nobody asks for."""
        while True:
            await anyio.sleep(WATCH_SECONDS)
            await self._require_fence()
            before = time.monotonic() - KEEP_SECONDS
            self._outbox.forget(before)
            for ticket, batch in list(self._later.items()):
                if batch.since < before and batch.is_done:
                    del self._later[ticket]

    def _begin(self, blob: bytes) -> _Work:
        work = _Work()
        try:
            operation = decode_operation(blob)
        except TokenStoreError as error:
            work.finish(Failure(error))
        else:
            self._start(operation, work)
        return work

    def _start(self, operation: Operation, work: _Work) -> None:
        with suppress(RuntimeError):  # the group has ended since the call came
            if not self._closed:
                self._tasks.start_soon(self._run, operation, work)
                self._going_on.add(work)
                return
        work.finish(Failure(StoreClosedError("the shard was closed")))

    async def _run(self, operation: Operation, work: _Work) -> None:
        try:
            work.finish(Value(await perform(self._store, operation, self._outbox)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            work.finish(Failure(error))
        finally:
            if not work.done.is_set():
                work.finish(Failure(StoreClosedError("the shard was closed; the outcome of this call is unknown")))
            self._going_on.discard(work)

    async def _require_fence(self) -> None:
        """End this process if another has claimed the shard."""
        if self._fence.holder is not None and not await to_thread.run_sync(self._fence.holds):
            self._end()
            raise SupersededError


def fence_of(plan: ShardPlan, node: str) -> MakeFence:
    """The fence that a shard needs: a claim if it floats."""
    return (lambda directory: Claim(directory, node)) if plan.placement == "floating" else (lambda _: Unfenced())


@asynccontextmanager
async def opened(
    plan: ShardPlan,
    make_fence: MakeFence,
    *,
    create: bool = False,
    end: Callable[[], object] = end_process,
    waiting: Callable[[], object] = lambda: None,
) -> AsyncIterator[Shard]:
    """Open a shard in the running loop, and close it.

    Args:
        plan: The shard.
        make_fence: Makes its fence.
        create: Whether an empty directory becomes the shard's.
        end: Ends the process when another one has claimed the shard.
        waiting: Called if another process still holds the shard.

    Raises:
        ClusterMismatchError: The directory is another shard's, or not there.
        OSError: It cannot be opened.
        SupersededError: Another process claimed the shard at the same time.
    """
    directory = await to_thread.run_sync(partial(_open_directory, plan, create=create))
    try:
        identity = await to_thread.run_sync(partial(identify, directory, plan, create=create))
        fence = make_fence(directory)
        try:
            await acquire(fence, waiting)
            async with _serving(plan, identity, fence, end) as shard:
                yield shard
        finally:
            fence.release()
    finally:
        directory.close()


@asynccontextmanager
async def _serving(
    plan: ShardPlan, identity: Identity, fence: Fence, end: Callable[[], object]
) -> AsyncIterator[Shard]:
    store = await to_thread.run_sync(partial(TokenCaptureStore, plan.directory, config=plan.config))
    async with store, anyio.create_task_group() as tasks:
        shard = Shard(identity, store, fence, tasks, end)
        tasks.start_soon(shard.watch)
        yield shard
        await shard.finish()
        tasks.cancel_scope.cancel()


def _open_directory(plan: ShardPlan, *, create: bool) -> Any:
    path = Path(plan.directory)
    if not create and not path.is_dir():
        raise ClusterMismatchError(plan.directory, "the directory", found="not there", expected=EXPECTED)
    return OsDisk().open_root(path)
