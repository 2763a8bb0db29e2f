"""Readers change nothing, create nothing, repair nothing, whatever they find."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.journal.workbench import LOCK, NAMES, ROOT, TOKENS, Process, RecordingDisk, calls, plant
from tests.samples import entry, line_of
from tests.testing.simulations import ClosingDisk
from tokenstore.config import StoreConfig
from tokenstore.errors import DurabilityError, TokenCaptureRetiredError
from tokenstore.journal.disk import Access
from tokenstore.journal.journal import Journal
from tokenstore.journal.lifecycle import State
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.journal.root import Root
from tokenstore.journal.statefile import render_state
from tokenstore.records import TokenEntry
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk
from tokenstore.testing.simulated_files import SimulatedDirectory, SimulatedFile

LINES = [line_of(entry(f"c{number}", prompt_token_ids=[number])) for number in range(3)]
OTHER = line_of(entry("c0", prompt_token_ids=[9]), checksum=False)
INDEXED = render_state(State(version=9, entry_digests={"c0": "d", "c9": "d"}, indexed_size=10**6))

FOUND: dict[str, Callable[[], SimulatedDisk]] = {
    "nothing": SimulatedDisk,
    "whole lines": lambda: plant(SimulatedDisk(), LINES),
    "a fragment": lambda: plant(SimulatedDisk(), LINES, end=b"{frag"),
    "a line without its newline": lambda: plant(SimulatedDisk(), LINES[:2], end=LINES[2]),
    "nuls": lambda: plant(SimulatedDisk(), LINES[:2], end=b"\0" * 500),
    "a hole": lambda: plant(SimulatedDisk(), [LINES[0], b"\0" * 99 + LINES[1]]),
    "garbage": lambda: plant(SimulatedDisk(), [LINES[0], b"{garbage", LINES[1]]),
    "a conflict": lambda: plant(SimulatedDisk(), [LINES[0], OTHER]),
    "an empty state": lambda: plant(SimulatedDisk(), LINES, state=b""),
    "a state beyond the file": lambda: plant(SimulatedDisk(), LINES, state=INDEXED),
    "an older state": lambda: plant(SimulatedDisk(), LINES, state=b'{"frozen":true,"version":3}'),
    "a torn marker": lambda: plant(SimulatedDisk(), LINES, marker=b"c0\n\xff\nfrag"),
    "torn intents": lambda: plant(SimulatedDisk(), LINES, intents=b"c0\nc9\n\xff\nfrag"),
    "a fence before its records": lambda: plant(SimulatedDisk(), LINES, state=render_state(State(retired=True))),
    "a lock file": lambda: plant(SimulatedDisk(), LINES, lock=b""),
}
"""What a reader may find."""


def read_one_by_one(process: Process) -> list[TokenEntry]:
    """Read all entries through a cursor."""
    cursor = process.journal.open_cursor()
    entries: list[TokenEntry] = []
    while part := process.journal.read_slice(cursor):
        entries += part
    return entries


READINGS: dict[str, Callable[[Process], object]] = {
    "peek": Process.peek,
    "is_incomplete": lambda process: process.journal.is_incomplete(),
    "one by one": read_one_by_one,
}


class ReadOnlyDirectory(SimulatedDirectory):
    """A directory in which nothing can be made or opened to be written."""

    def open(self, name: str, access: Access) -> SimulatedFile:
        """Open a file to be read."""
        if access != "read":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return super().open(name, access)


class ReadOnlyDisk(SimulatedDisk):
    """A disk that is mounted read-only."""

    def open_root(self, path: Path) -> SimulatedDirectory:
        """Open a root."""
        return ReadOnlyDirectory(self, self._root(path))


def read_only(disk: SimulatedDisk) -> ReadOnlyDisk:
    """Copy a disk's root to a disk that is mounted read-only."""
    mounted = ReadOnlyDisk()
    for name, data in disk.files(ROOT).items():
        mounted.write_file(ROOT / name, data)
    return mounted


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_reading_changes_nothing(found: Callable[[], SimulatedDisk], reading: Callable[[Process], object]) -> None:
    """However often and whatever is read, no call changes the disk, no file is made, and every byte stays."""
    simulated = found()
    before = simulated.files(ROOT)
    disk = RecordingDisk(simulated)
    process = Process(disk)

    for _ in range(3):
        try:
            reading(process)
        except TokenCaptureRetiredError:
            assert b'"retired":true' in before[NAMES.state]
    process.release()
    process.journal.close()
    assert disk.take() == []
    assert simulated.files(ROOT) == before


