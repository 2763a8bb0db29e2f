"""Where aiofiles meets anyio: every way from the event loop to the disk leads through here.

aiofiles asks asyncio for its loop, so under trio it fails unless it is given one, and of a loop it only uses
`run_in_executor`. `_WorkerThreads` has that method, on anyio's worker threads, so the same call runs under asyncio,
uvloop and trio. A call whose scope is cancelled waits for its thread, which a bare aiofiles call does not: nothing that
writes is left alone. asyncio's own cancellation does not wait; so only tasks of a host make such calls, which nobody
cancels in that way before their loop ends.

Commits and reads have limiters of their own. Many commits wait for the disk at once without holding the interpreter,
while two readers already keep it busy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

import anyio
import anyio.to_thread
from aiofiles.os import wrap

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COMMIT_THREADS = 16
"""Critical sections at once: enough syncs in flight for a disk to merge, few enough threads to wake."""
READ_THREADS = 2
"""Readers parse while they hold the interpreter, so more would only stand in the way of the loop."""


class _WorkerThreads:
    """As much of an event loop as aiofiles uses."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter

    async def run_in_executor(self, _executor: object, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._limiter)


def _apply(function: Callable[[], T]) -> T:
    return function()


_in_thread = wrap(_apply)


class Threads:
    """The worker threads of one host. Make it inside the host's event loop.

    Args:
        commits: Critical sections at once, fewer than usual where few files may be open.
    """

    def __init__(self, commits: int = COMMIT_THREADS) -> None:
        self._commits = _WorkerThreads(anyio.CapacityLimiter(min(commits, COMMIT_THREADS)))
        self._reads = _WorkerThreads(anyio.CapacityLimiter(READ_THREADS))

    async def commit(self, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a critical section in a worker thread. Cancelling waits for it: it is never left half-way."""
        return await self._run(self._commits, partial(function, *args))

    async def read(self, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a reading function in one of the two threads for readers."""
        return await self._run(self._reads, partial(function, *args))

    @staticmethod
    async def _run(threads: _WorkerThreads, function: Callable[[], T]) -> T:
        return cast("T", await _in_thread(function, loop=cast("Any", threads)))
