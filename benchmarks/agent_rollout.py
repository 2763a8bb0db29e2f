"""A turn of an agent whose context is full: each prompt is the whole previous prompt, its generation, and fresh ids.

The store names the earlier call and writes the rest. Everybody else writes the whole context again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from benchmarks.contenders import Contender, Sink
from benchmarks.harness.baselines import ONE_AFTER_THE_OTHER, line_of
from benchmarks.harness.load import check_stored
from benchmarks.harness.shapes import LARGE, as_received, rollout_of, work_out_of_sight
from benchmarks.harness.suite import DISK, OURS, Key, Run, Target, Values
from benchmarks.harness.turns import Stream, take_turns
from tokenstore import TokenEntry
from tokenstore.testing.rollouts import agent_rollout

TITLE = "An agent's rollout: a turn at 131,072 tokens of context, 300 of them new"
PLOTS = ("p50 ms", "CPU us/put", "bytes/put")
CASE = "131072 tokens of context, 300 new"
ENCODING = "encoding the whole prompt"
FULL_LINE = f"{DISK}, {LARGE}"
"""The baseline by which the demanded latency scales: a line of a full context and a long generation."""
TURN = 3
TURNS = 10
"""Turns that count, after one that warms up."""
GENERATED, ADDED = 100, 200


def targets() -> list[Target]:
    """A quarter of the CPU that the whole prompt takes, a third of the reference's latency.

    The reference took 9 ms where the disk took 1.0 ms for a full line, so a third of it is 3 times the disk.
    """
    return [
        Target(
            text="CPU over encoding the whole prompt",
            value=Key(CASE, OURS, "CPU us/put"),
            over=Key(CASE, ENCODING, "CPU us/put"),
            at_most=0.25,
        ),
        Target(
            text="put p50 over disk with a full line",
            value=Key(CASE, OURS, "p50 ms"),
            over=Key(CASE, FULL_LINE, "p50 ms"),
            at_most=3.0,
        ),
    ]


class _Encoder:
    async def put(self, entry: Any) -> None:
        line_of(entry)


@asynccontextmanager
async def _open_encoder(_: Path) -> AsyncIterator[Sink]:
    yield _Encoder()


_ENCODER = Contender(name=ENCODING, open=_open_encoder, stored=lambda _: 0)


def measure(run: Run) -> Values:
    """Measure everybody in turns."""
    return anyio.run(_measure, run, TURN * (1 + run.size(TURNS, 1)), backend="asyncio")


async def _measure(run: Run, puts: int) -> Values:
    turns = _last_turns(puts)
    full_lines = rollout_of(LARGE, "rollout", puts)
    disk = ONE_AFTER_THE_OTHER[0]
    racers = [(contender, contender.name, turns) for contender in (*ONE_AFTER_THE_OTHER, *run.contenders)]
    racers += [(_ENCODER, ENCODING, turns), (disk, FULL_LINE, full_lines)]
    streams = {}
    async with AsyncExitStack() as stack:
        for contender, who, entries in run.turn(racers):
            sink = await stack.enter_async_context(contender.open(run.folder / who.replace("/", "-")))
            streams[who] = Stream(sink, [contender.convert(entry) for entry in entries])
        with work_out_of_sight():
            await take_turns(list(streams.values()), puts, TURN)
    values: Values = {}
    for contender, who, _ in racers:
        if contender is not _ENCODER:
            check_stored(contender, run.folder / who.replace("/", "-"), puts)
        values.update(streams[who].values(CASE, who))
    return values


def _last_turns(count: int) -> list[TokenEntry]:
    """The last calls of an agent before its context is full, as they come off the wire."""
    first = LARGE.prompt - (count - 1) * (GENERATED + ADDED)
    calls = agent_rollout("rollout", turns=count, first_prompt=first, generated=GENERATED, added=ADDED)
    return [as_received(call) for call in calls]
