"""The search finds bugs: each one that is put in on purpose, by the scripts named for it."""

from __future__ import annotations

import pytest

from tests.faults.mutants import MUTANTS
from tests.faults.search import Search

ENOUGH = 2000
"""States within which each is found: a few seconds. Most take some hundred."""
CASES = [(name, scenario) for name, mutant in MUTANTS.items() for scenario in mutant.scenarios]


@pytest.mark.parametrize(("mutant", "scenario"), CASES)
def test_each_mutant_is_found(mutant: str, scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the journal breaks a promise in a script that is there for it."""
    MUTANTS[mutant].put_in(monkeypatch)

    assert Search(scenario).go(ENOUGH, stop_at_first=True).findings
