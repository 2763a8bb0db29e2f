"""A file of lines: what was appended is on the disk, and what another process left unsynced is written again."""

from __future__ import annotations

import pytest

from tests.journal.workbench import NAMES, ROOT, TOKENS, Recorded, RecordingDisk
from tokenstore.config import StoreConfig
from tokenstore.journal import logfile
from tokenstore.journal.disk import Disk
from tokenstore.journal.logfile import CHUNK, LogFile
from tokenstore.journal.root import Root
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, SimulatedDisk

NAME = NAMES.tokens
SYNCED = PersistencePolicy.SYNCED


def logfile_on(disk: Disk) -> LogFile:
    """Open the rollout's lines on a disk."""
    return LogFile(Root(disk.open_root(ROOT), StoreConfig()), NAME)


def caught_up(disk: Disk) -> LogFile:
    """Open the rollout's lines and take all as known, as a section does."""
    file = logfile_on(disk)
    file.refresh()
    file.extend(file.end)
    return file


def writes(record: list[Recorded]) -> list[tuple[int, bytes]]:
    """What was written, neighbouring writes together."""
    joined: list[tuple[int, bytes]] = []
    for made in record:
        if made.call == "write":
            if joined and joined[-1][0] + len(joined[-1][1]) == made.offset:
                joined[-1] = joined[-1][0], joined[-1][1] + made.data
            else:
                joined.append((made.offset, made.data))
    return joined


