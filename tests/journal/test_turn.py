"""Whose turn it is: one works while others wait for the disk, and nobody waits for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.journal.workbench import ROOT
from tests.samples import entry
from tokenstore.config import StoreConfig, Sync
from tokenstore.errors import ConflictingEntryError, DurabilityError
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Begin, Put
from tokenstore.journal.root import Root
from tokenstore.journal.turn import Turn
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk
from tokenstore.testing.failing_disk import Call

PATIENCE = 20.0
NEVER_LONG = 1000.0
"""Seconds of a turn that is had alone for ever, as far as a test goes."""


@contextmanager
def elsewhere(function: Callable[[], object]) -> Iterator[threading.Event]:
    """Run a function in another thread; the event tells that it has come to its end."""
    ended = threading.Event()

    def run() -> None:
        function()
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield ended
    thread.join(PATIENCE)
    assert not thread.is_alive()


def take(turn: Turn, had: list[bool]) -> None:
    """Take a turn, and note whether it was got or passed by."""
    with turn:
        had.append(turn.is_mine)
    assert not turn.is_mine


def test_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes while another has the turn waits until it is given back, or left for a while."""
    monkeypatch.setattr("tokenstore.journal.turn.ALONE_SECONDS", NEVER_LONG)
    turn, had = Turn(), list[bool]()
    with turn, elsewhere(lambda: take(turn, had)) as ended:
        before = list(had)
        with turn.away():
            assert ended.wait(PATIENCE)
        mine_again = turn.is_mine

    assert (before, had, mine_again) == ([], [True], True)


def test_who_has_it_for_long_has_it_no_longer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on without the turn when one of them works for long, and the next has it again."""
    monkeypatch.setattr("tokenstore.journal.turn.ALONE_SECONDS", 0.0)
    turn, had = Turn(), list[bool]()
    with turn, elsewhere(lambda: take(turn, had)) as ended:
        assert ended.wait(PATIENCE)
    take(turn, had)

    assert had == [False, True]


def test_leaving_what_one_does_not_have() -> None:
    """Code that leaves the turn works as well for a thread without it, and does not get it by that."""
    turn = Turn()
    with turn.away():
        pass

    assert not turn.is_mine


class WatchedDisk(FailingDisk):
    """A disk that notes which of its syncs are made by a thread that has the turn."""

    def __init__(self) -> None:
        super().__init__(SimulatedDisk())
        self.turn = Turn()
        self.syncs = 0
        self.selfish: list[str] = []

    def due(self, call: Call, name: str) -> Fault | None:
        """Count a call, and look whose turn it is."""
        if "sync" in call:
            self.syncs += 1
            if self.turn.is_mine:
                self.selfish.append(f"{call} {name}")
        return super().due(call, name)


@pytest.mark.parametrize("sync", ["file", "filesystem"])
def test_nobody_syncs_while_having_the_turn(sync: Sync) -> None:
    """Every sync of a batch leaves the turn to others: of lines, marks, states and names, and of what is cut back."""
    disk = WatchedDisk()
    root = Root(disk.open_root(ROOT), StoreConfig(sync=sync))
    disk.turn = root.turn
    journal = Journal(root, "r")
    journal.finish(journal.committing([Begin("c0"), Put(entry("c0"))]))
    conflict = Put(entry("c0", prompt_token_ids=[9]))
    journal.finish(journal.committing([conflict]))
    disk.fault = Fault(call="datasync" if sync == "file" else "filesystem_sync")
    with pytest.raises(DurabilityError):
        journal.finish(journal.committing([Put(entry("c1"))]))

    assert isinstance(conflict.error, ConflictingEntryError)
    assert disk.syncs > 6
    assert disk.selfish == []
