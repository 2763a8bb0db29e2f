"""No fault at any step, with any crash after it, breaks a promise."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults.conftest import SEARCHED
from tests.faults.operations import Alone, Batch, Foreign, Idle, Interrupted, Removal, Reopen, Stray, Sync
from tests.faults.questions import Begin, Drop, Freeze, Mark, Peek, Put, Refuse, RemovalStep, Scan
from tests.faults.scenarios import SCENARIOS
from tests.faults.search import Finding, Run, Search
from tests.faults.settings import FULL
from tests.faults.troubles import Calls, Cut, Dead, Kill, policies, troubles_of
from tokenstore.testing import PersistencePolicy

STATES = int(os.environ.get("TOKENSTORE_FAULT_STATES", "20000"))
"""How many states are looked at, evenly over the scripts; the whole space has some fifteen millions."""
SEED = int(os.environ.get("TOKENSTORE_FAULT_SEED", "0"))
"""Draws the troubles and the states that are looked at."""
SHARE = -(-STATES // len(SCENARIOS))
SHOWN = 5


def report(findings: list[Finding]) -> str:
    """Show the first findings; each is an argument of `search.replay`."""
    return "\n\n".join([f"{len(findings)} findings, the first of them:", *map(repr, findings[:SHOWN])])


@pytest.fixture
def _quiet() -> Iterator[None]:
    """What recovery cuts off is no news in a search."""
    logger = logging.getLogger("tokenstore")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_quiet")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_state_breaks_a_promise(scenario: str, record_property: Callable[[str, object], None]) -> None:
    """Whatever breaks at whatever step, what was acknowledged is there, and nothing wrong is delivered."""
    began = time.process_time()
    tally = Search(scenario, SEED).go(SHARE)
    counts = {"states": tally.states, "distinct": tally.distinct, "runs": tally.runs, "findings": len(tally.findings)}
    record_property(SEARCHED, {**counts, "seed": SEED, "seconds": time.process_time() - began})

    assert not tally.findings, report(tally.findings)
    assert tally.states >= SHARE


def test_a_seed_gives_the_same_search() -> None:
    """Two searches with one seed look at the same states."""
    first, again = (Search("a lost call", seed=1).go(600) for _ in range(2))

    assert (first.states, first.distinct, first.runs) == (again.states, again.distinct, again.runs)


def test_the_table_has_everything() -> None:
    """Every operation and question is in a script, by one writer and by two, with either kind of prompts."""
    operations = [operation for scenario in SCENARIOS.values() for operation in scenario.script]
    questions = {type(question) for operation in operations for _, question in operation.asked}

    assert {Batch, Alone, Removal, Sync, Idle, Reopen, Stray, Foreign, Interrupted} == set(map(type, operations))
    assert {Put, Begin, Refuse, Mark, Freeze, Peek, Scan, Drop, RemovalStep} <= questions
    assert {0, 1} == {operation.by for operation in operations}
    assert {len(operation.asked) for operation in operations if isinstance(operation, Batch)} >= {1, 2, 3}
    assert any(scenario.configs == (FULL, FULL) for scenario in SCENARIOS.values())


def test_every_single_trouble_is_tried() -> None:
    """Each call of each process fails in each way, and each step is a kill, a power cut and the end of a disk."""
    troubles = list(troubles_of({0: {"write": 2, "sync": 1}, 1: {"unlink": 1}}, steps=3))
    calls = [trouble for trouble in troubles if isinstance(trouble, Calls)]

    assert {(t.process, t.faults[0].call, t.faults[0].at) for t in calls} == {
        (0, "write", 1), (0, "write", 2), (0, "sync", 1), (1, "unlink", 1),
    }  # fmt: skip
    assert {t.faults[0].repeat for t in calls} == {True, False}
    assert [t.step for t in troubles if isinstance(t, Kill)] == [1, 2, 3]
    assert [t.step for t in troubles if isinstance(t, Dead)] == [1, 2, 3]
    assert {(t.step, t.policy) for t in troubles if isinstance(t, Cut)} == {
        (step, policy) for step in (1, 2, 3) for policy in PersistencePolicy
    }
    assert {policy for policy, _ in policies()} == set(PersistencePolicy)


def test_a_finding_names_what_was_done() -> None:
    """The text of a finding is enough to have it again."""
    finding = Finding(Run("put", Kill(3), "go on"), 5, PersistencePolicy.NULS, 0, "it is gone")

    assert "scenario='put', trouble=Kill(step=3)" in report([finding])
