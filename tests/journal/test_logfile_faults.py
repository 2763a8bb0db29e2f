"""A file of lines whose disk fails, or whose descriptor was taken away."""

from __future__ import annotations

import errno
import hashlib

import pytest

from tests.journal.test_logfile import NAME, SYNCED, caught_up, logfile_on
from tests.journal.workbench import ROOT, TOKENS, Recorded, RecordingDisk
from tokenstore.errors import DurabilityError
from tokenstore.journal.layout import Names
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk


class TestFailing:
    """A failed append leaves the file as it was when it began, never shorter."""

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
    @pytest.mark.parametrize("at", [1, 2, 3])
    def test_a_failed_write_is_cut_back(self, code: int, at: int) -> None:
        """After a write that failed, at once or half-way, the file has its old length, durably, and goes on."""
        simulated = SimulatedDisk()
        disk = FailingDisk(FailingDisk(simulated, Fault(call="write", short=1, repeat=True)))
        file = logfile_on(disk)
        file.append(b"a\n")
        file.refresh()
        disk.fault = Fault(call="write", at=at, errno=code)

        with pytest.raises(DurabilityError, match=r"write of r\.tokens\.jsonl") as failure:
            file.append(b"bcd\n")
        assert failure.value.errno == code
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\n"
        assert file.poison is None
        file.refresh()
        file.append(b"e\n")
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\ne\n"

    def test_what_others_wrote_is_never_cut(self) -> None:
        """Cutting back stops at the end that this process had caught up with, whoever wrote what is below."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        mine = logfile_on(disk)
        mine.append(b"mine\n")
        caught_up(simulated).append(b"theirs\n")
        mine.refresh()
        mine.extend(mine.end)
        disk.fault = Fault(call="write", at=2, errno=errno.ENOSPC)

        with pytest.raises(DurabilityError):
            mine.append(b"again\n")
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"mine\ntheirs\n"

    def test_a_failed_sync_is_cut_back_and_never_believed(self) -> None:
        """After a failed sync the lines go; the same again is written again and synced again."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        recording = RecordingDisk(disk)
        file = logfile_on(recording)
        file.append(b"a\n")
        file.refresh()
        disk.fault = Fault(call="datasync")
        recording.take()

        with pytest.raises(DurabilityError, match="sync of"):
            file.append(b"b\n")
        assert recording.take() == [
            Recorded("write", NAME, 2, b"b\n"),
            Recorded("datasync", NAME),
            Recorded("truncate", NAME, 2),
            Recorded("sync", NAME),
        ]
        assert file.poison is None
        file.refresh()
        file.append(b"b\n")
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\nb\n"

    def test_a_failed_sync_of_found_lines_writes_them_again(self) -> None:
        """If syncing what others wrote fails, it is neither cut nor taken as synced, but rewritten the next time."""
        simulated = SimulatedDisk()
        simulated.write_file(TOKENS, b"theirs\n", synced=False)
        disk = FailingDisk(simulated, Fault(call="datasync"))
        recording = RecordingDisk(disk)
        file = caught_up(recording)

        with pytest.raises(DurabilityError):
            file.settle()
        assert simulated.read_file(TOKENS) == b"theirs\n"
        assert file.unsynced
        recording.take()
        file.refresh()
        file.settle()
        assert Recorded("write", NAME, 0, b"theirs\n") in recording.take()
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"theirs\n"

    @pytest.mark.parametrize("first", [Fault(call="write"), Fault(call="datasync")])
    @pytest.mark.parametrize("second", [Fault(call="truncate"), Fault(call="sync")])
    def test_a_file_that_cannot_be_cut_back_is_poisoned(self, first: Fault, second: Fault) -> None:
        """If undoing fails too, the first failure is told and kept: whoever goes on must begin anew."""
        disk = FailingDisk(FailingDisk(SimulatedDisk(), first), second)
        file = logfile_on(disk)

        with pytest.raises(DurabilityError) as failure:
            file.append(b"a\n")
        assert file.poison is failure.value

    def test_a_failed_sync_of_the_name_may_be_tried_again(self) -> None:
        """If the directory cannot be synced, nothing is acknowledged, nothing is cut, and the next ack syncs it."""
        simulated = SimulatedDisk()
        file = logfile_on(FailingDisk(simulated, Fault(call="directory_sync")))

        with pytest.raises(DurabilityError, match="the store's directory"):
            file.append(b"a\n")
        assert (file.size, file.poison) == (0, None)
        assert file.refresh()
        assert file.end == 2
        file.extend(2)
        file.settle()
        assert simulated.after_crash(SYNCED).read_file(TOKENS) == b"a\n"

    @pytest.mark.parametrize("call", ["open", "file_stat"])
    def test_what_cannot_be_opened_changes_nothing(self, call: str) -> None:
        """Without a descriptor, nothing is written and the next time is as the first."""
        simulated = SimulatedDisk()
        file = logfile_on(FailingDisk(simulated, Fault(call=call, errno=errno.EMFILE)))  # type: ignore[arg-type]

        with pytest.raises(DurabilityError, match="opening of"):
            file.append(b"a\n")
        file.refresh()
        file.append(b"a\n")
        assert simulated.read_file(TOKENS) == b"a\n"


