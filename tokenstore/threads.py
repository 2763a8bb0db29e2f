"""Where aiofiles meets anyio: every way from the event loop to the disk leads through here.

aiofiles asks asyncio for its loop, so under trio it fails unless it is given one, and of a loop it only uses
`run_in_executor`. `_WorkerThreads` has that method, on anyio's worker threads, so the same call runs under asyncio,
uvloop and trio. A call whose scope is cancelled waits for its thread, which a bare aiofiles call does not: nothing that
writes is left alone. asyncio's own cancellation does not wait; so only tasks of a host make such calls, which nobody
cancels in that way before their loop ends.

1. Critical sections run in lanes. A lane is a task that goes to a worker thread when there is a section to be run, and
   comes back when there is none: under load the thread takes the next section along instead of going back to the loop
   between, and those that end together are told to the loop together. One way there and back costs more than half of
   what a section itself costs, so a thread lingers a moment before it goes back: an agent that puts again at once finds
   it there. Lanes rest while there are actors, and end with the last one.
2. Reads have a limiter of their own. Many sections wait for the disk at once without holding the interpreter, while two
   readers already keep it busy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

import anyio
import anyio.abc
import anyio.to_thread
import attrs
from aiofiles.os import wrap

from tokenstore.loop import Bell, Bells
from tokenstore.waiting import is_own_thread, run_as_own

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COMMIT_THREADS = 16
"""Critical sections at once: enough syncs in flight for a disk to merge, few enough threads to wake."""
LINGER_SECONDS = 0.050
"""How long a thread waits for the next section before it goes back to the loop."""
READ_THREADS = 2
"""Readers parse while they hold the interpreter, so more would only stand in the way of the loop."""


class _WorkerThreads:
    """As much of an event loop as aiofiles uses."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._run = partial(run_as_own, stays=is_own_thread())

    async def run_in_executor(self, _executor: object, function: Callable[[], T]) -> T:
        return cast("T", await anyio.to_thread.run_sync(self._run, function, limiter=self._limiter))


def _apply(function: Callable[[], T]) -> T:
    return function()


_in_thread = wrap(_apply)


@attrs.define(eq=False)
class _Job:
    """A function on its way through a worker thread."""

    function: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    done: Bell = attrs.field(factory=Bell)

    def run(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the task that waits
            self.error = error


class _Jobs:
    """Sections that wait for a thread, and the threads that wait for a section."""

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._guard = threading.Lock()
        # Of each thread that waits, the lock it waits for. The last to come is called first: what it works with is
        # still in the processor's caches, and those that are too many go home.
        self._lingering: list[threading.Lock] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, job: _Job) -> bool:
        """Leave a section here; true if a thread was waiting for it."""
        with self._guard:
            self._jobs.append(job)
            return self._call()

    def take(self) -> _Job | None:
        """Take the next section, None if there is none."""
        with self._guard:
            return self._jobs.popleft() if self._jobs else None

    def linger(self) -> None:
        """In a thread: wait a moment for a section, or to be called."""
        call = threading.Lock()
        call.acquire()
        with self._guard:
            if self._jobs:
                return
            self._lingering.append(call)
        if not call.acquire(timeout=LINGER_SECONDS):
            with self._guard, suppress(ValueError):  # called just now; then there may be a section
                self._lingering.remove(call)

    def call_all(self) -> None:
        """Have all threads look what there is to do."""
        with self._guard:
            while self._call():
                pass

    def _call(self) -> bool:
        if not self._lingering:
            return False
        self._lingering.pop().release()
        return True


class Threads:
    """The worker threads of one host. Make it inside the host's event loop.

    Args:
        commits: Critical sections at once.
    """

    def __init__(self, commits: int = COMMIT_THREADS) -> None:
        self.limit = commits
        """Lanes at most."""
        self._commits = _WorkerThreads(anyio.CapacityLimiter(self.limit))
        self._reads = _WorkerThreads(anyio.CapacityLimiter(READ_THREADS))
        self._bells = Bells()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._lanes = 0
        self._kept = False
        self._resting: list[Bell] = []
        self._jobs = _Jobs()

    # ------------------------------------------------------------------------------------------ for callers

    async def commit(self, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a critical section in a lane. Shield it where somebody may cancel: it is never left half-way."""
        job = _Job(partial(function, *args) if args else function)
        if not self._jobs.put(job):
            self._rouse()
        await job.done.wait()
        if job.error is not None:
            raise job.error
        return cast("T", job.result)

    async def read(self, function: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        """Run a reading function in one of the two threads for readers."""
        return await self._run(self._reads, partial(function, *args))

    @staticmethod
    async def _run(threads: _WorkerThreads, function: Callable[[], T]) -> T:
        return cast("T", await _in_thread(function, loop=cast("Any", threads)))

    # ------------------------------------------------------------------------------------------ lanes

    def open(self, tasks: anyio.abc.TaskGroup) -> None:
        """Run lanes in a task group, which waits for them; sections that came before have waited for this."""
        self._tasks = tasks
        for _ in range(len(self._jobs)):
            self._rouse()

    def keep(self) -> None:
        """Let lanes rest where there is nothing to be done, since more will come soon."""
        self._kept = True

    def dismiss(self) -> None:
        """Let lanes end where there is nothing to be done."""
        self._kept = False
        self._jobs.call_all()
        while self._resting:
            self._resting.pop().ring()

    def _rouse(self) -> None:
        """Send a lane for the next section, unless all are on their way."""
        if self._resting:
            self._resting.pop().ring()
        elif self._tasks is not None and self._lanes < self.limit:
            self._lanes += 1
            self._tasks.start_soon(self._lane)

    async def _lane(self) -> None:
        # No await between the last look and the end: nobody can count on this lane and leave a section to it.
        while self._jobs or self._kept:
            if not self._jobs:
                bell = Bell()
                self._resting.append(bell)
                await bell.wait()
            elif not await self._went():
                break
        self._lanes -= 1

    async def _went(self) -> bool:
        """Go to a worker thread and come back; false if there is none to be had.

        The system may refuse another thread, and since Python 3.12 the interpreter does while it shuts down. Then the
        lanes that have a thread do all the work; without one, those who wait are told.
        """
        try:
            await self._run(self._commits, self._work)
        except RuntimeError as error:
            if self._lanes - len(self._resting) == 1:
                while job := self._jobs.take():
                    job.error = error
                    job.done.ring()
            return False
        return True

    def _work(self) -> None:
        """In a worker thread: run sections until none comes any more."""
        while self._jobs:
            while job := self._jobs.take():
                job.run()
                self._bells.ring(job.done)
            if self._kept:
                self._jobs.linger()
