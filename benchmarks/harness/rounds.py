"""Repeats a benchmark and keeps what each round measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import attrs

from benchmarks.contenders import Contender
from benchmarks.harness.statistics import median
from benchmarks.harness.suite import Benchmark, Key, Run, Target, Values

ROUNDS = 5
"""Paired rounds of which the median counts."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What a benchmark measured in all its rounds."""

    name: str
    benchmark: Benchmark
    rounds: tuple[Values, ...]

    @property
    def keys(self) -> list[Key]:
        """All that was measured, in the order in which the first round noted it."""
        return list(dict.fromkeys(key for values in self.rounds for key in values))

    def of(self, key: Key) -> list[float]:
        """What the rounds measured of one quantity."""
        return [values[key] for values in self.rounds if key in values]

    def middle(self, key: Key) -> float:
        """Its median."""
        return median(self.of(key))

    def targets(self) -> list[Target]:
        """What is demanded."""
        return self.benchmark.targets()


def repeat(
    name: str,
    benchmark: Benchmark,
    contenders: Sequence[Contender],
    *,
    folder: Path,
    rounds: int,
    quick: bool,
    say: Callable[[str], object],
) -> Outcome:
    """Run a benchmark some times, each in an empty folder of its own."""
    measured = []
    started = perf_counter()
    for number in range(rounds):
        say(f"{name}: round {number + 1} of {rounds}")
        with TemporaryDirectory(prefix=f"{name}-", dir=folder) as place:
            run = Run(folder=Path(place), number=number, quick=quick, contenders=tuple(contenders))
            measured.append(benchmark.measure(run))
    say(f"{name}: {perf_counter() - started:.0f} s")
    return Outcome(name=name, benchmark=benchmark, rounds=tuple(measured))
