"""The simulated disk answers as the disk of the operating system does."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.testing.simulations import ROOT, ClosingDisk
from tokenstore.journal.disk import Access, Directory, File, OsDisk
from tokenstore.testing.disks import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory]:
    """Open a directory of the operating system, and a simulated one."""
    if request.param == "simulated":
        yield SimulatedDisk().open_root(tmp_path / "root")
        return
    with closing(ClosingDisk()) as disk:
        yield disk.open_root(tmp_path / "root")


class TestLikeTheRealDisk:
    """Every test runs on a directory of the operating system too."""

    def test_reads_what_was_written_and_stops_at_the_end(self, directory: Directory) -> None:
        """A file reads as it was written, and short at its end."""
        file = directory.open("log", "create")

        assert file.write(0, b"hello world") == 11
        assert file.write(6, memoryview(b"there")) == 5
        assert file.read(0, 99) == b"hello there"
        assert file.read(6, 3) == b"the"
        assert file.read(50, 5) == b""

    def test_fills_a_gap_with_nuls(self, directory: Directory) -> None:
        """A write behind the end and a growing truncate leave NULs between."""
        file = directory.open("log", "create")

        file.write(3, b"x")
        file.truncate(6)
        assert file.read(0, 99) == b"\0\0\0x\0\0"
        file.truncate(4)
        assert file.stat().size == 4

    def test_missing_files_are_errors_or_none(self, directory: Directory) -> None:
        """Opening or moving what is not there raises; looking at it or removing it does not."""
        with pytest.raises(FileNotFoundError):
            directory.open("log", "read")
        with pytest.raises(FileNotFoundError):
            directory.open("log", "write")
        with pytest.raises(FileNotFoundError):
            directory.replace("log", "other")
        assert directory.stat("log") is None
        assert not directory.unlink("log")

    def test_names_change_at_once(self, directory: Directory) -> None:
        """Creating, moving and removing show in the listing without a sync."""
        directory.open("a", "create")
        temporary, file = directory.create_temporary(".temporary-")
        file.write(0, b"moved")

        assert set(directory.names()) == {"a", temporary}
        assert temporary.startswith(".temporary-")
        assert len(temporary) == len(".temporary-") + 8
        directory.replace(temporary, "a")
        assert set(directory.names()) == {"a"}
        assert directory.open("a", "read").read(0, 9) == b"moved"
        assert directory.unlink("a")
        assert set(directory.names()) == set()

    def test_temporary_files_have_names_of_their_own(self, directory: Directory) -> None:
        """Two temporary files never share a name."""
        assert directory.create_temporary("t-")[0] != directory.create_temporary("t-")[0]

    def test_an_open_file_outlives_its_name(self, directory: Directory) -> None:
        """A removed or replaced file can be read and written through its descriptor, and has another identity."""
        file = directory.open("log", "create")
        file.write(0, b"old")
        directory.unlink("log")
        other = directory.open("log", "create")

        assert file.read(0, 9) == b"old"
        assert file.write(3, b"er") == 2
        file.sync()
        assert file.stat().identity != other.stat().identity
        assert directory.stat("log") == other.stat()

    def test_moving_a_file_onto_itself_changes_nothing(self, directory: Directory) -> None:
        """A file replaced by itself stays."""
        identity = directory.open("log", "create").stat().identity
        directory.replace("log", "log")

        assert directory.open("log", "write").stat().identity == identity

    def test_a_reading_descriptor_does_not_write(self, directory: Directory) -> None:
        """Opened to read, a file refuses writes and cuts, but can be synced."""
        directory.open("log", "create")
        file = directory.open("log", "read")

        with pytest.raises(OSError, match="Bad file descriptor") as written:
            file.write(0, b"x")
        with pytest.raises(OSError, match="Invalid argument") as cut:
            file.truncate(0)
        file.datasync()
        assert (written.value.errno, cut.value.errno) == (errno.EBADF, errno.EINVAL)

    def test_closed_descriptors_are_refused(self, directory: Directory) -> None:
        """After a close, which may be repeated, calls raise."""
        file = directory.open("log", "create")
        for _ in range(2):
            file.close()
            directory.close()

        # Python itself refuses a negative descriptor in some calls, with a ValueError.
        for call in (lambda: file.read(0, 1), file.datasync, directory.sync, lambda: directory.open("log", "read")):
            with pytest.raises((OSError, ValueError), match="descriptor"):
                call()

    def test_descriptors_of_one_process_exclude_each_other(self, directory: Directory) -> None:
        """Locks belong to the open file description: one exclusive or many shared, taken again for nothing."""
        first, second, third = (directory.open("lock", "create") for _ in range(3))

        assert first.lock(exclusive=True)
        assert first.lock(exclusive=True)
        assert not second.lock(exclusive=True)
        assert not second.lock(exclusive=False)
        first.unlock()
        assert second.lock(exclusive=False)
        assert third.lock(exclusive=False)
        assert not first.lock(exclusive=True)
        third.unlock()
        second.close()
        assert first.lock(exclusive=True)
        assert first.lock(exclusive=False)
        assert third.lock(exclusive=False)

    def test_a_lock_is_lost_when_it_cannot_be_made_exclusive(self, directory: Directory) -> None:
        """A holder of the shared lock that fails to get the exclusive one holds none, as flock has it."""
        first, second, third = (directory.open("lock", "create") for _ in range(3))
        assert first.lock(exclusive=False)
        assert second.lock(exclusive=False)
        assert not first.lock(exclusive=True)

        second.unlock()
        assert third.lock(exclusive=True)

    def test_a_new_lock_file_is_another_lock(self, directory: Directory) -> None:
        """The lock is on the file, not on the name."""
        first = directory.open("lock", "create")
        assert first.lock(exclusive=True)
        directory.unlink("lock")

        assert directory.open("lock", "create").lock(exclusive=True)

    def test_a_change_moves_the_time(self, directory: Directory) -> None:
        """The time of a file never goes back, and a look at it does not move it."""
        file = directory.open("log", "create")
        times = [file.stat().mtime_ns]
        for change in (lambda: file.write(0, b"x"), lambda: file.truncate(0)):
            change()
            times.append(file.stat().mtime_ns)

        assert times == sorted(times)
        assert file.stat() == file.stat() == directory.stat("log")

    @pytest.mark.parametrize("seed", range(40))
    def test_any_calls_have_the_same_results(self, seed: int, tmp_path: Path) -> None:
        """Random calls on both disks give the same results and errors."""
        real = OsDisk().open_root(tmp_path)
        simulated = SimulatedDisk().open_root(ROOT)

        assert _walk(simulated, seed) == _walk(real, seed)


def _walk(directory: Directory, seed: int) -> list[object]:
    """Make random calls and note what they returned."""
    chance = Random(seed)  # noqa: S311  # replayable, not secret
    files: list[File] = []
    results: list[object] = []
    for _ in range(200):
        if not files:
            files.append(directory.open("a", "create"))
        call = chance.choice(_CALLS)
        try:
            results.append((call.__name__, call(directory, files, chance)))
        except OSError as error:
            results.append((call.__name__, error.errno))
    for file in files:
        file.close()
    directory.close()
    return results


def _open(directory: Directory, files: list[File], chance: Random) -> None:
    access: tuple[Access, ...] = ("read", "write", "create")
    files.append(directory.open(chance.choice("abcd"), chance.choice(access)))


def _write(_: Directory, files: list[File], chance: Random) -> int:
    return chance.choice(files).write(chance.randrange(20), chance.randbytes(5))


def _truncate(_: Directory, files: list[File], chance: Random) -> None:
    chance.choice(files).truncate(chance.randrange(20))


def _read(_: Directory, files: list[File], chance: Random) -> bytes:
    return chance.choice(files).read(chance.randrange(20), chance.randrange(20))


def _sync(directory: Directory, files: list[File], chance: Random) -> None:
    chance.choice(files).datasync()
    directory.sync()


def _lock(_: Directory, files: list[File], chance: Random) -> bool:
    return chance.choice(files).lock(exclusive=chance.random() < 0.5)


def _unlock(_: Directory, files: list[File], chance: Random) -> None:
    chance.choice(files).unlock()


def _close(_: Directory, files: list[File], chance: Random) -> None:
    files.pop(chance.randrange(len(files))).close()


def _replace(directory: Directory, _: list[File], chance: Random) -> None:
    directory.replace(chance.choice("abcd"), chance.choice("abcd"))


def _unlink(directory: Directory, _: list[File], chance: Random) -> bool:
    return directory.unlink(chance.choice("abcd"))


def _look(directory: Directory, files: list[File], chance: Random) -> object:
    file = chance.choice(files)
    same = [file.stat().identity == other.stat().identity for other in files]
    stats = [directory.stat(name) for name in "abcd"]
    return same, file.stat().size, sorted(directory.names()), [stat and stat.size for stat in stats]


_CALLS: list[Callable[[Directory, list[File], Random], object]] = [
    *(_open, _write, _truncate, _read, _sync, _lock, _unlock, _close, _replace, _unlink, _look)
]
