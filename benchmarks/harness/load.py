"""Puts load on a sink and measures what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from time import perf_counter, process_time
from typing import Any

import anyio

from benchmarks.contenders import Contender, Sink
from benchmarks.harness.baselines import Spent
from benchmarks.harness.shapes import work_out_of_sight
from tokenstore import TokenEntry


async def one_after_the_other(sink: Sink, entries: Sequence[Any]) -> list[float]:
    """Put entries as one agent does, each after the ack of the one before, and give the seconds of each."""
    seconds = []
    for entry in entries:
        started = perf_counter()
        await sink.put(entry)
        seconds.append(perf_counter() - started)
    return seconds


async def side_by_side(sink: Sink, rollouts: Sequence[Sequence[Any]]) -> list[float]:
    """Run a task for each rollout that puts its entries one after the other, and give the seconds of each put."""
    seconds: list[float] = []

    async def agent(entries: Sequence[Any]) -> None:
        seconds.extend(await one_after_the_other(sink, entries))

    async with anyio.create_task_group() as agents:
        for entries in rollouts:
            agents.start_soon(agent, entries)
    return seconds


async def measured(sink: Sink, rollouts: Sequence[Sequence[Any]]) -> Spent:
    """Measure putting rollouts side by side."""
    cpu, started = process_time(), perf_counter()
    puts = len(await side_by_side(sink, rollouts))
    return Spent(puts, perf_counter() - started, process_time() - cpu)


def throughput(
    contender: Contender,
    folder: Path,
    rollouts: Sequence[Sequence[TokenEntry]],
    *,
    backend: str = "asyncio",
    uvloop: bool = False,
) -> Spent:
    """Measure one contender in an event loop of its own, after a first put to each rollout.

    Raises:
        RuntimeError: Not all that it acknowledged is there.
    """
    ready = [[contender.convert(entry) for entry in entries] for entries in rollouts]

    async def run() -> Spent:
        async with contender.open(folder) as sink:
            await side_by_side(sink, [entries[:1] for entries in ready])
            with work_out_of_sight():
                return await measured(sink, [entries[1:] for entries in ready])

    options = {"use_uvloop": uvloop} if backend == "asyncio" else {}
    spent = anyio.run(run, backend=backend, backend_options=options)
    check_stored(contender, folder, sum(map(len, rollouts)))
    return spent


def check_stored(contender: Contender, folder: Path, expected: int) -> None:
    """See that everything is there, then make room.

    Raises:
        RuntimeError: It is not.
    """
    if (found := contender.stored(folder)) != expected:
        raise RuntimeError(f"{contender.name} acknowledged {expected} entries and stored {found}")
    rmtree(folder)