class TestAppending:
    """Whole lines go to the end, durably."""

    def test_one_write_and_one_sync(self) -> None:
        """The first append makes the file and syncs its name; a later one is a write and a datasync."""
        disk = RecordingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file.refresh()
        file.append(b"a\n")
        first = disk.take_calls()
        file.refresh()
        file.append(b"b\n")

        assert first == [f"create {NAME}", f"write {NAME}", f"datasync {NAME}", "sync directory"]
        assert disk.take() == [Recorded("write", NAME, 2, b"b\n"), Recorded("datasync", NAME)]
        assert (file.size, file.end) == (4, 4)
        assert not file.unsynced

    def test_what_was_appended_survives_a_power_cut(self) -> None:
        """When append returns, lines and name are durable, and nothing of later appends is needed."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        for number in range(3):
            file.refresh()
            file.append(b"%d\n" % number)
            assert disk.after_crash(SYNCED).read_file(TOKENS).count(b"\n") == number + 1

    def test_short_writes_are_gone_on_with(self) -> None:
        """However few bytes go in at once, all do."""
        simulated = SimulatedDisk()
        file = logfile_on(FailingDisk(simulated, Fault(call="write", short=1, repeat=True)))
        file.append(b"abc\n")

        assert simulated.read_file(TOKENS) == b"abc\n"

    def test_settling_what_is_settled_does_nothing(self) -> None:
        """A file of which everything is durable by this process is not synced again."""
        disk = RecordingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file.append(b"a\n")
        disk.take()
        file.refresh()
        file.settle()

        assert disk.take() == []

    def test_a_file_that_is_not_there_is_not_made_by_settling(self) -> None:
        """There is nothing to settle where nothing is."""
        disk = RecordingDisk(SimulatedDisk())
        file = logfile_on(disk)
        assert file.refresh()
        file.settle()
        file.complete_line()
        file.cut(0)
        file.release()

        assert disk.take() == []
        assert (file.is_open, file.unsynced, file.read(0, 9)) == (False, False, b"")


class TestRewriting:
    """Bytes that this process did not sync may sit in pages that lie, so they are written again."""

    def test_lines_of_others_are_written_again(self) -> None:
        """Before the first ack everything found is rewritten in place with its own bytes, together with the append."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"a\nbb\n", synced=False)
        disk = RecordingDisk(simulated)
        file = caught_up(disk)
        assert file.unsynced
        file.append(b"c\n")
        record = disk.take()

        assert writes(record) == [(0, b"a\nbb\nc\n")]
        assert [made.call for made in record].count("datasync") == 1
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\nbb\nc\n"

    def test_settling_writes_them_again_too(self) -> None:
        """An ack that only found something rewrites and syncs it, once."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"a\nbb\n", synced=False)
        disk = RecordingDisk(simulated)
        file = caught_up(disk)
        file.settle()
        record = disk.take()
        file.settle()

        assert writes(record) == [(0, b"a\nbb\n")]
        assert [made.call for made in record][-2:] == ["datasync", "sync directory"]
        assert disk.take() == []

    def test_only_what_is_new_is_written_again(self) -> None:
        """Of a file that this process has synced before, only the lines that others added since are rewritten."""
        simulated = SimulatedDisk()
        disk = RecordingDisk(simulated)
        mine = logfile_on(disk)
        mine.append(b"mine\n")
        caught_up(simulated).append(b"theirs\n")
        disk.take()
        mine.refresh()
        mine.extend(mine.end)
        mine.append(b"again\n")

        assert writes(disk.take()) == [(5, b"theirs\nagain\n")]

    @pytest.mark.parametrize(
        ("lines", "start"),
        [
            ([30, 30, 30], 30),
            ([40, 30, 34], 40),
            ([40, 29, 35], 40),
            ([36, 28, 36], 36),
            ([36, 28, 37], 64),
            ([5, 64], 5),
            ([5, 65], 5),
            ([5, 200], 5),
            ([64], 0),
            ([200], 0),
        ],
    )
    def test_goes_back_as_far_as_a_batch_can_be_long(
        self, monkeypatch: pytest.MonkeyPatch, lines: list[int], start: int
    ) -> None:
        """Rewritten are the whole lines within the last bytes that a batch may have, and at least the last line."""
        monkeypatch.setattr(logfile, "REWRITTEN", 64)
        monkeypatch.setattr(logfile, "CHUNK", 16)
        data = b"".join(bytes([97 + number]) * (length - 1) + b"\n" for number, length in enumerate(lines))
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, data, synced=False)
        disk = RecordingDisk(simulated)
        file = caught_up(disk)
        file.settle()

        assert writes(disk.take()) == [(start, data[start:])]

    def test_a_hidden_failed_sync_of_another_process_does_no_harm(self) -> None:
        """Lines whose sync failed in another process, so that the kernel calls them clean, are durable after an ack."""
        simulated = SimulatedDisk()
        failing = FailingDisk(simulated)
        theirs = logfile_on(failing)
        theirs.append(b"good\n")
        failing.fault = Fault(call="datasync")
        hopeless = FailingDisk(failing, Fault(call="truncate", repeat=True))
        unlucky = caught_up(hopeless)
        with pytest.raises(OSError, match="sync of"):
            unlucky.append(b"lost?\n")
        assert simulated.read_file(TOKENS) == b"good\nlost?\n"
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"good\n"

        mine = caught_up(simulated)
        mine.settle()

        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"good\nlost?\n"

    def test_the_bytes_are_copied_in_pieces(self) -> None:
        """A long tail is rewritten a chunk at a time."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"x" * (2 * CHUNK) + b"\n", synced=False)
        disk = RecordingDisk(simulated)
        caught_up(disk).settle()

        assert [(made.offset, len(made.data)) for made in disk.take() if made.call == "write"] == [
            (0, CHUNK),
            (CHUNK, CHUNK),
            (2 * CHUNK, 1),
        ]


class TestMending:
    """What a crash has left at the end."""

    def test_a_whole_line_gets_its_newline(self) -> None:
        """The newline is written at the end, and durable with the next ack."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"a\nb")
        disk = RecordingDisk(simulated)
        file = logfile_on(disk)
        file.refresh()
        file.complete_line()
        file.extend(file.end)
        file.settle()

        assert file.end == 4
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\nb\n"

    def test_a_fragment_is_cut_off(self) -> None:
        """What was never acknowledged goes, and its going is durable with the next ack."""
        simulated = SimulatedDisk()
        file = logfile_on(simulated)
        file.append(b"a\n")
        simulated.write_file(TOKENS, b"a\nfragm")
        file.refresh()
        file.cut(2)
        file.settle()

        assert (file.size, file.end) == (2, 2)
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\n"

    def test_a_cut_below_what_was_synced_is_remembered(self) -> None:
        """Lines that come where something was cut are synced like any other."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"a\nbc\n")
        file = caught_up(simulated)
        file.settle()
        file.cut(2)
        file.append(b"d\n")

        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\nd\n"
