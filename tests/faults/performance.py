"""One script with one trouble, played to its end, with the moments at which a crash is worth a look."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tests.faults.keys import key_of
from tests.faults.ledger import Ledger, WrongError
from tests.faults.operations import Alone, Operation
from tests.faults.questions import ROOT, Answer, Peek
from tests.faults.troubles import Cut, Kill, Trouble
from tests.faults.world import World
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.testing import PersistencePolicy, SimulatedDisk

if TYPE_CHECKING:
    from tests.faults.scenarios import Scenario


class Point:
    """A moment at which there may be a crash.

    Args:
        disk: The disk at that moment.
        ledger: What is known if it comes.
        step: The step that does not take effect.
        label: What that step is.
    """

    def __init__(self, disk: SimulatedDisk, ledger: Ledger, step: int, label: str) -> None:
        self.disk = disk
        self.ledger = ledger
        self.step = step
        self.label = label

    @cached_property
    def key(self) -> int:
        """Tells the state that a kill leaves."""
        return key_of(self.disk, self.ledger)

    @cached_property
    def _files(self) -> dict[str, bytes]:
        return self.disk.files(ROOT)

    @cached_property
    def _settled(self) -> bool:
        return self.disk.settled(ROOT)

    def crash(self, policy: PersistencePolicy | None, seed: int) -> tuple[SimulatedDisk, Ledger]:
        """What a crash leaves: of the process, or with a policy of the power.

        A power cut that took nothing away is a kill. That is the harder one, since nothing has become durable by it.
        """
        if policy is not None and not self._settled:
            left = self.disk.after_crash(policy, seed=seed)
            if left.files(ROOT) != self._files:
                return left, self.ledger.after_power_cut()
        return self.disk, self.ledger


class Performance:
    """Plays a script.

    Args:
        scenario: The script.
        trouble: What goes wrong.
        manner: What a caller does about a question without an answer.
    """

    def __init__(self, scenario: Scenario, trouble: Trouble, manner: str) -> None:
        self.world = World(scenario.configs, trouble, self._on_step)
        self.points: list[Point] = []
        self.calls: dict[int, dict[str, int]] = {}
        """How many calls of each kind each process has made."""
        self.steps = 0
        """How many steps there were."""
        self._scenario = scenario
        self._patient = manner == "ask again"
        self._ledger = Ledger()
        self._in_flight = Ledger()

    def play(self) -> None:
        """Ask for one operation after the other, then heal the disk and look whether all goes on.

        Raises:
            WrongError: A promise is broken.
        """
        for operation in self._scenario.script:
            answers = self._perform(operation)
            if self._patient and "unknown" in answers:
                self._perform(operation)
        self._in_flight = self._ledger
        self._on_step(self.world.disk, "the end")
        self.world.on_step = None
        self.calls, self.steps = self.world.calls, self.world.steps
        self._go_on()

    def _perform(self, operation: Operation) -> list[Answer]:
        bound = self.world.bind(operation)
        self._in_flight = self._ledger.in_flight(bound)
        cuts = self.world.power_cuts
        answers = self.world.perform(bound)
        self._ledger = self._ledger.noted(bound, answers)
        if self.world.power_cuts > cuts:
            self._ledger = self._ledger.after_power_cut()
        return answers

    def _on_step(self, disk: SimulatedDisk, label: str) -> None:
        self.points.append(Point(disk.clone(), self._in_flight, self.world.steps, label))

    # ------------------------------------------------------------------------------------------ after the trouble

    def _go_on(self) -> None:
        """When the trouble is over, everything works, and all processes see the same."""
        self.world.heal()
        for operation in self._ledger.pending:
            if "unknown" in self._perform(operation):
                raise WrongError(f"{operation} does not work when the trouble is over")
        if not isinstance(self.world.trouble, Kill | Cut):  # then there is no old process to compare with
            for rollout in self._scenario.rollouts:
                self._agree(rollout)
        self.world.close()
        self._check_files()

    def _check_files(self) -> None:
        files = self.world.disk.files(ROOT)
        left = [name for name in files if name.startswith(TEMPORARY_PREFIX)]
        if left and not self.world.may_leave_temporary_files:
            raise WrongError(f"temporary files are left: {left}")
        for names in map(Names.of, self._scenario.rollouts):
            there = [name for name in names.evidence if name in files]
            if there and names.lock not in files and not self.world.power_cuts:
                raise WrongError(f"{names.lock} is gone, and {there} is still there")

    def _agree(self, rollout: str) -> None:
        """Old processes and a new one give the same facts and the same version."""
        living = self.world.living
        seen = [self._perform(Alone(Peek(), rollout, place))[0] for place in living]
        self.world.end(0)
        seen.append(self._perform(Alone(Peek(), rollout))[0])
        if seen.count(seen[0]) != len(seen):
            raise WrongError(f"{rollout}: the processes see {seen}")
