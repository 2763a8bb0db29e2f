"""The soak, for a short while, and that its accounting would notice what it is there to notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel import needs
from tests.soak.ledger import Account, Facts, Operation

TOP = Path(__file__).parents[1]
ROUNDS = 3
SEED = 1


@pytest.mark.kernel
@pytest.mark.timeout(180)
def test_nothing_is_lost_in_a_short_soak() -> None:
    """In three rounds of kills, with power cuts where they can be had, nothing is lost and nothing wrong."""
    command = [sys.executable, "-W", "error", "-m", "tests.soak", "--json"]
    command += ["--seed", str(SEED), "--rounds", str(ROUNDS)]

    run = subprocess.run(command, cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, check=False)

    assert run.returncode == 0, run.stderr.decode()
    figures = json.loads(run.stdout)
    assert (figures["lost"], figures["wrong"], figures["rounds"]) == (0, 0, ROUNDS)
    assert figures["acked"] > 0
    assert figures["kills"] >= ROUNDS
    needs.loop_mounts()
    assert "without power cuts" not in run.stderr.decode()
    assert figures["power cuts"] > 0


def account(*operations: Operation) -> Account:
    """An account of operations on the rollout `r`."""
    made = Account("r")
    for operation in operations:
        made.add(operation)
    return made


def did(kind: str, asked: float, ended: float, outcome: str = "acked", **more: Any) -> Operation:
    """An operation on the rollout `r`."""
    return Operation(kind, "r", more.pop("call", "c1"), more.pop("variant", 0), asked, ended, outcome, **more)


PUT = did("put", 1, 2)
FROZEN = did("freeze", 3, 4, facts=["s", 2, {"c1": 0}])
OPEN = Facts("open", 1, "", {"c1": 0})
SEALED = Facts("frozen", 2, "s", {"c1": 0})

LOST: dict[str, tuple[Account, Facts]] = {
    "a put": (account(PUT), Facts("absent")),
    "a put's content": (account(PUT, did("put", 3, 4, "unknown", variant=1)), Facts("open", 1, "", {"c1": 1})),
    "an intent": (account(did("begin", 1, 2)), Facts("open")),
    "a refusal": (account(did("refuse", 1, 2)), Facts("open", 1, "", {}, {})),
    "a mark": (account(did("mark", 1, 2)), Facts("open", 1)),
    "a conflict": (account(PUT, did("put", 3, 4, "conflict", variant=1)), OPEN),
    "a freeze": (account(PUT, FROZEN), OPEN),
    "a snapshot": (account(PUT, FROZEN), Facts("frozen", 2, "other", {"c1": 0})),
    "a sealed entry": (account(FROZEN), Facts("frozen", 2, "s", {})),
    "a fence": (account(PUT, did("retire", 3, 4)), OPEN),
    "a drop": (account(PUT, FROZEN, did("drop", 5, 6)), SEALED),
    "a delete": (account(PUT, did("delete", 3, 4)), OPEN),
    "a put of an id used again": (account(did("delete", 1, 2), did("put", 3, 4)), Facts("absent")),
    "a put before a drop that did not match": (account(PUT, did("drop", 3, 4, "no")), Facts("retired")),
}
WRONG: dict[str, tuple[Account, Facts]] = {
    "an entry of nobody": (account(PUT), Facts("open", 2, "", {"c1": 0, "c2": 0})),
    "an entry with other content": (account(), Facts("open", 1, "", {"c1": None})),
    "an entry from before a delete": (account(PUT, did("delete", 3, 4), did("begin", 5, 6)), OPEN),
    "a refusal of nobody": (account(), Facts("open", 1, "", {}, {"c1": "code"})),
    "a freeze of nobody": (account(PUT), SEALED),
    "a fence of nobody": (account(PUT), Facts("retired")),
    "a mark of nobody": (account(PUT), Facts("open", 2, "", {"c1": 0}, {}, ("marked:c9",))),
    "damage without a power cut": (account(PUT), Facts("open", 2, "", {"c1": 0}, {}, ("damaged:5+6",))),
    "a torn state": (account(PUT), Facts("open", 2, "", {"c1": 0}, {}, ("state_lost",))),
    "an error": (account(PUT, did("put", 3, 4, "LockTimeoutError: ...")), OPEN),
    "a frozen rollout that nobody froze": (account(PUT, did("put", 3, 4, "frozen")), OPEN),
    "a conflict with nothing": (account(did("put", 1, 2, "conflict")), Facts("open", 1, "", {}, {}, ("conflict:c1",))),
}
RIGHT: dict[str, tuple[Account, Facts]] = {
    "an unanswered put that is there": (account(did("put", 1, 2, "unknown")), OPEN),
    "an unanswered put that is not": (account(did("put", 1, 2, "unknown")), Facts("absent")),
    "a put that a removal overlaps": (account(PUT, did("retire", 0, 1.5, "unknown")), Facts("retired")),
    "a delete that a put overlaps": (account(did("delete", 1, 3), did("put", 2, 4)), OPEN),
    "a mark after the freeze": (
        account(PUT, FROZEN, did("mark", 5, 6)), Facts("frozen", 3, "s", {"c1": 0}, {}, ("marked:c1",)),
    ),
    "a lost call": (
        account(PUT, did("begin", 1, 2, call="c2"), FROZEN), Facts("frozen", 2, "s", {"c1": 0}, {}, ("lost_call:c2",)),
    ),
    "a failed freeze that holds": (account(PUT, did("freeze", 3, 4, "failed")), SEALED),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_the_account_notices_what_is_lost(name: str) -> None:
    """Whatever was acknowledged, and cannot have been taken away, is lost if it is not there."""
    made, found = LOST[name]

    assert len(made.judge(found).lost) == 1


@pytest.mark.parametrize("name", WRONG)
def test_the_account_notices_what_is_wrong(name: str) -> None:
    """Whatever nobody can have asked for is wrong if it is there, or was said."""
    made, found = WRONG[name]

    assert made.judge(found).wrong


@pytest.mark.parametrize("name", RIGHT)
def test_the_account_allows_what_may_be(name: str) -> None:
    """What was not answered, or overlaps, may be there or not."""
    made, found = RIGHT[name]
    verdict = made.judge(found)

    assert (verdict.lost, verdict.wrong) == ([], [])
