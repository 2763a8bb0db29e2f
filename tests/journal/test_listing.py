"""A listing shows each rollout once, as its files are, without locks and without changing anything."""

from __future__ import annotations

import pytest

from tests.journal.workbench import MARKER, NAMES, ROOT, STATE, TOKENS, Process, RecordingDisk, plant
from tests.samples import entry, line_of
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.journal.lifecycle import State
from tokenstore.journal.listing import list_rollouts
from tokenstore.journal.statefile import render_state
from tokenstore.records import RolloutStatus
from tokenstore.testing import SimulatedDisk

LINES = [line_of(entry(f"c{number}")) for number in range(3)]
SIZE = sum(len(line) + 1 for line in LINES)


def listed(disk: SimulatedDisk | RecordingDisk) -> list[RolloutStatus]:
    """List the rollouts of a disk, in the order of their ids."""
    return sorted(list_rollouts(disk.open_root(ROOT)), key=lambda status: status.rollout_id)


def the_one(disk: SimulatedDisk) -> RolloutStatus:
    """List a disk that has one rollout."""
    (status,) = listed(disk)
    return status


def test_an_empty_directory_has_none() -> None:
    """Where nothing is, nothing is listed, and files of others are passed over."""
    disk = SimulatedDisk()
    assert listed(disk) == []
    for name in ("README", ".hidden", TEMPORARY_PREFIX + "00000000", NAMES.lock, "é.tokens.jsonl"):
        disk.write_file(ROOT / name, b"x")

    assert listed(disk) == []


@pytest.mark.parametrize("file", ["tokens", "state", "intents", "marker"])
def test_any_evidence_makes_a_rollout(file: str) -> None:
    """One of the four files is enough to be listed, and all four are one rollout."""
    disk = SimulatedDisk()
    disk.write_file(ROOT / getattr(NAMES, file), b"")
    assert the_one(disk).rollout_id == "r"
    for name in NAMES.evidence:
        disk.write_file(ROOT / name, b"")

    assert the_one(disk).rollout_id == "r"


def test_an_open_rollout_without_a_state_counts_its_lines() -> None:
    """Calls are the lines of the file, bytes its size, and an unterminated end is no line."""
    disk = plant(SimulatedDisk(), LINES, end=b"{torn")

    status = the_one(disk)

    assert (status.state, status.incomplete, status.calls, status.bytes) == ("open", False, 3, SIZE + 5)


def test_an_indexed_rollout_counts_the_rest() -> None:
    """Where a state covers some lines, only those behind are looked at."""
    disk = plant(SimulatedDisk(), LINES)
    state = State(entry_digests={"a": "", "b": ""}, indexed_size=len(LINES[0]) + len(LINES[1]) + 2)
    disk.write_file(STATE, render_state(state))

    assert the_one(disk).calls == 3


def test_an_older_state_covers_nothing_by_name() -> None:
    """A state without an index has its lines counted, frozen or not."""
    disk = plant(SimulatedDisk(), LINES)
    disk.write_file(STATE, b'{"frozen":true,"version":4}')

    assert (the_one(disk).state, the_one(disk).calls) == ("frozen", 3)


def test_frozen_and_retired_rollouts_say_so() -> None:
    """A frozen rollout shows what was sealed, whatever came after; a retired one its fence alone."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"), entry("c1"))
    process.freeze()
    size = len(disk.read_file(TOKENS))
    disk.write_file(TOKENS, disk.read_file(TOKENS) + LINES[2] + b"\n")
    assert (the_one(disk).state, the_one(disk).calls) == ("frozen", 2)
    assert the_one(disk).bytes > size
    process.retire()

    status = the_one(disk)
    assert (status.state, status.calls, status.bytes) == ("retired", 0, 0)


def test_marks_and_lost_states_are_incomplete() -> None:
    """A marker, a state that says so, or one that cannot be read show as incomplete; calls in flight do not."""
    process = Process(disk := SimulatedDisk())
    process.begin("c0")
    assert not the_one(disk).incomplete
    disk.write_file(MARKER, b"")
    assert the_one(disk).incomplete
    disk.open_root(ROOT).unlink(NAMES.marker)
    for state in (b"", b"\0" * 64, render_state(State(incomplete=True))):
        disk.write_file(STATE, state)
        assert the_one(disk).incomplete


def test_age_is_by_the_clock_of_the_file_system() -> None:
    """A rollout is as old as the latest change of its files, against the time that the file system has now."""
    disk = plant(SimulatedDisk(), LINES)
    disk.now_ns += 60 * 10**9
    disk.write_file(MARKER, b"")
    disk.now_ns += 5 * 10**9
    assert the_one(disk).age == pytest.approx(5.0)
    disk.now_ns -= 1000 * 10**9

    assert the_one(disk).age == 0.0


def test_many_rollouts_are_listed_once_each() -> None:
    """Each rollout of a directory appears once, whatever files it has."""
    disk = SimulatedDisk()
    for number in range(50):
        for file in NAMES.evidence[: number % 4 + 1]:
            disk.write_file(ROOT / file.replace("r.", f"r{number:02d}.", 1), b"")

    assert [status.rollout_id for status in listed(disk)] == [f"r{number:02d}" for number in range(50)]


def test_a_rollout_removed_meanwhile_is_passed_over() -> None:
    """What goes while the listing runs is not shown, and does not end it."""
    disk = SimulatedDisk()
    for rollout in "abc":
        disk.write_file(ROOT / Names.of(rollout).tokens, LINES[0] + b"\n")
    root = disk.open_root(ROOT)
    listing = list_rollouts(root)
    first = next(listing)
    for rollout in "abc":
        root.unlink(Names.of(rollout).tokens)

    assert first.calls == 1
    assert list(listing) == []


def test_listing_changes_nothing() -> None:
    """No file is made, written, synced or locked."""
    simulated = plant(SimulatedDisk(), LINES, end=b"{torn")
    before = simulated.files(ROOT)
    lock = simulated.open_root(ROOT).open(NAMES.lock, "create")
    assert lock.lock(exclusive=True)
    disk = RecordingDisk(simulated)

    assert len(listed(disk)) == 1
    assert disk.take() == []
    assert simulated.files(ROOT) == {**before, NAMES.lock: b""}
