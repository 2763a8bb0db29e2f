"""Puts whose contenders take turns, so that a slow moment of the disk hits all of them, and what each put cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.contenders import Sink
from benchmarks.harness.load import one_after_the_other
from benchmarks.harness.statistics import percentile
from benchmarks.harness.suite import Key, Values

_IO = Path("/proc/self/io")


def bytes_written() -> int:
    """What this process has handed to system calls that write."""
    for line in _IO.read_text().splitlines():
        name, _, count = line.partition(":")
        if name == "wchar":
            return int(count)
    raise RuntimeError(f"{_IO} has no wchar")


class Stream:
    """One contender's puts, one after the other.

    Args:
        sink: Where they go.
        ready: What to put, as the contender wants it.
    """

    def __init__(self, sink: Sink, ready: Sequence[Any]) -> None:
        self._sink = sink
        self._ready = ready
        self._seconds: list[float] = []
        self._cpu = 0.0
        self._bytes = 0

    async def take_turn(self, start: int, end: int, *, counts: bool) -> None:
        """Put a part of what is ready; it counts unless it is for warming up."""
        written, cpu = bytes_written(), process_time()
        seconds = await one_after_the_other(self._sink, self._ready[start:end])
        if counts:
            self._cpu += process_time() - cpu
            self._bytes += bytes_written() - written
            self._seconds += seconds

    def values(self, case: str, who: str) -> Values:
        """What a put took."""
        key, puts = partial(Key, case, who), len(self._seconds)
        return {
            key("p50 ms"): percentile(self._seconds, 0.5) * 1e3,
            key("p99 ms"): percentile(self._seconds, 0.99) * 1e3,
            key("CPU us/put"): self._cpu / puts * 1e6,
            key("bytes/put"): self._bytes / puts,
        }


async def take_turns(streams: Sequence[Stream], puts: int, turn: int) -> None:
    """Let streams put in turns; the first turn is for warming up.

    Args:
        streams: Each has that many entries ready.
        puts: Puts of each stream, the first turn's included.
        turn: Puts in one go.
    """
    for start in range(0, puts, turn):
        for stream in streams:
            await stream.take_turn(start, start + turn, counts=start > 0)
