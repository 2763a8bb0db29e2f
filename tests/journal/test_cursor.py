"""Entries are read one by one, in slices, with a fixed end, and a rollout that is not the same any more is noticed."""

from __future__ import annotations

import pytest

from tests.journal.workbench import TOKENS, Process, RecordingDisk, plant
from tests.samples import entry, line_of
from tokenstore.errors import TokenCaptureRetiredError
from tokenstore.journal import cursor as cursor_module
from tokenstore.journal.cursor import Cursor
from tokenstore.records import TokenEntry
from tokenstore.testing import SimulatedDisk, agent_rollout, shaped_rollout


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line fills a slice, so that a test sees each."""
    monkeypatch.setattr(cursor_module, "SLICE_BYTES", 1)


def rest(process: Process, cursor: Cursor) -> list[TokenEntry]:
    """Read to the end."""
    entries: list[TokenEntry] = []
    while part := process.journal.read_slice(cursor):
        entries += part
    return entries


@pytest.mark.parametrize("shape", ["branches", "append_only", "prefix_breaks", "edge_values"])
def test_gives_what_a_snapshot_gives(shape: str) -> None:
    """A slice holds a line, and all slices together hold the entries with whole prompts, in order."""
    disk = SimulatedDisk()
    made = shaped_rollout(shape, "r")
    Process(disk).put(*made)
    process = Process(disk)
    cursor = process.journal.open_cursor()

    first = process.journal.read_slice(cursor)

    assert first == made[:1]
    assert [*first, *rest(process, cursor)] == made
    assert process.journal.read_slice(cursor) == []


def test_the_end_is_fixed_at_the_first_slice() -> None:
    """What is put while somebody reads is not given."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"), entry("c1"))
    cursor = process.journal.open_cursor()
    process.put(entry("c2"))
    Process(disk).put(entry("c3"))

    assert [made.model_call_id for made in rest(process, cursor)] == ["c0", "c1"]


def test_nothing_is_held_between_slices() -> None:
    """Descriptors may be taken away between slices, and another process may write."""
    disk = SimulatedDisk()
    made = agent_rollout("r", turns=4, first_prompt=300)
    process = Process(disk)
    process.put(*made)
    cursor = process.journal.open_cursor()
    read = []
    for number in range(4):
        process.release()
        Process(disk).mark(f"m{number}")
        read += process.journal.read_slice(cursor)

    assert read == made


def test_a_cursor_goes_on_in_another_actor() -> None:
    """A journal that begins anew, because its actor had retired, reads on where the other had come to."""
    disk = SimulatedDisk()
    made = agent_rollout("r", turns=3, first_prompt=300)
    Process(disk).put(*made)
    first = Process(disk)
    cursor = first.journal.open_cursor()
    read = first.journal.read_slice(cursor)
    first.journal.close()

    assert [*read, *rest(Process(disk), cursor)] == made


def test_what_is_not_held_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cursor that may hold nothing of earlier prompts reads their lines again, also with another actor's files."""
    monkeypatch.setattr(cursor_module, "HELD_TOKENS", 0)
    disk = SimulatedDisk()
    made = shaped_rollout("branches", "r")
    Process(disk).put(*made)
    first = Process(disk)
    cursor = first.journal.open_cursor()
    read = [*first.journal.read_slice(cursor), *first.journal.read_slice(cursor)]
    first.journal.close()

    assert [*read, *rest(Process(disk), cursor)] == made


def test_damage_and_doubles_are_left_out() -> None:
    """Only entries that count are given, each call once."""
    lines = [line_of(entry(f"c{number}")) for number in range(3)]
    again = line_of(entry("c0"), checksum=False)
    process = Process(plant(SimulatedDisk(), [lines[0], b"{garbage", again, lines[1], b"[1]", lines[2]]))

    read = rest(process, process.journal.open_cursor())

    assert [made.model_call_id for made in read] == ["c0", "c1", "c2"]


def test_a_frozen_rollout_is_read_to_its_seal() -> None:
    """Bytes behind the seal are not given."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"))
    process.freeze()
    disk.write_file(TOKENS, disk.read_file(TOKENS) + line_of(entry("late")) + b"\n")

    assert rest(process, process.journal.open_cursor()) == [entry("c0")]


def test_a_retired_rollout_cannot_be_read() -> None:
    """Neither at the beginning nor between slices."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"), entry("c1"))
    cursor = process.journal.open_cursor()
    process.journal.read_slice(cursor)
    Process(disk).retire()

    with pytest.raises(TokenCaptureRetiredError):
        process.journal.read_slice(cursor)
    with pytest.raises(TokenCaptureRetiredError):
        process.journal.open_cursor()


@pytest.mark.parametrize("made_anew", [[], [entry("new")], [entry("c1"), entry("c0")]])
def test_a_rollout_made_anew_is_another_one(made_anew: list[TokenEntry]) -> None:
    """If the rollout was deleted meanwhile, and perhaps made anew, reading on raises, whatever is there now."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"), entry("c1", prompt_token_ids=[7]))
    cursor = process.journal.open_cursor()
    process.journal.read_slice(cursor)
    other = Process(disk)
    other.delete()
    if made_anew:
        other.put(*made_anew)

    with pytest.raises(TokenCaptureRetiredError):
        process.journal.read_slice(cursor)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_rollout_made_anew_with_the_same_beginning_is_another_one(frozen: bool) -> None:
    """If the new file has the old one's number and all that was read of it, reading on raises all the same."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"), entry("c1", prompt_token_ids=[7]))
    cursor = process.journal.open_cursor()
    process.journal.read_slice(cursor)
    process.release()
    other = Process(disk)
    other.delete()
    other.put(entry("c0"), entry("c1"), entry("c2"))
    if frozen:
        other.freeze()

    with pytest.raises(TokenCaptureRetiredError):
        process.journal.read_slice(cursor)


def test_a_rollout_frozen_meanwhile_is_read_on() -> None:
    """A freeze between two slices changes nothing for who reads."""
    process = Process(SimulatedDisk())
    process.put(entry("c0"), entry("c1"))
    cursor = process.journal.open_cursor()
    first = process.journal.read_slice(cursor)
    process.freeze()

    assert [*first, *rest(process, cursor)] == [entry("c0"), entry("c1")]


def test_an_empty_rollout_has_no_entries() -> None:
    """There is nothing to read in a rollout that nobody knows, and nothing is made by trying."""
    disk = RecordingDisk(SimulatedDisk())
    process = Process(disk)

    assert rest(process, process.journal.open_cursor()) == []
    assert disk.take() == []
