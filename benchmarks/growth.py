"""Whether a put costs more in a long rollout: entry 5,000 against entry 10, in turns, in one store."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from benchmarks.contenders import Contender, Sink
from benchmarks.harness.baselines import ONE_AFTER_THE_OTHER
from benchmarks.harness.load import check_stored, side_by_side
from benchmarks.harness.shapes import SMALL, named_call, work_out_of_sight
from benchmarks.harness.suite import OURS, Key, Run, Target, Values
from benchmarks.harness.turns import Stream, take_turns
from tokenstore import TokenEntry

TITLE = "Growth: a put at entry 5,000 against a put at entry 10"
PLOTS = ("p50 ms", "bytes/put")
EARLY = f"{SMALL}, entry 10"
LATE = f"{SMALL}, entry 5,000"
LONG = 5000
"""Entry of the long rollout around which is measured."""
SHORT_ROLLOUTS = 10
"""Rollouts that stand for a short one: each is measured from entry 5 to 15."""
FILLED = 5
"""Entries of each before that."""
TURN = 10
TURNS = 10
"""Turns that count, after one that warms up."""
CHUNK = 500
"""Entries that are put at once while the rollouts are filled."""


def targets() -> list[Target]:
    """As long, and as many bytes."""
    return [
        Target(text=f"put {what} at entry 5,000 over entry 10", value=late, over=early, at_most=limit)
        for what, limit in (("p50 ms", 1.15), ("bytes/put", 1.01))
        for late, early in [(Key(LATE, OURS, what), Key(EARLY, OURS, what))]
    ]


def measure(run: Run) -> Values:
    """Measure every contender by itself: its long and its short rollouts take turns."""
    values: Values = {}
    for contender in run.turn([*ONE_AFTER_THE_OTHER, *run.contenders]):
        values.update(anyio.run(_measure_contender, run, contender, backend="asyncio"))
    return values


async def _measure_contender(run: Run, contender: Contender) -> Values:
    puts = TURN * (1 + run.size(TURNS, 1))
    before = run.size(LONG, 100) - puts // 2
    long = [named_call(SMALL, number, "long-0", number) for number in range(before)]
    short = [_short(number, number) for number in range(FILLED * SHORT_ROLLOUTS)]
    place = run.place()
    async with contender.open(place) as sink:
        await _fill(contender, sink, [*long, *short])
        late = [named_call(SMALL, number, "long-0", before + number) for number in range(puts)]
        early = [_short(number, len(short) + number) for number in range(puts)]
        streams = [Stream(sink, [contender.convert(entry) for entry in entries]) for entries in (late, early)]
        with work_out_of_sight():
            await take_turns(run.turn(streams), puts, TURN)
    check_stored(contender, place, len(long) + len(short) + 2 * puts)
    return streams[0].values(LATE, contender.name) | streams[1].values(EARLY, contender.name)


def _short(content: int, number: int) -> TokenEntry:
    """The call of that number over all short rollouts, whose turns come round."""
    return named_call(SMALL, content, f"rest-{number % SHORT_ROLLOUTS}", number // SHORT_ROLLOUTS)


async def _fill(contender: Contender, sink: Sink, entries: Sequence[TokenEntry]) -> None:
    """Put entries quickly."""
    for start in range(0, len(entries), CHUNK):
        await side_by_side(sink, [[contender.convert(entry)] for entry in entries[start : start + CHUNK]])