@pytest.mark.parametrize("found", [name for name in FOUND if "fence" not in name])
def test_reading_works_where_nothing_can_be_written(found: str) -> None:
    """On a read-only disk a reader says the same as elsewhere."""
    writable = FOUND[found]()
    mounted = read_only(writable)

    for reading in READINGS.values():
        assert reading(Process(mounted)) == reading(Process(writable))


def test_writing_where_nothing_can_be_written_says_so() -> None:
    """On a read-only disk a writer raises before anything else, naming the file."""
    with pytest.raises(DurabilityError, match=r"locking of r\.tokens\.lock failed: Read-only file system"):
        Process(read_only(plant(SimulatedDisk(), LINES))).put(entry("c9"))


def test_a_reader_sees_what_the_last_writer_wrote() -> None:
    """One reader that looks again and again sees each change of another process."""
    disk = SimulatedDisk()
    reader, writer = Process(disk), Process(disk)
    seen = []
    for do in (
        lambda: writer.begin("c0"),
        lambda: writer.put(entry("c0")),
        lambda: writer.refuse("c1"),
        lambda: writer.mark("c0"),
        writer.freeze,
        writer.delete,
        lambda: writer.put(entry("new")),
    ):
        do()
        snapshot = reader.peek()
        seen.append((snapshot.version, calls(snapshot), snapshot.open_calls, snapshot.incomplete, snapshot.frozen))

    assert seen == [
        (0, [], ("c0",), False, False),
        (1, ["c0"], (), False, False),
        (2, ["c0"], (), False, False),
        (3, ["c0"], (), True, False),
        (4, ["c0"], (), True, True),
        (0, [], (), False, False),
        (1, ["new"], (), False, False),
    ]


def test_a_reader_after_a_writer_of_the_same_process_repairs_nothing() -> None:
    """A journal that has written before still changes nothing when it only reads."""
    simulated = SimulatedDisk()
    disk = RecordingDisk(simulated)
    process = Process(disk)
    process.put(entry("c0"))
    simulated.write_file(TOKENS, simulated.read_file(TOKENS) + LINES[1] + b"\n{frag")
    disk.take()

    assert calls(process.peek()) == ["c0", "c1"]
    assert disk.take() == []


def test_a_writer_keeps_a_reader_out_and_the_other_way_round() -> None:
    """While one process writes, a reader of another is told to come again; two readers do not mind each other."""
    disk = plant(SimulatedDisk(), LINES, lock=b"")
    root = disk.open_root(ROOT)
    lock = root.open(NAMES.lock, "read")
    lock.lock(exclusive=True)
    with pytest.raises(LockBusyError):
        Process(disk).peek()
    lock.lock(exclusive=False)
    assert len(Process(disk).peek().entries) == 3
    with pytest.raises(LockBusyError):
        Process(disk).mark()

    assert disk.files(ROOT).keys() == {NAMES.tokens, NAMES.lock}
    assert disk.read_file(LOCK) == b""


def test_a_read_error_is_raised_and_the_next_reading_is_whole() -> None:
    """A disk that cannot be read is an error, not an empty rollout, and nothing of it is remembered."""
    simulated = plant(SimulatedDisk(), LINES, state=render_state(State(version=5)), intents=b"c9\n", marker=b"m\n")
    expected = Process(simulated).peek()
    for call in ("stat", "open", "read", "file_stat", "lock"):
        disk = FailingDisk(simulated)
        process = Process(disk)
        for at in range(1, 12):
            disk.fault = Fault(call=call, at=at)
            try:
                assert process.peek() == expected
            except DurabilityError:
                assert disk.fired
            disk.fault = None
            assert process.peek() == expected


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Journal]:
    """A journal on the machine's own disk."""
    with closing(ClosingDisk()) as disk:
        yield Journal(Root(disk.open_root(tmp_path), StoreConfig()), "r")


def test_on_a_real_disk_too(real: Journal, tmp_path: Path) -> None:
    """Reading an unknown and a damaged rollout leaves a directory of this machine byte for byte as it was."""
    assert real.peek().entries == ()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / NAMES.tokens).write_bytes(LINES[0] + b"\n{garbage\n{frag")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}

    assert calls(real.peek()) == ["c0"]
    assert real.is_incomplete() is False
    real.close()
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
