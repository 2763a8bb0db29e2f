"""Whose turn it is: one works while others wait for the disk, and nobody waits for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.journal.workbench import ROOT
from tests.samples import entry
from tokenstore.config import StoreConfig
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Put
from tokenstore.journal.root import Root
from tokenstore.journal.turn import Turn
from tokenstore.testing import SimulatedDisk

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
