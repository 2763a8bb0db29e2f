"""Whatever other writers or a crash have left, a section takes it in, and every process comes to the same facts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.journal.workbench import NAMES, ROOT, STATE, TOKENS, Process, calls, plant
from tests.samples import entry, line_of
from tokenstore.errors import ConflictingEntryError
from tokenstore.journal.statefile import parse_state
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import SimulatedDisk

ENTRIES = [entry(f"c{number}", prompt_token_ids=[number]) for number in range(4)]
OURS = [line_of(made) for made in ENTRIES]
THEIRS = [line_of(made, checksum=False) for made in ENTRIES]
SPELT = THEIRS[0].replace(b"-0.5,", b"-5e-1,")
"""The first entry as a library writes it that spells floats in another way."""
CHANGED = line_of(entry("c0", prompt_token_ids=[99]), checksum=False)
"""Another content of the first call."""


def looked_at(disk: SimulatedDisk, *, twice: bool = True) -> TokenCaptureSnapshot:
    """Peek at a rollout as a reader, then as a process that has written down what it found, and find no difference."""
    reader = Process(disk).peek()
    writer = Process(disk)
    with writer.journal._files.exclusive():
        writer.journal._files.settle()
    assert writer.peek() == reader
    if twice:
        once = disk.files(ROOT)
        with Process(disk).journal._files.exclusive():
            pass
        assert disk.files(ROOT) == once
        assert Process(disk).peek() == reader
    return reader


@pytest.mark.parametrize("lines", [OURS, THEIRS, [*OURS[:2], *THEIRS[2:]]], ids=["ours", "theirs", "both"])
def test_lines_of_any_writer_are_taken_in(lines: Sequence[bytes]) -> None:
    """Lines with and without checksum are entries, and each call counts once."""
    snapshot = looked_at(plant(SimulatedDisk(), lines))

    assert list(snapshot.entries) == ENTRIES
    assert (snapshot.version, snapshot.incomplete_reasons) == (4, ())


def test_a_lagging_state_is_added_to() -> None:
    """A state that covers some lines is the beginning: calls behind it count on from its version."""
    disk = plant(SimulatedDisk(), OURS[:2])
    Process(disk).mark("m")
    disk.write_file(TOKENS, b"\n".join([*OURS, b""]))

    snapshot = looked_at(disk)

    assert (snapshot.version, calls(snapshot)) == (5, ["c0", "c1", "c2", "c3"])
    assert parse_state(disk.read_file(STATE)).version == 3


def test_two_processes_that_write_in_turns_agree() -> None:
    """Each sees what the other wrote before it answers, whatever it knew."""
    disk = SimulatedDisk()
    first, second = Process(disk), Process(disk)
    first.put(ENTRIES[0])
    second.put(ENTRIES[1])
    first.put(ENTRIES[1])
    with pytest.raises(ConflictingEntryError):
        second.put(entry("c0", prompt_token_ids=[99]))
    first.refuse("c2")
    second.refuse("c2")
    assert first.peek() == second.peek()
    snapshot = second.freeze()

    assert first.freeze() == snapshot
    assert calls(snapshot) == ["c0", "c1"]
    assert (snapshot.version, snapshot.incomplete_reasons) == (5, ("conflict:c0",))


class TestDoubles:
    """A call that two writers wrote."""

    @pytest.mark.parametrize("lines", [[OURS[0], THEIRS[0]], [THEIRS[0], SPELT], [THEIRS[0]] * 3])
    def test_the_same_content_is_one_entry(self, lines: list[bytes]) -> None:
        """Lines of one call that mean the same are one entry, whatever their bytes."""
        snapshot = looked_at(plant(SimulatedDisk(), [*lines, OURS[1]]))

        assert list(snapshot.entries) == ENTRIES[:2]
        assert (snapshot.version, snapshot.incomplete_reasons) == (2, ())

    @pytest.mark.parametrize("lines", [[OURS[0], CHANGED], [OURS[0], THEIRS[0], CHANGED, CHANGED]])
    def test_other_content_is_a_conflict(self, lines: list[bytes]) -> None:
        """Of lines that mean different things the first counts, and the call is a conflict, marked and counted once."""
        disk = plant(SimulatedDisk(), [*lines, OURS[1]])

        snapshot = looked_at(disk)

        assert list(snapshot.entries) == ENTRIES[:2]
        assert (snapshot.version, snapshot.incomplete_reasons) == (3, ("conflict:c0",))
        assert disk.read_file(ROOT / NAMES.marker) == b"c0\n"

    def test_a_marked_call_that_conflicts_counts_once(self) -> None:
        """A conflict found in the file, of a call that was marked before, adds its name alone."""
        disk = plant(SimulatedDisk(), OURS[:1])
        Process(disk).mark("c0")
        disk.write_file(TOKENS, b"\n".join([OURS[0], CHANGED, b""]))

        snapshot = looked_at(disk)

        assert (snapshot.version, snapshot.incomplete_reasons) == (2, ("conflict:c0",))
        assert disk.read_file(ROOT / NAMES.marker) == b"c0\n"


class TestTails:
    """How a file may end."""

    def test_a_whole_line_gets_its_newline(self) -> None:
        """A writer ends a line that lacks only its newline; a reader that nobody has indexed waits for it."""
        disk = plant(SimulatedDisk(), OURS[:1], end=OURS[1])
        assert calls(Process(disk).peek()) == ["c0"]
        Process(disk).put(ENTRIES[2])

        assert disk.read_file(TOKENS) == b"\n".join([*OURS[:3], b""])
        assert calls(looked_at(disk)) == ["c0", "c1", "c2"]

    @pytest.mark.parametrize("tail", [b"{", OURS[1][:40], b"\0" * 4096, OURS[1][:-1], b"\xff", b"7"])
    def test_a_fragment_goes(self, tail: bytes) -> None:
        """What was never acknowledged is cut off by a writer, passed over by a reader, and masks nothing."""
        disk = plant(SimulatedDisk(), OURS[:1], end=tail)
        assert calls(Process(disk).peek()) == ["c0"]
        Process(disk).put(ENTRIES[2])

        snapshot = looked_at(disk)
        assert disk.read_file(TOKENS) == b"\n".join([OURS[0], OURS[2], b""])
        assert (calls(snapshot), snapshot.version, snapshot.incomplete) == (["c0", "c2"], 2, False)

    def test_an_indexed_line_without_its_newline_is_read(self) -> None:
        """A reader gives an acknowledged line whose newline was lost; a writer puts it back; nothing is masked."""
        disk = SimulatedDisk()
        Process(disk).put(*ENTRIES[:2])
        Process(disk).refuse("x")
        data = disk.read_file(TOKENS)
        disk.write_file(TOKENS, data[:-1])

        snapshot = looked_at(disk)

        assert (calls(snapshot), snapshot.version, snapshot.incomplete) == (["c0", "c1"], 3, False)
        assert disk.read_file(TOKENS) == data

    def test_an_indexed_line_that_ends_too_early_is_lost(self) -> None:
        """Acknowledged bytes that are gone are damage, and what is left is given."""
        disk = SimulatedDisk()
        Process(disk).put(*ENTRIES[:2])
        Process(disk).refuse("x")
        data = disk.read_file(TOKENS)
        disk.write_file(TOKENS, data[:-2])

        snapshot = looked_at(disk)
        start = len(OURS[0]) + 1

        assert (calls(snapshot), snapshot.version) == (["c0"], 4)
        assert snapshot.incomplete_reasons == (f"damaged:{start}+{len(data) - start}",)
