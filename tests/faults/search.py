"""Everything times everything: each script with each trouble, a crash at each step, each policy.

A run is a script with one trouble and one manner of its callers. Its states are what a kill or a power cut may leave at
each step from when the trouble began, and at its end. States that were seen before, on the disk and in the ledger, are
counted and not looked at again. With a budget the runs without a trouble come first and whole; then as many troubles
as fit, in an order drawn from the seed, with some of their states, drawn too.
"""

from __future__ import annotations

from random import Random
from typing import Literal, TypeAlias

import attrs

from tests.faults.aftermath import Aftermath
from tests.faults.keys import key_of
from tests.faults.ledger import WrongError
from tests.faults.performance import Performance, Point
from tests.faults.scenarios import SCENARIOS
from tests.faults.troubles import Trouble, policies, troubles_of
from tokenstore.testing import PersistencePolicy

Manner: TypeAlias = Literal["go on", "ask again"]
"""What a caller does about a question without an answer: something else, or the same at once."""
MANNERS: tuple[Manner, ...] = ("go on", "ask again")
STATES_A_RUN = 36
"""How many states of a run are looked at, if there are more: most are repeats, and a run costs as much as three."""
CRASHES: tuple[tuple[PersistencePolicy | None, int], ...] = ((None, 0), *policies())
"""A kill, that leaves everything, and every power cut."""


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


class Search:
    """Searches the runs of one scenario."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name = name
        self.scenario = SCENARIOS[name]
        self.tally = Tally()
        self._chance = Random(f"{seed}/{name}")  # noqa: S311  # replayable, not secret
        self._seen: set[int] = set()
        self._recovered: set[int] = set()

    def go(self, budget: int, *, stop_at_first: bool = False) -> Tally:
        """Look at about so many states."""
        clean = Run(self.name, None, "go on")
        runs = self._troubled_runs(self.run(clean))
        for number, run in enumerate(runs):
            if self.tally.states >= budget or (stop_at_first and self.tally.findings):
                break
            left = (budget - self.tally.states) / (len(runs) - number)
            self.run(run, states=max(STATES_A_RUN, round(left)))
        return self.tally

    def _troubled_runs(self, clean: Performance) -> list[Run]:
        runs = [
            Run(self.name, trouble, manner) for trouble in troubles_of(clean.calls, clean.steps) for manner in MANNERS
        ]
        self._chance.shuffle(runs)
        return runs

    def run(self, run: Run, states: int | None = None) -> Performance:
        """Run a script and look at its states, all of them or some."""
        self.tally.runs += 1
        performance = Performance(self.scenario, run.trouble, run.manner)
        try:
            performance.play()
        except WrongError as error:
            self.tally.findings.append(Finding(run, 0, None, 0, str(error)))
        crashes = [(point, policy, seed) for point in performance.points for policy, seed in CRASHES]
        if states is not None and states < len(crashes):
            crashes = self._chance.sample(crashes, states)
        for point, policy, seed in crashes:
            self._look(run, point, policy, seed)
        return performance

    def _look(self, run: Run, point: Point, policy: PersistencePolicy | None, seed: int) -> None:
        disk, ledger = point.crash(policy, seed)
        self.tally.states += 1
        key = point.key if disk is point.disk else key_of(disk, ledger)
        if key in self._seen:
            return
        self._seen.add(key)
        self.tally.distinct += 1
        try:
            Aftermath(disk.after_kill(), ledger, self.scenario.rollouts, self.scenario.configs).check(self._recovered)
        except WrongError as error:
            self.tally.findings.append(Finding(run, point.step, policy, seed, str(error), point.label))


def replay(finding: Finding) -> None:
    """Have a finding again, under a debugger for example.

    Raises:
        WrongError: It is still there.
    """
    scenario = SCENARIOS[finding.run.scenario]
    performance = Performance(scenario, finding.run.trouble, finding.run.manner)
    performance.play()
    for point in performance.points:
        if point.step == finding.point:
            disk, ledger = point.crash(finding.policy, finding.seed)
            Aftermath(disk.after_kill(), ledger, scenario.rollouts, scenario.configs).check()
