"""A benchmark that measures what it is told, for tests of everything around measuring."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from benchmarks.harness.rounds import Outcome
from benchmarks.harness.suite import Benchmark, Key, Run, Target, Values

CASE = "512/128"
OURS, DISK = Key(CASE, "tokenstore", "p50 ms"), Key(CASE, "disk", "p50 ms")
RATIO = Target(text="p50 over disk", value=OURS, over=DISK, at_most=2.0)
ROUNDS: tuple[Values, ...] = ({OURS: 3.0, DISK: 2.0}, {OURS: 9.0, DISK: 3.0}, {OURS: 5.0, DISK: 4.0})
"""Ratios 1.5, 3.0 and 1.25: their median is 1.5, the ratio of the medians would be 1.67."""


def measure_nothing(_: Run) -> Values:
    """Find nothing."""
    return {}


def benchmark(*targets: Target) -> Benchmark:
    """Make a benchmark with these targets."""
    made = SimpleNamespace(TITLE="A title", PLOTS=("p50 ms",), targets=lambda: list(targets), measure=measure_nothing)
    return cast("Benchmark", made)


def outcome(*targets: Target, rounds: tuple[Values, ...] = ROUNDS) -> Outcome:
    """Make an outcome of these rounds."""
    return Outcome(name="given", benchmark=benchmark(*(targets or (RATIO,))), rounds=rounds)
