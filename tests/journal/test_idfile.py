"""Ids are recorded one a line, each once, and whatever else the file holds is a lost call at worst."""

from __future__ import annotations

import logging

import pytest

from tests.journal.workbench import INTENTS, NAMES, ROOT
from tokenstore.config import StoreConfig
from tokenstore.errors import DurabilityError
from tokenstore.journal.disk import Access, Disk
from tokenstore.journal.idfile import IdFile
from tokenstore.journal.logfile import CHUNK
from tokenstore.journal.root import Root
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk


def idfile_on(disk: Disk) -> IdFile:
    """Open the rollout's intents on a disk."""
    return IdFile(Root(disk.open_root(ROOT), StoreConfig()), NAMES.intents)


def holding(data: bytes, access: Access = "write") -> tuple[SimulatedDisk, IdFile]:
    """Plant the file and catch up with it."""
    disk = SimulatedDisk()
    disk.write_file(INTENTS, data)
    file = idfile_on(disk)
    file.catch_up(access)
    return disk, file


def test_ids_are_lines() -> None:
    """What is recorded is one line each, in order, and known to the next process."""
    disk = SimulatedDisk()
    file = idfile_on(disk)
    file.catch_up()
    file.add(["c0", "é 1"])
    file.add(["-c2"])

    other = idfile_on(disk)
    other.catch_up()

    assert disk.read_file(INTENTS) == "c0\né 1\n-c2\n".encode()
    assert list(file.ids) == list(other.ids) == ["c0", "é 1", "-c2"]
    assert not other.invalid


def test_another_writer_is_caught_up_with() -> None:
    """Ids that another process has added since are found, and counted once."""
    disk = SimulatedDisk()
    mine, theirs = idfile_on(disk), idfile_on(disk)
    for file, call_id in ((mine, "a"), (theirs, "b"), (mine, "c"), (theirs, "a")):
        file.catch_up()
        file.add([call_id])
    mine.catch_up()

    assert list(mine.ids) == ["a", "b", "c"]
    assert disk.read_file(INTENTS) == b"a\nb\nc\na\n"


def test_a_missing_file_holds_nothing() -> None:
    """Without a file there are no ids, and looking makes none."""
    disk = SimulatedDisk()
    file = idfile_on(disk)
    file.catch_up()

    assert (file.ids, file.invalid) == ({}, {})
    assert disk.files(ROOT) == {}


@pytest.mark.parametrize("tail", [b"c1", b"c", "é".encode()[:1], b"\0\0\0", b"\xff", b"c1\r"])
def test_a_torn_tail_was_never_acknowledged(tail: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes without a newline are cut off and logged by a writer, and passed over by a reader."""
    with caplog.at_level(logging.WARNING, "tokenstore"):
        disk, file = holding(b"c0\n" + tail)
    read_disk, read = holding(b"c0\n" + tail, "read")

    assert list(file.ids) == list(read.ids) == ["c0"]
    assert not file.invalid
    assert disk.read_file(INTENTS) == b"c0\n"
    assert read_disk.read_file(INTENTS) == b"c0\n" + tail
    assert f"{len(tail)} unterminated bytes" in caplog.text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"\xff\xfe", "\\ufffd\\ufffd"),
        (b" c1", " c1"),
        (b"c1\r", "c1\\r"),
        (b"a\0b", "a\\x00b"),
        (b"c" * 513, "c" * 64),
        (b"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"),
    ],
)
def test_a_line_that_is_no_id_is_a_lost_call(line: bytes, shown: str) -> None:
    """A line that cannot be a call id stays and is known apart, cut to what a message can bear, in plain ASCII."""
    disk, file = holding(b"c0\n" + line + b"\nc1\n")

    assert list(file.ids) == ["c0", "c1"]
    assert list(file.invalid) == [shown]
    assert disk.read_file(INTENTS) == b"c0\n" + line + b"\nc1\n"


def test_the_character_that_stands_for_broken_bytes_is_one_like_any_other() -> None:
    """An id that really holds U+FFFD is an id; only bytes that are no UTF-8 are none."""
    _, file = holding("call-\ufffd\n".encode())

    assert (list(file.ids), list(file.invalid)) == (["call-\ufffd"], [])


def test_a_blank_line_is_a_blank_id() -> None:
    """The reference's marker holds a blank line for a mark without a call."""
    _, file = holding(b"\nc0\n\n")

    assert list(file.ids) == ["", "c0"]
    assert not file.invalid


@pytest.mark.parametrize("shift", range(4))
def test_chunks_do_not_show(shift: int) -> None:
    """Lines, and letters of several bytes, that lie across the chunks of a long file are whole."""
    line = "é-0123456789\n".encode()
    data = b"x" * shift + line * (CHUNK // len(line) + 2) + b"last\n"

    _, file = holding(data)

    assert list(file.ids) == ["x" * shift + "é-0123456789", "é-0123456789", "last"][not shift :]
    assert not file.invalid


def test_a_monstrous_line_is_one_lost_call() -> None:
    """A line of many chunks is no id, whatever it holds, and what comes after it is read."""
    _, file = holding(b"c0\n" + b"x" * (3 * CHUNK) + b"\nc1\n" + b"y" * (2 * CHUNK))

    assert list(file.ids) == ["c0", "c1"]
    assert list(file.invalid) == ["x" * 64]


def test_a_removed_file_is_forgotten() -> None:
    """When the file is gone or another one, so is what was known of it."""
    disk, file = holding(b"c0\n \n")
    file.forget()
    assert (file.ids, file.invalid) == ({}, {})

    other_disk, other = holding(b"c0\n")
    other_disk.open_root(ROOT).unlink(NAMES.intents)
    other.catch_up()
    assert other.ids == {}
    assert disk.read_file(INTENTS) == b"c0\n \n"


@pytest.mark.parametrize("fault", [Fault(call="write"), Fault(call="datasync"), Fault(call="directory_sync")])
def test_what_failed_is_not_known(fault: Fault) -> None:
    """An id whose line could not be made durable is known only if its line is there after all; again records it."""
    simulated = SimulatedDisk()
    disk = FailingDisk(simulated, fault)
    file = idfile_on(disk)
    file.catch_up()

    with pytest.raises(DurabilityError):
        file.add(["c0"])
    file.catch_up()
    assert b"".join(f"{call_id}\n".encode() for call_id in file.ids) == simulated.read_file(INTENTS)
    if "c0" not in file.ids:
        file.add(["c0"])
    file.settle()
    assert simulated.read_file(INTENTS) == b"c0\n"
