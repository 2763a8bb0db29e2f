"""The search finds bugs: each one that is put in on purpose, by the scripts named for it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.conftest import CAUGHT
from tests.faults.mutants import MUTANTS
from tests.faults.search import Search

ENOUGH = 2000
"""States within which each is found. Most take some hundred."""
SECONDS = 10
"""Within which each is found, of one core."""
CASES = [(name, scenario) for name, mutant in MUTANTS.items() for scenario in mutant.scenarios]


@pytest.mark.kernel
@pytest.mark.parametrize(("mutant", "scenario"), CASES)
def test_each_mutant_is_found(
    mutant: str, scenario: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """A bug in the journal breaks a promise in a script that is there for it."""
    MUTANTS[mutant].put_in(monkeypatch)

    began = time.process_time()
    findings = Search(scenario).go(ENOUGH, stop_at_first=True).findings
    seconds = time.process_time() - began

    record_property(CAUGHT, {"mutant": mutant, "seconds": seconds})
    assert findings
    assert seconds < SECONDS
