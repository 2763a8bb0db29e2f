"""The machine's own disk: nothing is followed, what is made is durable, and a disk that cannot do it says so."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tokenstore.errors import CorruptRolloutError
from tokenstore.journal import disk as disk_module
from tokenstore.journal.disk import Access, OsDirectory, OsDisk

ACCESSES: tuple[Access, ...] = ("read", "write", "create")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[OsDirectory]:
    """Open a directory of this machine."""
    with closing(OsDisk().open_root(tmp_path)) as directory:
        yield directory


class TestPlanted:
    """What may stand at a file's name."""

    @pytest.mark.parametrize("access", ACCESSES)
    @pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "directory", "pipe"])
    def test_is_an_error_and_not_followed(self, kind: str, access: Access, root: OsDirectory, tmp_path: Path) -> None:
        """A link, a second name, a directory or a pipe is refused without being followed, and nothing hangs."""
        other, planted = tmp_path / "other", tmp_path / "r.tokens.jsonl"
        if kind in ("link", "hard link"):
            other.write_bytes(b"theirs")
        plants: dict[str, Callable[[], None]] = {
            "link": lambda: planted.symlink_to(other),
            "dangling link": lambda: planted.symlink_to(other),
            "hard link": lambda: planted.hardlink_to(other),
            "directory": planted.mkdir,
            "pipe": lambda: os.mkfifo(planted),
        }
        plants[kind]()

        with pytest.raises(CorruptRolloutError, match=r"r\.tokens\.jsonl: is no regular file with one link"):
            root.open("r.tokens.jsonl", access)
        assert [path.read_bytes() for path in tmp_path.glob("other")] == [b"theirs"] * (kind in ("link", "hard link"))

    def test_other_errors_pass(self, root: OsDirectory) -> None:
        """A name that is too long is the error that the operating system gives."""
        with pytest.raises(OSError, match="File name too long"):
            root.open("x" * 300, "create")

    def test_files_are_made_for_their_owner_alone(self, root: OsDirectory, tmp_path: Path) -> None:
        """A file that is made has mode 0600, a root that is made 0700."""
        root.open("f", "create").close()
        OsDisk().open_root(tmp_path / "new" / "root").close()

        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "new" / "root").stat().st_mode & 0o777 == 0o700


class TestMaking:
    """Names and directories."""

    def test_a_taken_temporary_name_is_passed_over(self, root: OsDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a name drawn for a temporary file is taken, another one is drawn."""
        drawn = iter(["aaaaaaaa", "aaaaaaaa", "bbbbbbbb"])
        monkeypatch.setattr(secrets, "token_hex", lambda _: next(drawn))
        names = []
        for _ in range(2):
            name, file = root.create_temporary(".t-")
            file.close()
            names.append(name)

        assert names == [".t-aaaaaaaa", ".t-bbbbbbbb"]

    @pytest.mark.parametrize(
        ("below", "synced"), [("", [".."]), ("a", [""]), ("a/b/c", ["", "a", "a/b"])], ids=["there", "one", "three"]
    )
    def test_every_new_name_is_synced(
        self, below: str, synced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The parents of all directories that were made are synced, of a root that was there its parent."""
        seen = []
        real = os.fsync

        def noting_fsync(fd: int) -> None:
            seen.append(Path(f"/proc/self/fd/{fd}").readlink())
            real(fd)

        monkeypatch.setattr(os, "fsync", noting_fsync)
        OsDisk().open_root(tmp_path / below).close()

        assert seen == [(tmp_path / name).resolve() for name in synced]

    @pytest.mark.parametrize("made", [False, True])
    def test_a_parent_that_may_not_be_opened(self, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such a parent is passed over if the root was there before, and an error if the root was made just now."""
        root = tmp_path / "root"
        if not made:
            root.mkdir()
        real = os.open

        def jealous_open(path: Any, *args: Any, **options: Any) -> int:
            if str(path) == str(tmp_path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return real(path, *args, **options)

        monkeypatch.setattr(os, "open", jealous_open)
        if made:
            with pytest.raises(PermissionError):
                OsDisk().open_root(root)
        else:
            OsDisk().open_root(root).close()


class TestLocks:
    """A file system without locks."""

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
    def test_is_refused_when_the_root_is_opened(
        self, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If a lock cannot be had at all, opening the root is a clear error with the path."""

        def lockless_flock(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("fcntl.flock", lockless_flock)
        with pytest.raises(OSError, match=f"{tmp_path}: its file system has no working flock") as failure:
            OsDisk().open_root(tmp_path)
        assert failure.value.errno == code

    def test_a_lock_held_elsewhere_is_a_lock_that_works(self, tmp_path: Path) -> None:
        """The self-test of locks does not mind somebody who holds one."""
        held = os.open(tmp_path, os.O_RDONLY)
        try:
            assert disk_module._flock(held, exclusive=True)
            OsDisk().open_root(tmp_path).close()
        finally:
            os.close(held)


class TestClock:
    """The file system's clock."""

    def test_is_the_mtime_of_a_file_made_now(self, root: OsDirectory, tmp_path: Path) -> None:
        """The clock never stands before what was written last, and asking leaves nothing behind."""
        root.open("f", "create").close()
        written = (tmp_path / "f").stat().st_mtime_ns

        assert root.clock_ns() >= written
        assert list(root.names()) == ["f"]

    def test_where_nothing_can_be_made(
        self, root: OsDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a read-only file system it is the latest change there is, or the beginning of time."""
        real = os.open

        def read_only_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            return real(path, flags, *args, **options)

        monkeypatch.setattr(os, "open", read_only_open)
        assert root.clock_ns() == 0
        for name, seconds in (("a", 5), ("b", 9), ("c", 7)):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, ns=(0, seconds * 10**9))
        assert root.clock_ns() == 9 * 10**9


def test_a_forked_child_closes_what_it_inherited(tmp_path: Path) -> None:
    """A child of a fork holds neither files nor locks of its parent, and closing them there does not close others."""
    with closing(OsDisk().open_root(tmp_path)) as root:
        file = root.open("f", "create")
        file.lock(exclusive=True)
        fds = [file._fd, root._fd]
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            still_open = [fd for fd in fds if Path(f"/proc/self/fd/{fd}").exists()]
            file.close()
            os.write(write, repr(still_open).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        said = os.read(read, 100)
        os.close(read)

        assert said == b"[]"
        assert not root.open("f", "write").lock(exclusive=True)
        file.unlock()
        file.close()
        file.close()
