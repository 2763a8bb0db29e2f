"""The way from a loop to the disk: worker threads of a host, waited for and bounded."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.loops import ticks, until
from tokenstore.threads import COMMIT_THREADS, READ_THREADS, Threads

pytestmark = pytest.mark.anyio


class Room:
    """A place in which threads meet until they are let go."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self._free = threading.Event()
        self._guard = threading.Lock()

    def visit(self) -> None:
        """Come in, and stay."""
        with self._guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self._free.wait(20)
        with self._guard:
            self.inside -= 1

    def let_go(self) -> None:
        """Send everybody home."""
        self._free.set()


@asynccontextmanager
async def lanes(commits: int = COMMIT_THREADS) -> AsyncIterator[Threads]:
    """Threads whose lanes run in this loop, as those of a host do."""
    threads = Threads(commits)
    async with anyio.create_task_group() as tasks:
        threads.open(tasks)
        threads.keep()
        try:
            yield threads
        finally:
            threads.dismiss()


async def test_results_and_errors_come_back() -> None:
    """A function runs in another thread with its arguments; what it gives or raises comes back."""
    async with lanes() as threads:
        assert await threads.commit(divmod, 7, 2) == (3, 1)
        assert await threads.read(threading.get_ident) != threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await threads.commit(divmod, 1, 0)


async def test_readers_do_not_keep_threads_from_commits() -> None:
    """Commits and reads are bounded apart: readers that fill their two threads leave commits all of theirs."""
    readers, commits = Room(), Room()
    async with lanes() as threads, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(threads.read, readers.visit)
            tasks.start_soon(threads.commit, commits.visit)
        await until(lambda: readers.inside == READ_THREADS and commits.inside == COMMIT_THREADS)
        readers.let_go()
        commits.let_go()

    assert (readers.most, commits.most) == (READ_THREADS, COMMIT_THREADS)


async def test_a_thread_takes_the_next_section_along() -> None:
    """Sections that wait are run one after the other by the thread that is there, in the order in which they came."""
    room, seen = Room(), list[int]()
    async with lanes(1) as threads, anyio.create_task_group() as tasks:
        tasks.start_soon(threads.commit, room.visit)
        await until(lambda: room.inside)
        for number in range(20):
            tasks.start_soon(threads.commit, seen.append, number)
            await ticks(1)
        room.let_go()

    assert seen == list(range(20))


async def test_a_thread_lingers_for_the_next_section(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections that come one soon after the other are run by one thread that has not gone back to the loop between."""
    monkeypatch.setattr("tokenstore.threads.LINGER_SECONDS", 20.0)
    async with lanes() as threads:
        await threads.commit(divmod, 7, 2)
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_run", no_thread)
            results = [await threads.commit(divmod, 7, number) for number in (1, 2, 3)]

    assert results == [(7, 0), (3, 1), (2, 1)]


async def test_threads_that_linger_are_called_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that still wait for sections when the lanes are dismissed go home at once."""
    monkeypatch.setattr("tokenstore.threads.LINGER_SECONDS", 60.0)
    room = Room()
    with anyio.fail_after(20):
        async with lanes(4) as threads, anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(threads.commit, room.visit)
            await until(lambda: room.inside == 4)
            room.let_go()

    assert room.inside == 0


async def test_the_last_thread_to_linger_is_called_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """While two threads linger, sections that come one by one are all run by one of them."""
    monkeypatch.setattr("tokenstore.threads.LINGER_SECONDS", 60.0)
    room = Room()
    async with lanes() as threads, anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(threads.commit, room.visit)
        await until(lambda: room.inside == 2)
        room.let_go()
        await until(lambda: len(threads._jobs._lingering) == 2)
        first = await threads.commit(threading.get_ident)
        seen = set()
        for _ in range(8):
            await until(lambda: len(threads._jobs._lingering) == 2)
            seen.add(await threads.commit(threading.get_ident))

    assert seen == {first}


@pytest.mark.parametrize("seconds", [0.0, 0.001])
async def test_no_section_is_left_behind(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Whether a section comes before, while or after the threads give up waiting, it is run."""
    monkeypatch.setattr("tokenstore.threads.LINGER_SECONDS", seconds)
    seen: list[int] = []

    async def caller(threads: Threads, number: int) -> None:
        for step in range(20):
            await threads.commit(seen.append, step)
            await anyio.sleep(0.0005 * (number % 4))

    with anyio.fail_after(30):
        async with lanes(3) as threads, anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(caller, threads, number)

    assert sorted(seen) == sorted([*range(20)] * 8)


async def test_what_came_before_the_end_is_run() -> None:
    """Lanes that are closed run all sections that came before they end; so do those that came before they began."""
    threads, room, seen = Threads(1), Room(), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.commit, lambda: seen.append("early"))
        await ticks(3)
        threads.open(tasks)
        tasks.start_soon(threads.commit, room.visit)
        await until(lambda: room.inside)
        tasks.start_soon(threads.commit, lambda: seen.append("late"))
        await ticks(3)
        room.let_go()

    assert seen == ["early", "late"]


async def test_cancelling_waits_for_the_thread() -> None:
    """A call whose scope is cancelled returns only when its thread is done."""
    threads, room = Threads(), Room()
    ended: list[int] = []

    async def visit() -> None:
        try:
            await threads.read(room.visit)
        finally:
            ended.append(room.inside)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(visit)
        await until(lambda: room.inside)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await ticks(50)
        ended_early = list(ended)
        room.let_go()

    assert ended_early == []
    assert ended == [0]


async def no_thread(*_: object) -> None:
    """Start a thread where the system, or an interpreter that shuts down, refuses one."""
    raise RuntimeError("can't start new thread")


async def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started those who wait are told, and once one can, sections are run again."""
    async with lanes() as threads:
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_run", no_thread)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await threads.commit(divmod, 7, 2)

        assert await threads.commit(divmod, 7, 2) == (3, 1)


async def test_a_thread_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A section that finds no thread of its own is run by the one that is there."""
    room, seen = Room(), list[int]()
    async with lanes() as threads, anyio.create_task_group() as tasks:
        tasks.start_soon(threads.commit, room.visit)
        await until(lambda: room.inside)
        with monkeypatch.context() as patch:
            patch.setattr(threads, "_run", no_thread)
            tasks.start_soon(threads.commit, seen.append, 1)
            await ticks(5)
        room.let_go()

    assert seen == [1]
