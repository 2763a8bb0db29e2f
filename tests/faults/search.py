"""Everything times everything: each script with each trouble, a crash at each step, each policy.

A run is a script with one trouble and one manner of its callers. Its states are what a kill or a power cut may leave at
each step from when the trouble began, and at its end. States that were seen before, on the disk and in the ledger, are
counted and not looked at again. With a budget the runs without a trouble come first and whole; then as many troubles
as fit, in an order drawn from the seed, with some of their states, drawn too.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Literal, TypeAlias

import attrs

from tests.faults.aftermath import Aftermath
from tests.faults.ledger import Ledger, WrongError
from tests.faults.operations import Operation
from tests.faults.process import ROOT
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.troubles import Trouble, policies, troubles_of
from tests.faults.world import World
from tokenstore.testing import PersistencePolicy, SimulatedDisk

Manner: TypeAlias = Literal["go on", "ask again"]
"""What a caller does about a question without an answer: something else, or the same at once."""
MANNERS: tuple[Manner, ...] = ("go on", "ask again")
STATES_A_RUN = 12
"""How many states of a run are looked at, if there are more: a run costs about as much as two."""
_SNAPSHOT_ID = re.compile(rb'"snapshot_id":"([0-9a-f]{32})"')


@attrs.frozen
class Run:
    """A script with a trouble."""

    scenario: str
    trouble: Trouble
    manner: Manner


@attrs.frozen
class Finding:
    """A broken promise; a run and a state are enough to have it again with `replay`."""

    run: Run
    point: int
    """The step before which the crash is; 0 for what happens while the script runs."""
    policy: PersistencePolicy | None
    seed: int
    problem: str
    label: str = ""


@attrs.define
class Tally:
    """What a search has done."""

    states: int = 0
    distinct: int = 0
    runs: int = 0
    findings: list[Finding] = attrs.field(factory=list)

    def add(self, other: Tally) -> None:
        """Add up."""
        self.states += other.states
        self.distinct += other.distinct
        self.runs += other.runs
        self.findings += other.findings


@attrs.frozen
class Point:
    """A moment at which a crash is looked at."""

    disk: SimulatedDisk
    ledger: Ledger
    step: int
    label: str


class Search:
    """Searches the runs of one scenario."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.scenario = SCENARIOS[name]
        self.tally = Tally()
        self._chance = Random(f"{seed}/{name}")
        self._seen: set[int] = set()

    def go(self, budget: int, *, stop_at_first: bool = False) -> Tally:
        """Look at about so many states."""
        clean = Run(self.name, None, "go on")
        world = self.run(clean)
        runs = self._troubled_runs(world)
        for number, run in enumerate(runs):
            if self.tally.states >= budget or (stop_at_first and self.tally.findings):
                break
            left = (budget - self.tally.states) / (len(runs) - number)
            self.run(run, states=max(STATES_A_RUN, round(left)))
        return self.tally

    def _troubled_runs(self, clean: World) -> list[Run]:
        runs = [
            Run(self.name, trouble, manner)
            for trouble in troubles_of(clean.calls, clean.steps)
            for manner in MANNERS
        ]
        self._chance.shuffle(runs)
        return runs

    def run(self, run: Run, states: int | None = None) -> World:
        """Run a script and look at its states, all of them or some."""
        self.tally.runs += 1
        points: list[Point] = []
        world = World(self.scenario.configs, run.trouble)
        try:
            points = list(_points(world, self.scenario.script, run.manner))
        except WrongError as error:
            self.tally.findings.append(Finding(run, 0, None, 0, str(error)))
        for point, policy, seed in self._chosen(points, states):
            self._look(run, point, policy, seed)
        return world
