"""How long a put takes when one agent waits for each: from the call to the ack, with nobody else there."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from benchmarks.harness.baselines import ONE_AFTER_THE_OTHER
from benchmarks.harness.load import check_stored
from benchmarks.harness.shapes import LARGE, MIDDLE, SMALL, Shape, rollout_of, work_out_of_sight
from benchmarks.harness.suite import DISK, OURS, Key, Run, Target, Values
from benchmarks.harness.turns import Stream, take_turns

TITLE = "Latency: one rollout, one put after the other"
PLOTS = ("p50 ms",)
CASES = ((SMALL, 300), (MIDDLE, 150), (LARGE, 30))
"""Shape, and puts measured in a round."""
TURN = 10
"""Puts in one go."""


def targets() -> list[Target]:
    """Not much over a write and a sync."""
    return [
        Target(
            text=f"{shape}: put p50 over disk",
            value=Key(str(shape), OURS, "p50 ms"),
            over=Key(str(shape), DISK, "p50 ms"),
            at_most=limit,
        )
        for shape, limit in ((SMALL, 1.8), (MIDDLE, 2.5))
    ]


def measure(run: Run) -> Values:
    """Measure every shape, the contenders taking turns."""
    values: Values = {}
    turn = run.size(TURN, 2)
    for shape, puts in CASES:
        values.update(anyio.run(_measure_shape, run, shape, turn + run.size(puts, turn), turn, backend="asyncio"))
    return values


async def _measure_shape(run: Run, shape: Shape, puts: int, turn: int) -> Values:
    contenders = run.turn([*ONE_AFTER_THE_OTHER, *run.contenders])
    places = [run.place() for _ in contenders]
    entries = rollout_of(shape, "rollout", puts)
    streams = []
    async with AsyncExitStack() as stack:
        for contender, place in zip(contenders, places, strict=True):
            sink = await stack.enter_async_context(contender.open(place))
            streams.append(Stream(sink, [contender.convert(entry) for entry in entries]))
        with work_out_of_sight():
            await take_turns(streams, puts, turn)
    values: Values = {}
    for contender, place, stream in zip(contenders, places, streams, strict=True):
        check_stored(contender, place, puts)
        values.update(stream.values(str(shape), contender.name))
    return values
