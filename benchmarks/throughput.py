"""Puts a second of many rollouts at once, each an agent that waits for its ack before the next put."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.harness.baselines import BARE_THREADS, DISK_THREADS, Spent, bare, disk, line_of
from benchmarks.harness.load import throughput
from benchmarks.harness.shapes import MIDDLE, SMALL, Shape, rollouts_of
from benchmarks.harness.suite import BARE, DISK, OURS, OURS_FILESYSTEM, PLAIN, Key, Run, Target, Values
from tokenstore import TokenEntry

TITLE = "Throughput: rollouts side by side, puts a second"
PLOTS = ("puts/s", "CPU us/put")
CASES = ((SMALL, 64, 32), (SMALL, 256, 8), (SMALL, 1024, 3), (MIDDLE, 64, 16), (MIDDLE, 256, 4))
"""Shape, rollouts, and puts of each."""


def case_of(shape: Shape, rollouts: int) -> str:
    """Name the work."""
    return f"{shape}, C = {rollouts}"


def targets() -> list[Target]:
    """Near the bare threads, and better than them where rollouts share a sync."""
    return [
        *[
            _rate(case_of(shape, count), OURS, who, least)
            for shape in (SMALL, MIDDLE)
            for count in (64, 256)
            for who, least in ((BARE, 0.7), (PLAIN, 1.0))
        ],
        Target(
            text=f"{SMALL}: puts/s at C = 1024 over C = 256",
            value=Key(case_of(SMALL, 1024), OURS, "puts/s"),
            over=Key(case_of(SMALL, 256), OURS, "puts/s"),
            at_least=0.8,
        ),
        *[_rate(case_of(SMALL, count), OURS_FILESYSTEM, BARE, 1.3) for count in (64, 256)],
        *[
            Target(
                text=f"{case_of(SMALL, count)}: CPU us a put of {OURS_FILESYSTEM}",
                value=Key(case_of(SMALL, count), OURS_FILESYSTEM, "CPU us/put"),
                at_most=130.0,
            )
            for count in (64, 256)
        ],
    ]


def _rate(case: str, who: str, other: str, least: float) -> Target:
    value, over = Key(case, who, "puts/s"), Key(case, other, "puts/s")
    return Target(text=f"{case}: puts/s of {who} over {other}", value=value, over=over, at_least=least)


def measure(run: Run) -> Values:
    """Measure every case, every contender once."""
    values: Values = {}
    for shape, count, puts in CASES:
        rollouts = rollouts_of(shape, run.size(count, 16), 1 + run.size(puts, 1))
        values.update(_measure_case(run, case_of(shape, count), rollouts))
    return values


def _measure_case(run: Run, case: str, rollouts: list[list[TokenEntry]]) -> Values:
    steps: list[tuple[str, Callable[[], Spent]]] = [
        (DISK, partial(_disk, run, rollouts)),
        (BARE, partial(_bare, run, rollouts)),
        *[(contender.name, partial(throughput, contender, run.place(), rollouts)) for contender in run.contenders],
    ]
    found = {who: step() for who, step in run.turn(steps)}
    values: Values = {}
    for who, spent in found.items():
        values[Key(case, who, "puts/s")] = spent.rate
        values[Key(case, who, "of disk")] = spent.rate / found[DISK].rate
        values[Key(case, who, "CPU us/put")] = spent.cpu_each
        if who in (DISK, BARE):
            values[Key(case, who, "threads")] = spent.threads
    return values


def _disk(run: Run, rollouts: list[list[TokenEntry]]) -> Spent:
    lines = [[line_of(entry) for entry in entries[1:]] for entries in rollouts]
    return disk(run.place(), lines, run.size(DISK_THREADS, (8,)))


def _bare(run: Run, rollouts: list[list[TokenEntry]]) -> Spent:
    return bare(run.place(), [entries[1:] for entries in rollouts], run.size(BARE_THREADS, (8,)))
