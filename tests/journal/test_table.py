"""The lifecycle table of the contract, line by line: what an event does to an open, frozen or retired rollout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import attrs
import pytest

from tests.journal.workbench import NAMES, ROOT, STATE, Process, calls
from tests.samples import entry
from tokenstore.errors import ConflictingEntryError, TokenCaptureFrozenError, TokenCaptureRetiredError
from tokenstore.journal.statefile import parse_state
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import SimulatedDisk

STATES = ("open", "frozen", "retired")
FROZEN, RETIRED, CONFLICT = TokenCaptureFrozenError, TokenCaptureRetiredError, ConflictingEntryError
LATE = (FROZEN, RETIRED)
PAIR: list[TokenCaptureSnapshot] = []
"""The snapshot of the rollout that a case works on."""


class Case(NamedTuple):
    """An event, and for each state what comes of it: None or an answer, or an error; and how far the version moves."""

    do: Callable[[Process], Any]
    open: Any = None
    open_version: int = 0
    frozen: Any = None
    frozen_version: int = 0
    retired: Any = RETIRED
    reasons: tuple[str, ...] = ()
    """Why the rollout is incomplete after it, where it moved the version of an open one by more than a call."""


def drop(process: Process, *, snapshot_id: str | None = None, version: int | None = None) -> bool:
    """Drop the rollout with the pair of its freeze, or with another one."""
    pair = PAIR[0]
    return process.drop(snapshot_id or pair.snapshot_id, pair.version if version is None else version)


def twice(do: Callable[[Process], Any]) -> Callable[[Process], Any]:
    """Do something once, whatever comes of it, and then again."""

    def done(process: Process) -> Any:
        with suppress(FROZEN, CONFLICT):
            do(process)
        return do(process)

    return done


OTHER = entry("put", prompt_token_ids=[7])

CASES: dict[str, Case] = {
    "begin a new call": Case(lambda p: p.begin("new"), frozen=FROZEN),
    "begin a begun call": Case(lambda p: p.begin("begun"), frozen=FROZEN),
    "begin a call with an entry": Case(lambda p: p.begin("put"), frozen=FROZEN),
    "begin a refused call": Case(lambda p: p.begin("refused"), frozen=FROZEN),
    "put a new call": Case(lambda p: p.put(entry("new")), open_version=1, frozen=FROZEN),
    "put a begun call": Case(lambda p: p.put(entry("begun")), open_version=1, frozen=FROZEN),
    "put a new call twice": Case(twice(lambda p: p.put(entry("new"))), open_version=1, frozen=FROZEN),
    "put the same again": Case(lambda p: p.put(entry("put", created_at=9.0))),
    "put other content": Case(
        lambda p: p.put(OTHER), open=CONFLICT, open_version=1, frozen=FROZEN, reasons=("conflict:put",)
    ),
    "put other content twice": Case(
        twice(lambda p: p.put(OTHER)), open=CONFLICT, open_version=1, frozen=FROZEN, reasons=("conflict:put",)
    ),
    "put a refused call": Case(
        lambda p: p.put(entry("refused")), open=CONFLICT, open_version=1, frozen=FROZEN, reasons=("conflict:refused",)
    ),
    "refuse a new call": Case(lambda p: p.refuse("new"), open_version=1, frozen=FROZEN),
    "refuse a begun call": Case(lambda p: p.refuse("begun"), open_version=1, frozen=FROZEN),
    "refuse a new call twice": Case(twice(lambda p: p.refuse("new")), open_version=1, frozen=FROZEN),
    "refuse the same again": Case(lambda p: p.refuse("refused", "x")),
    "refuse with another code": Case(lambda p: p.refuse("refused", "y"), open=CONFLICT, frozen=FROZEN),
    "refuse with no code": Case(lambda p: p.refuse("refused", None), open=CONFLICT, frozen=FROZEN),
    "refuse a call with an entry": Case(
        lambda p: p.refuse("put"), open=CONFLICT, open_version=1, frozen=FROZEN, reasons=("conflict:put",)
    ),
    "refuse a call with an entry twice": Case(
        twice(lambda p: p.refuse("put")), open=CONFLICT, open_version=1, frozen=FROZEN, reasons=("conflict:put",)
    ),
    "mark a call": Case(lambda p: p.mark("new"), open_version=1, frozen_version=1, reasons=("marked:new",)),
    "mark a call twice": Case(
        twice(lambda p: p.mark("new")), open_version=1, frozen_version=1, reasons=("marked:new",)
    ),
    "mark no call": Case(lambda p: p.mark(), open_version=1, frozen_version=1, reasons=("marked:",)),
    "mark a call with an entry": Case(
        lambda p: p.mark("put"), open_version=1, frozen_version=1, reasons=("marked:put",)
    ),
    "mark if open": Case(
        lambda p: p.journal.mark("new", only_if_open=True), open_version=1, retired=None, reasons=("marked:new",)
    ),
    "drop with the pair": Case(drop, open=False, frozen=True, retired=True),
    "drop with another version": Case(lambda p: drop(p, version=99), open=False, frozen=False, retired=False),
    "drop with another id": Case(lambda p: drop(p, snapshot_id="x"), open=False, frozen=False, retired=False),
    "peek": Case(lambda p: calls(p.peek()), open=["put"], frozen=["put"]),
    "read one by one": Case(
        lambda p: [e.model_call_id for e in p.journal.read_slice(p.journal.open_cursor())], open=["put"], frozen=["put"]
    ),
    "is incomplete": Case(lambda p: p.journal.is_incomplete(), open=False, frozen=True, retired=True),
}


UNCHANGED = [
    (name, state)
    for name, case in CASES.items()
    for state in STATES
    if not getattr(case, f"{state}_version", 0)
    and (name, state) not in {("begin a new call", "open"), ("drop with the pair", "frozen")}
]
"""Where nothing is written: all that does not move the version, but for an intent and a fence."""


def prepared(state: str) -> tuple[SimulatedDisk, Process]:
    """Bring a rollout into a state: one call put, one refused, one only begun."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.begin("put", "refused", "begun")
    process.put(entry("put"))
    process.refuse("refused", "x")
    PAIR[:] = [process.freeze() if state != "open" else process.peek()]
    if state == "retired":
        process.retire()
    return disk, process


