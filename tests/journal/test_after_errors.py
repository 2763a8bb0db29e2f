"""After a call that failed once, a process knows neither more nor less than the disk says."""

from __future__ import annotations

import errno

import pytest

from tests.journal.workbench import NAMES, STATE, Process, calls, plant
from tests.samples import entry, line_of
from tokenstore.errors import ConflictingEntryError, DurabilityError, TokenCaptureFrozenError
from tokenstore.journal.journal import Journal
from tokenstore.journal.statefile import parse_state
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, SimulatedDisk

FIRST, SECOND = entry("c0"), entry("c1")
OTHER = entry("c0", generation_token_ids=[5, 4])
"""The first call with another content of the same length."""


@pytest.fixture
def disk() -> FailingDisk:
    """A disk on which nothing fails yet."""
    return FailingDisk(SimulatedDisk())


@pytest.fixture
def mine(disk: FailingDisk) -> Process:
    """A process on the failing disk that has put one call."""
    process = Process(disk)
    process.put(FIRST)
    return process


@pytest.fixture
def theirs(disk: FailingDisk) -> Process:
    """Another process, whose calls do not fail."""
    return Process(disk.inner)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(call="read", name_suffix=NAMES.state),
        Fault(call="file_stat", name_suffix=NAMES.state),
        Fault(call="open", name_suffix=NAMES.state, errno=errno.EMFILE),
        Fault(call="stat", name_suffix=NAMES.tokens),
        Fault(call="stat", name_suffix=NAMES.marker),
    ],
    ids=lambda fault: f"{fault.call} {fault.name_suffix}",
)
def test_a_freeze_is_not_overlooked(disk: FailingDisk, mine: Process, theirs: Process, fault: Fault) -> None:
    """A freeze by another process that could not be read at first, or not with all else, is read the next time."""
    theirs.freeze()
    disk.fault = fault

    with pytest.raises(DurabilityError):
        mine.put(SECOND)
    with pytest.raises(TokenCaptureFrozenError):
        mine.put(SECOND)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(call="open", name_suffix=NAMES.tokens, errno=errno.EMFILE),
        Fault(call="file_stat", name_suffix=NAMES.tokens),
        Fault(call="read", name_suffix=NAMES.tokens),
    ],
    ids=lambda fault: str(fault.call),
)
@pytest.mark.parametrize("released", [False, True])
def test_a_rollout_made_anew_is_noticed(
    disk: FailingDisk, mine: Process, theirs: Process, fault: Fault, released: bool
) -> None:
    """A file that took the place of the known one is a new one, also if looking at it failed at first."""
    if released:
        mine.release()  # The new file may then have the old one's inode number.
    theirs.delete()
    theirs.put(OTHER)
    disk.fault = fault

    with pytest.raises(DurabilityError):
        mine.put(FIRST)
    with pytest.raises(ConflictingEntryError):
        mine.put(FIRST)


def test_two_lines_of_one_call_are_judged_in_the_end() -> None:
    """A call that another library wrote twice with different content is a conflict, if not at the first reading."""
    lines = [line_of(FIRST, checksum=False), line_of(OTHER, checksum=False)]
    disk = FailingDisk(plant(SimulatedDisk(), lines), Fault(call="read", at=2, name_suffix=NAMES.tokens))
    process = Process(disk)

    with pytest.raises(DurabilityError):
        process.peek()
    assert process.peek().incomplete_reasons == ("conflict:c0",)


def test_an_error_of_closing_says_nothing(disk: FailingDisk, mine: Process, theirs: Process) -> None:
    """What was acknowledged was synced before, so a descriptor that does not close well bothers nobody."""
    disk.fault = Fault(call="close", repeat=True)
    mine.release()
    theirs.delete()
    mine.put(SECOND)
    mine.freeze()
    mine.journal.close()

    assert calls(theirs.peek()) == ["c1"]


def test_a_put_after_a_look_at_others_intents(mine: Process, theirs: Process) -> None:
    """A put does not write to a file that only a reader of its process has opened."""
    theirs.begin("c1")
    mine.peek()
    mine.put(SECOND)

    assert not mine.journal.poisoned
    assert calls(theirs.peek()) == ["c0", "c1"]


def test_prompts_of_an_earlier_actor_are_not_trusted(theirs: Process, disk: FailingDisk) -> None:
    """A base that the rollout's last actor had put is named only if it is still there."""
    first = entry("t1", prompt_token_ids=list(range(300)))
    second = entry("t2", prompt_token_ids=[*first.prompt_token_ids, *first.generation_token_ids, 9])
    mine = Process(disk)
    mine.put(first)
    mine.journal.close()
    theirs.delete()
    mine.journal = Journal(mine.root, "r")
    mine.put(second)

    assert mine.freeze().entries == (second,)


def test_a_mark_of_an_open_rollout_alone_rests_on_a_durable_freeze(disk: FailingDisk, mine: Process) -> None:
    """Who leaves a frozen rollout unmarked has made sure that it stays frozen."""
    disk.fault = Fault(call="directory_sync", repeat=True)

    with pytest.raises(DurabilityError):
        mine.freeze()
    with pytest.raises(DurabilityError):
        mine.journal.mark("c1", only_if_open=True)
    disk.fault = None
    mine.journal.mark("c1", only_if_open=True)
    assert isinstance(disk.inner, SimulatedDisk)
    left = disk.inner.after_crash(PersistencePolicy.SYNCED)
    assert parse_state(left.read_file(STATE)).frozen


def test_a_file_made_anew_with_the_same_bytes_is_synced_again(disk: FailingDisk, mine: Process) -> None:
    """A file that looks like the one whose descriptor was given away may lack its name, or its bytes, after a crash."""
    mine.release()
    other = FailingDisk(disk.inner)
    theirs = Process(other)
    theirs.delete()
    other.fault = Fault(call="directory_sync", repeat=True)
    with pytest.raises(DurabilityError):
        theirs.put(FIRST)

    mine.put(SECOND)
    assert isinstance(disk.inner, SimulatedDisk)
    left = disk.inner.after_crash(PersistencePolicy.SYNCED)
    assert calls(Process(left).peek()) == ["c0", "c1"]


def test_what_was_seen_without_a_lock_is_looked_at_again() -> None:
    """Lines that a reader saw before there was a lock file may have been cut off by the writer who made it."""
    disk = SimulatedDisk()
    mine = Process(FailingDisk(disk, Fault(call="open", errno=errno.ENOENT, name_suffix=NAMES.lock)))
    theirs = Process(FailingDisk(disk, Fault(call="datasync", name_suffix=NAMES.tokens)))
    seen: list[list[str]] = []

    def look_before_the_cut(label: str) -> None:
        if label == f"truncate {NAMES.tokens}":
            seen.append(calls(mine.peek()))

    disk.before_step = look_before_the_cut
    with pytest.raises(DurabilityError):
        theirs.put(FIRST)
    theirs.put(entry("c1", model="a longer line than the one before"))
    mine.put(FIRST)

    assert seen == [["c0"]]
    assert calls(Process(disk).peek()) == ["c1", "c0"]
