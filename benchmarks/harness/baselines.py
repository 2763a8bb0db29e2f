"""The two limits: what the disk can do, and what threads can do that have nothing to look after.

*disk* writes ready bytes and calls fdatasync. *bare* checks and encodes the entry, adds its checksum, writes and calls
fdatasync: the work that a durable store cannot leave out, in threads, with no loop, no lock, no state. Every rollout
has a file of its own, opened before the clock starts and with a line in it. Each is run with several numbers of
threads, and the best counts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter, process_time
from typing import Any, TypeVar

import attrs

from benchmarks.contenders import Contender, Sink
from benchmarks.harness.suite import BARE, DISK
from tokenstore import TokenEntry
from tokenstore.codec import prepare

Item = TypeVar("Item")

DISK_THREADS = (4, 8, 16, 32, 64)
"""Numbers of threads tried with ready bytes."""
BARE_THREADS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers tried with encoding, which holds the interpreter; fewer may be better."""


@attrs.frozen
class Spent:
    """What a piece of work took."""

    puts: int
    seconds: float
    cpu: float
    """CPU seconds of the whole process, the kernel's part included."""
    threads: int = 1

    @property
    def rate(self) -> float:
        """Puts a second."""
        return self.puts / self.seconds

    @property
    def cpu_each(self) -> float:
        """CPU microseconds a put."""
        return self.cpu / self.puts * 1e6


def line_of(entry: TokenEntry) -> bytes:
    """Check and encode an entry as the store does, checksum and newline included."""
    return prepare(entry, max_entry_bytes=sys.maxsize).line(checksum=True) + b"\n"


def append(descriptor: int, line: bytes) -> None:
    """Write a line and make it durable."""
    written = os.write(descriptor, line)
    while written < len(line):
        written += os.write(descriptor, line[written:])
    os.fdatasync(descriptor)


@contextmanager
def opened(folder: Path, count: int) -> Iterator[list[int]]:
    """Open files for as many rollouts, with a line in each."""
    folder.mkdir()
    with ExitStack() as stack:
        descriptors = []
        for number in range(count):
            descriptor = os.open(folder / f"{number}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            append(descriptor, b"{}\n")  # what making the file costs is paid before the clock starts
            descriptors.append(descriptor)
        yield descriptors


def in_threads(count: int, work: Callable[[int], None], puts: int) -> Spent:
    """Run a function in threads that start together, each with its number, and measure until the last has ended."""
    barrier = Barrier(count + 1)

    def one(number: int) -> None:
        barrier.wait()
        work(number)

    threads = [Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    barrier.wait()
    cpu, started = process_time(), perf_counter()
    for thread in threads:
        thread.join()
    return Spent(puts, perf_counter() - started, process_time() - cpu, count)


def disk(folder: Path, rollouts: Sequence[Sequence[bytes]], counts: Sequence[int] = DISK_THREADS) -> Spent:
    """The best that threads do with ready lines."""
    return _best(folder, rollouts, counts, append)


def bare(folder: Path, rollouts: Sequence[Sequence[TokenEntry]], counts: Sequence[int] = BARE_THREADS) -> Spent:
    """The best that threads do with entries."""
    return _best(folder, rollouts, counts, lambda descriptor, entry: append(descriptor, line_of(entry)))


def _best(
    folder: Path, rollouts: Sequence[Sequence[Item]], counts: Sequence[int], put: Callable[[int, Item], None]
) -> Spent:
    with opened(folder, len(rollouts)) as descriptors:
        work = list(zip(descriptors, rollouts, strict=True))
        runs = [_run(work, count, put) for count in sorted({min(count, len(rollouts)) for count in counts})]
    return max(runs, key=lambda spent: spent.rate)


def _run(work: list[tuple[int, Sequence[Item]]], count: int, put: Callable[[int, Item], None]) -> Spent:
    def own_share(number: int) -> None:
        mine = work[number::count]
        for position in range(max(len(items) for _, items in mine)):
            for descriptor, items in mine:
                if position < len(items):
                    put(descriptor, items[position])

    return in_threads(count, own_share, sum(len(items) for _, items in work))


class _Files(Sink):
    """Puts on the calling thread, without a loop's part in it: the baselines of a single put's latency."""

    def __init__(self, root: Path, encode: Callable[[Any], tuple[str, bytes]], stack: ExitStack) -> None:
        self._root = root
        self._encode = encode
        self._stack = stack
        self._descriptors: dict[str, int] = {}

    async def put(self, entry: Any) -> None:
        rollout, line = self._encode(entry)
        if rollout not in self._descriptors:
            self._descriptors[rollout] = self._stack.enter_context(opened(self._root / rollout, 1))[0]
        append(self._descriptors[rollout], line)


def _named_line(entry: TokenEntry) -> tuple[str, bytes]:
    return entry.rollout_id, line_of(entry)


def _opener(encode: Callable[[Any], tuple[str, bytes]]) -> Callable[[Path], AbstractAsyncContextManager[Sink]]:
    @asynccontextmanager
    async def open_sink(root: Path) -> AsyncIterator[Sink]:
        root.mkdir()
        with ExitStack() as stack:
            yield _Files(root, encode, stack)

    return open_sink


def _stored(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in root.glob("*/0.jsonl"))


ONE_AFTER_THE_OTHER = (
    Contender(name=DISK, open=_opener(lambda ready: ready), stored=_stored, convert=_named_line),
    Contender(name=BARE, open=_opener(_named_line), stored=_stored),
)
"""Both baselines for puts that wait for each other."""
