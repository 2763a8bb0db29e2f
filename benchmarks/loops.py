"""The same load on each event loop that callers use."""

from __future__ import annotations

from functools import partial

from benchmarks.contenders import ours
from benchmarks.harness.load import throughput
from benchmarks.harness.shapes import SMALL, rollouts_of
from benchmarks.harness.suite import Key, Run, Target, Values, installed

TITLE = "Event loops: the same throughput under asyncio, uvloop and trio"
PLOTS = ("puts/s", "CPU us/put")
COUNT, PUTS = 64, 32
CASE = f"{SMALL}, C = {COUNT}"
ASYNCIO, UVLOOP, TRIO = "tokenstore, asyncio", "tokenstore, uvloop", "tokenstore, trio"


def targets() -> list[Target]:
    """A faster loop helps, a slower one does not hurt much."""
    rate = partial(Key, CASE, what="puts/s")
    return [
        Target(text="puts/s under trio over asyncio", value=rate(TRIO), over=rate(ASYNCIO), at_least=0.65),
        Target(text="puts/s under uvloop over asyncio", value=rate(UVLOOP), over=rate(ASYNCIO), at_least=1.0),
    ]


def measure(run: Run) -> Values:
    """Measure each loop that is installed."""
    rollouts = rollouts_of(SMALL, COUNT, 1 + run.size(PUTS, 2))
    loops = [(ASYNCIO, "asyncio", False)]
    loops += [(UVLOOP, "asyncio", True)] if installed("uvloop") else []
    loops += [(TRIO, "trio", False)] if installed("trio") else []
    values: Values = {}
    for who, backend, uvloop in run.turn(loops):
        spent = throughput(ours.PER_FILE, run.place(), rollouts, backend=backend, uvloop=uvloop)
        values[Key(CASE, who, "puts/s")] = spent.rate
        values[Key(CASE, who, "CPU us/put")] = spent.cpu_each
    return values
