"""While one process is in a critical section, no other gets into one, whatever happens to the lock file."""

from __future__ import annotations

from collections.abc import Container

import pytest

from tests.faults.operations import Foreign, Interrupted, Stray
from tests.faults.questions import ROOT, R
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.settings import SHARED
from tests.faults.world import World
from tokenstore.errors import TokenCaptureRetiredError
from tokenstore.journal.disk import Access
from tokenstore.journal.journal import Journal
from tokenstore.journal.lockfile import LockBusyError, LockFile
from tokenstore.journal.root import Root
from tokenstore.testing import SimulatedDisk

OUTSIDE = {"open_root root-of-the-store", "open r.tokens.lock", "directory_sync "}
"""Steps that may be outside the lock: before it is there, and the syncs between the steps of a removal."""
PLAIN = [
    name
    for name, scenario in SCENARIOS.items()
    if scenario.rollouts == [R] and not any(isinstance(o, Stray | Foreign | Interrupted) for o in scenario.script)
]
"""Scripts of one rollout in which nobody goes past the lock."""


class Intruder:
    """Another process, which tries its luck at every step; between two operations it may look, and keeps the lock file.

    Args:
        disk: The disk.
    """

    def __init__(self, disk: SimulatedDisk) -> None:
        self.inside: list[str] = []
        """The steps in the middle of which it got in."""
        self.tries = 0
        self._journal = Journal(Root(disk.open_root(ROOT), SHARED), R)
        self._trying = False

    def visit(self) -> None:
        """Look while nobody is there."""
        try:
            self._journal.peek()
        except TokenCaptureRetiredError:
            return

    def on_step(self, _: SimulatedDisk, label: str) -> None:
        """Try to get in, as a reader and as a writer."""
        if self._trying or label in OUTSIDE:
            return
        self._trying = True
        for attempt in (self.visit, self._journal.recover):
            self.tries += 1
            try:
                attempt()
            except LockBusyError:
                continue
            self.inside.append(label)
        self._trying = False


def intrude(scenario: Scenario, visits: Container[int], tries: Container[int]) -> Intruder:
    """Play a script with an intruder.

    Args:
        scenario: The script.
        visits: Places in the script before which the intruder looks, and opens the lock file.
        tries: Places of the operations during which it tries to get in.
    """
    world = World(scenario.configs)
    intruder = Intruder(world.disk)
    for place, operation in enumerate(scenario.script):
        if place in visits:
            intruder.visit()
        world.on_step = intruder.on_step if place in tries else None
        world.perform(world.bind(operation))
    return intruder


@pytest.mark.parametrize("name", PLAIN)
def test_nobody_gets_into_a_critical_section(name: str) -> None:
    """Another process that tries at each step of each operation is told that the lock is busy."""
    always = range(len(SCENARIOS[name].script))
    intruder = intrude(SCENARIOS[name], visits=always, tries=always)

    assert not intruder.inside
    assert intruder.tries


def stale_locks(name: str) -> list[str]:
    """Let the intruder open the lock file before one operation and try to get in with it during a later one."""
    places = range(len(SCENARIOS[name].script))
    pairs = [(visit, attempt) for visit in places for attempt in places[visit:]]
    return [label for visit, attempt in pairs for label in intrude(SCENARIOS[name], {visit}, {attempt}).inside]


@pytest.mark.parametrize("name", ["delete and reuse", "two writers delete", "a lock removed"])
def test_a_lock_file_that_was_made_anew_is_noticed(name: str) -> None:
    """The descriptor of a lock file that was removed since lets nobody in."""
    assert not stale_locks(name)


def test_a_process_that_trusts_its_lock_file_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look whether the lock file is still the one at its path, the test before finds intruders."""

    def trusting(self: LockFile, access: Access) -> bool:
        file = self._open(access)
        return file is None or file.lock(exclusive=access != "read")

    monkeypatch.setattr(LockFile, "_try", trusting)

    assert stale_locks("delete and reuse")
