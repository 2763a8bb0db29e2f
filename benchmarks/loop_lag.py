"""How late the caller's event loop is while the store works: what a put costs those who share the loop.

A task sleeps a millisecond again and again and notes how much later than that it was woken. An idle loop is a little
late too (the timers of the loop are no finer); bare threads beside a loop show what encoding in the same process costs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import anyio
from anyio import to_thread

from benchmarks.contenders import Contender, Sink
from benchmarks.harness.baselines import bare
from benchmarks.harness.load import check_stored, side_by_side
from benchmarks.harness.shapes import LARGE, SMALL, rollouts_of, work_out_of_sight
from benchmarks.harness.statistics import percentile
from benchmarks.harness.suite import BARE, OURS, Key, Run, Target, Values
from tokenstore import TokenEntry

TITLE = "Loop lag: how late the event loop is while rollouts are being stored"
PLOTS = ("lag p99 ms",)
CASES = ((SMALL, 256, 40), (LARGE, 32, 6))
"""Shape, rollouts, and puts of each at most."""
IDLE = "idle loop"
TICK = 0.001
"""Seconds that the ticking task sleeps."""
SECONDS = 5.0
"""No put is begun after this."""
BARE_THREADS = 8
"""Threads of the baseline; two hold the interpreter, the others wait for the disk."""

P99, P999 = "lag p99 ms", "lag p99.9 ms"


def targets() -> list[Target]:
    """So little that a server's other requests do not notice."""
    small, large = (f"{shape}, C = {count}" for shape, count, _ in CASES)
    return [
        Target(text=f"{small}: lag p99, ms", value=Key(small, OURS, P99), at_most=5.0),
        Target(text=f"{small}: lag p99.9, ms", value=Key(small, OURS, P999), at_most=25.0),
        Target(text=f"{large}: lag p99, ms", value=Key(large, OURS, P99), at_most=15.0),
    ]


def measure(run: Run) -> Values:
    """Measure every case, everybody once."""
    values: Values = {}
    for shape, count, puts in CASES:
        case = f"{shape}, C = {count}"
        rollouts = rollouts_of(shape, run.size(count, 4), 1 + run.size(puts, 1))
        steps = [partial(_idle, run.size(1.0, 0.1)), partial(_beside_threads, run, rollouts)]
        steps += [partial(_loaded, run, contender, rollouts) for contender in run.contenders]
        for step in run.turn(steps):
            who, lags = step()
            values[Key(case, who, P99)] = percentile(lags, 0.99) * 1e3
            values[Key(case, who, P999)] = percentile(lags, 0.999) * 1e3
            values[Key(case, who, "longest ms")] = max(lags) * 1e3
            values[Key(case, who, "ticks")] = len(lags)
    return values


async def lags_during(work: Callable[[], Awaitable[object]]) -> list[float]:
    """Do something and give the seconds by which each tick of the loop was late meanwhile."""
    lags: list[float] = []

    async def tick() -> None:
        while True:
            started = perf_counter()
            await anyio.sleep(TICK)
            lags.append(perf_counter() - started - TICK)

    async with anyio.create_task_group() as ticking:
        ticking.start_soon(tick)
        await anyio.sleep(5 * TICK)  # also of the shortest work there are ticks
        await work()
        ticking.cancel_scope.cancel()
    return lags


def _idle(seconds: float) -> tuple[str, list[float]]:
    return IDLE, anyio.run(lags_during, partial(anyio.sleep, seconds), backend="asyncio")


def _beside_threads(run: Run, rollouts: list[list[TokenEntry]]) -> tuple[str, list[float]]:
    work = partial(to_thread.run_sync, bare, run.place(), rollouts, (BARE_THREADS,))
    with work_out_of_sight():
        return BARE, anyio.run(lags_during, work, backend="asyncio")


def _loaded(run: Run, contender: Contender, rollouts: list[list[TokenEntry]]) -> tuple[str, list[float]]:
    """Put until time or entries are up."""
    ready = [[contender.convert(entry) for entry in entries] for entries in rollouts]
    place = run.place()

    async def put_all() -> tuple[list[float], int]:
        async with contender.open(place) as sink:
            await side_by_side(sink, [entries[:1] for entries in ready])
            done = [len(ready)]
            with work_out_of_sight():
                lags = await lags_during(partial(_put_for_a_while, sink, [entries[1:] for entries in ready], done))
        return lags, sum(done)

    lags, puts = anyio.run(put_all, backend="asyncio")
    check_stored(contender, place, puts)
    return contender.name, lags


async def _put_for_a_while(sink: Sink, rollouts: Sequence[Sequence[Any]], done: list[int]) -> None:
    """Run an agent for each rollout that stops when time is up, and note how many puts each has made."""
    end = perf_counter() + SECONDS

    async def agent(entries: Sequence[Any]) -> None:
        puts = 0
        for entry in entries:
            if perf_counter() > end:
                break
            await sink.put(entry)
            puts += 1
        done.append(puts)

    async with anyio.create_task_group() as agents:
        for entries in rollouts:
            agents.start_soon(agent, entries)
