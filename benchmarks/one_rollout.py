"""256 puts at once into one rollout: what a batch gains, and what is left beside the encoding."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from time import perf_counter, process_time

import anyio

from benchmarks.contenders import Contender
from benchmarks.harness.baselines import Spent, line_of, opened
from benchmarks.harness.load import check_stored, measured
from benchmarks.harness.shapes import SMALL, rollout_of, work_out_of_sight
from benchmarks.harness.suite import OURS, Key, Run, Target, Values
from tokenstore import TokenEntry

TITLE = "One rollout: 256 puts at once"
PLOTS = ("puts/s", "CPU us/put")
CASE = f"{SMALL}, 256 at once"
ENCODING = "encoding alone"
ONE_SYNC = "disk, one sync"
EACH_SYNC = "disk, a sync each"
PUTS = 256
REPEATS = 8
"""Batches of a round."""


def targets() -> list[Target]:
    """More than half of the time goes into encoding."""
    ours, encoding = Key(CASE, OURS, "puts/s"), Key(CASE, ENCODING, "puts/s")
    return [Target(text=f"{CASE}: puts/s over encoding alone", value=ours, over=encoding, at_least=0.55)]


def measure(run: Run) -> Values:
    """Measure every contender with the same batches."""
    repeats = run.size(REPEATS, 1)
    batches = [rollout_of(SMALL, "rollout", PUTS, first=number * PUTS) for number in range(repeats + 1)]
    steps = [
        (ENCODING, partial(_encode, batches)),
        (ONE_SYNC, partial(_write, run.place(), batches, PUTS)),
        (EACH_SYNC, partial(_write, run.place(), batches, 1)),
        *[(contender.name, partial(_put, contender, run.place(), batches)) for contender in run.contenders],
    ]
    values: Values = {}
    for who, step in run.turn(steps):
        spent = step()
        values[Key(CASE, who, "puts/s")] = spent.rate
        values[Key(CASE, who, "CPU us/put")] = spent.cpu_each
    return values


def _encode(batches: list[list[TokenEntry]]) -> Spent:
    cpu, started = process_time(), perf_counter()
    for batch in batches[1:]:
        for entry in batch:
            line_of(entry)
    return Spent(PUTS * (len(batches) - 1), perf_counter() - started, process_time() - cpu)


def _write(folder: Path, batches: list[list[TokenEntry]], lines_a_sync: int) -> Spent:
    """Write ready lines, that many for each fdatasync."""
    lines = [line_of(entry) for batch in batches[1:] for entry in batch]
    with opened(folder, 1) as (descriptor,):
        cpu, started = process_time(), perf_counter()
        for start in range(0, len(lines), lines_a_sync):
            os.write(descriptor, b"".join(lines[start : start + lines_a_sync]))
            os.fdatasync(descriptor)
        return Spent(len(lines), perf_counter() - started, process_time() - cpu)


def _put(contender: Contender, folder: Path, batches: list[list[TokenEntry]]) -> Spent:
    ready = [[[contender.convert(entry)] for entry in batch] for batch in batches]

    async def run() -> Spent:
        async with contender.open(folder) as sink:
            await measured(sink, ready[0])  # the first one makes files and warms up
            with work_out_of_sight():
                parts = [await measured(sink, batch) for batch in ready[1:]]
        return Spent(PUTS * len(parts), sum(part.seconds for part in parts), sum(part.cpu for part in parts))

    spent = anyio.run(run, backend="asyncio")
    check_stored(contender, folder, PUTS * len(batches))
    return spent