class TestRecognising:
    """Whether a file is the one it was."""

    def test_a_kept_descriptor_knows_its_file(self) -> None:
        """While the descriptor is held, a file that grew is the same, and one that was replaced or cut is not."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file.append(b"a\nb\n")
        caught_up(disk).append(b"c\n")
        assert file.refresh()
        assert (file.size, file.end) == (4, 6)
        disk.write_file(TOKENS, b"a\n")
        assert not file.refresh()
        assert (file.size, file.end) == (0, 2)

    def test_a_replaced_file_is_another_one(self) -> None:
        """A file of the same name and length that was made anew is noticed."""
        disk = SimulatedDisk()
        root = disk.open_root(ROOT)
        file = logfile_on(disk)
        file.append(b"a\n")
        root.unlink(NAME)
        disk.write_file(TOKENS, b"a\n")

        assert not file.refresh()

    def test_a_removed_file_is_gone(self) -> None:
        """A file that is not there any more is noticed once."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file.append(b"a\n")
        disk.open_root(ROOT).unlink(NAME)

        assert not file.refresh()
        assert file.refresh()
        assert not file.is_open

    def test_a_released_file_is_recognised_by_its_last_line(self) -> None:
        """After the descriptor was given away, number, time of change and the last known line must agree."""
        disk = RecordingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file.append(b"a\nbb\n")
        file.release()
        assert not file.is_open
        assert file.refresh()
        disk.take()
        file.settle()

        assert disk.take() == []
        assert file.size == 5

    @pytest.mark.parametrize("line", [b"bb", b"", b"b" * 3_000_000], ids=len)
    def test_a_line_whose_digest_is_known_is_not_read_to_be_let_go(self, line: bytes) -> None:
        """Who has just written the last line lets the file go without a read, and recognises it by its bytes."""
        disk = FailingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file._root.finish(file.appending(b"a\n" + line + b"\n", hashlib.sha256(line).hexdigest()))
        disk.fault = Fault(call="read", repeat=True)
        file.release()
        disk.fault = None

        assert file.known() == caught_up(disk).known()
        assert file.refresh()

    def test_a_digest_is_of_its_own_line(self) -> None:
        """What is known of the last line written is not taken for a later one, nor for that of another file."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file._root.finish(file.appending(b"a\n", hashlib.sha256(b"a").hexdigest()))
        file.append(b"b\n")
        file.release()
        assert file.refresh()
        disk.open_root(ROOT).unlink(NAME)
        disk.write_file(TOKENS, b"x\n")
        assert not file.refresh()
        file.extend(2)

        assert file.known() == caught_up(disk).known()

    def test_a_released_file_that_has_grown_is_read_again(self) -> None:
        """Who appended meanwhile may have made it anew with the same last line, so nothing counts as known."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file.append(b"a\n")
        file.release()
        caught_up(disk).append(b"b\n")

        assert not file.refresh()
        assert (file.size, file.end) == (0, 4)

    @pytest.mark.parametrize("content", [b"a\nXX\n", b"a\n", b"a\nbbXX\n", b"", b"X\nbb\n", b"X\nbb\nc\n"])
    def test_a_reused_number_is_not_believed(self, content: bytes) -> None:
        """A new file that got the number of the old one is told, also if its last known line is the same."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file.append(b"a\nbb\n")
        number = file.identity
        file.release()
        disk.open_root(ROOT).unlink(NAME)
        disk.write_file(TOKENS, content)

        assert not file.refresh()
        assert file.identity == number
        assert file.size == 0
        file.extend(file.end)
        assert file.unsynced

    def test_reading_opens_without_the_right_to_write(self) -> None:
        """A reader's descriptor cannot write; the next writer opens the file again and knows it."""
        disk = SimulatedDisk()
        file = logfile_on(disk)
        file.append(b"a\n")
        file.release()
        assert file.refresh("read")
        file.settle()
        assert file.refresh("write")
        file.append(b"b\n")

        assert disk.read_file(TOKENS) == b"a\nb\n"

    def test_a_fingerprint_that_cannot_be_taken_is_none(self) -> None:
        """If the last line cannot be read while letting go, the file counts as unknown the next time."""
        disk = FailingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file.append(b"a\nb\n")
        disk.fault = Fault(call="read")
        file.release()

        assert not file.is_open
        assert file.refresh() is False
        assert file.size == 0

    def test_a_look_that_failed_is_taken_again(self) -> None:
        """An error while recognising a file changes nothing: the next look tells whether it is the same."""
        disk = FailingDisk(SimulatedDisk())
        file = logfile_on(disk)
        file.append(b"a\nb\n")
        file.release()
        for call in ("stat", "open", "file_stat", "read"):
            disk.fault = Fault(call=call)
            with pytest.raises(DurabilityError):
                file.refresh()
        disk.fault = None

        assert file.refresh()
        assert file.size == 4

    def test_closing_again_is_nothing(self) -> None:
        """A file may be closed and released whatever it is."""
        file = logfile_on(SimulatedDisk())
        for _ in range(2):
            file.close()
            file.release()
            file.forget()

        assert file.name == Names.of("r").tokens
        assert not file.is_open