def version_of(disk: SimulatedDisk) -> int:
    """Tell the version as a new process sees it: of a fence, what its state says."""
    state = parse_state(disk.read_file(STATE))
    return state.version if state.retired else Process(disk).peek().version


def do(process: Process, case: Case, expected: Any) -> None:
    """Do what a case does and look at its answer."""
    if isinstance(expected, type) and issubclass(expected, Exception):
        with pytest.raises(expected) as raised:
            case.do(process)
        assert raised.type is expected
    else:
        assert case.do(process) == expected


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "another process"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_line_of_the_table(case: Case, state: str, fresh: bool) -> None:
    """An event gives the answer of the table and moves the version as it says, for every process alike."""
    disk, process = prepared(state)
    if fresh:
        process = Process(disk)
    before = version_of(disk)

    do(process, case, getattr(case, state))

    moved = {"open": case.open_version, "frozen": case.frozen_version, "retired": 0}[state]
    assert version_of(disk) == before + moved
    if state != "retired" and not parse_state(disk.read_file(STATE)).retired:
        snapshot = process.peek()
        assert attrs.evolve(snapshot, entries=()) == attrs.evolve(Process(disk).peek(), entries=())
        assert snapshot.incomplete_reasons == (("lost_call:begun",) * (state == "frozen") + case.reasons * bool(moved))


@pytest.mark.parametrize(("name", "state"), UNCHANGED)
def test_what_changes_nothing_leaves_the_files_alone(name: str, state: str) -> None:
    """An event that the table calls a no-op, too late or false leaves every file byte for byte as it was."""
    disk, process = prepared(state)
    before = disk.files(ROOT)

    do(process, CASES[name], getattr(CASES[name], state))

    assert disk.files(ROOT) == before


class TestFreezing:
    """The line of freeze, which answers with a snapshot."""

    def test_freeze_of_an_open_rollout(self) -> None:
        """Freezing makes a new id, moves the version by one, and gives what is there."""
        disk, process = prepared("open")
        before = process.peek()

        snapshot = process.freeze()

        assert snapshot.version == before.version + 1
        assert (len(snapshot.snapshot_id), before.snapshot_id) == (32, "")
        assert (calls(snapshot), [refusal.model_call_id for refusal in snapshot.refusals]) == (["put"], ["refused"])
        assert (snapshot.frozen, before.frozen) == (True, False)
        assert (before.open_calls, snapshot.open_calls) == (("begun",), ())
        assert (before.incomplete_reasons, snapshot.incomplete_reasons) == ((), ("lost_call:begun",))
        assert parse_state(disk.read_file(STATE)).version == snapshot.version

    def test_freeze_of_a_frozen_rollout(self) -> None:
        """Freezing again gives the same snapshot, in any process, and changes nothing."""
        disk, process = prepared("frozen")
        before = disk.files(ROOT)

        assert process.freeze() == PAIR[0]
        assert Process(disk).freeze() == PAIR[0]
        assert Process(disk).peek() == PAIR[0]
        assert disk.files(ROOT) == before

    def test_freeze_of_a_retired_rollout(self) -> None:
        """A retired rollout cannot be frozen."""
        _, process = prepared("retired")

        with pytest.raises(RETIRED):
            process.freeze()

    def test_freeze_of_an_unknown_rollout(self) -> None:
        """An id never seen freezes empty and complete, version 1; peeking at it is version 0 and makes nothing."""
        disk = SimulatedDisk()
        peeked = Process(disk).peek()
        assert disk.files(ROOT) == {}
        snapshot = Process(disk).freeze()

        assert (peeked.version, peeked.snapshot_id, peeked.frozen, peeked.incomplete) == (0, "", False, False)
        assert (snapshot.version, snapshot.entries, snapshot.frozen, snapshot.incomplete) == (1, (), True, False)
        with pytest.raises(FROZEN):
            Process(disk).put(entry("late"))


class TestRemoving:
    """The lines of retire and delete, which work in steps."""

    @pytest.mark.parametrize("state", STATES)
    def test_retire_leaves_a_fence(self, state: str) -> None:
        """Whatever the state, the records go and the fence keeps what it said; again there is nothing to remove."""
        disk, process = prepared(state)
        before = parse_state(disk.read_file(STATE))

        assert process.retire() is (state != "retired")
        assert process.retire() is False
        after = parse_state(disk.read_file(STATE))
        assert disk.files(ROOT).keys() == {NAMES.state, NAMES.lock}
        assert after == before.fence()

    @pytest.mark.parametrize("state", STATES)
    def test_delete_frees_the_id(self, state: str) -> None:
        """Whatever the state, nothing is left, and the id starts empty."""
        disk, process = prepared(state)

        assert process.delete() is (state != "retired")
        assert disk.files(ROOT) == {}
        process.put(entry("new"))
        assert calls(process.peek()) == ["new"]
        assert process.peek().version == 1

    def test_an_unknown_rollout_is_fenced_too(self) -> None:
        """Retiring an id never seen keeps late writes out; there were no records."""
        disk = SimulatedDisk()
        process = Process(disk)

        assert process.retire() is False
        with pytest.raises(RETIRED):
            process.put(entry("late"))
        assert disk.files(ROOT).keys() == {NAMES.state, NAMES.lock}
