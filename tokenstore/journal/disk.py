"""The seam to the disk: the only module that makes file system calls.

Everything above sees the three protocols `Disk`, `Directory` and `File`, each method one system call or nearly so, so
that a simulated disk or a failing one can stand in without patching. A store keeps one flat directory; names are
relative to a descriptor of it.

1. Nothing is followed: files are opened with `O_NOFOLLOW | O_NONBLOCK` and must be regular with one link.
2. Calls may write less than asked; whoever writes loops.
3. An operating system error passes as the `OSError` it is; the journal says what it means.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, cast

from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.descriptors import Descriptor
from tokenstore.journal.kernel import KernelSyncs, sync_filesystem

Access = Literal["read", "write", "create"]
"""`read` and `write` want the file to be there; `create` makes it with mode 0600 if it is not, and writes."""


class FileStat(NamedTuple):
    """What a file is and how far it has come."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    uid: int = 0

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode: the same file, as long as somebody holds a descriptor of it."""
        return self.device, self.inode


class File(Protocol):
    """An open file. Offsets and sizes are in bytes."""

    def read(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of the file."""
        ...

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write at an offset and return how many bytes went in, which may be fewer than given."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to a size."""
        ...

    def datasync(self) -> None:
        """Make the bytes and the size durable (`fdatasync`)."""
        ...

    def sync(self) -> None:
        """Make the bytes and everything known of the file durable (`fsync`)."""
        ...

    def stat(self) -> FileStat:
        """Tell what this open file is."""
        ...

    def lock(self, *, exclusive: bool) -> bool:
        """Try to take the file's lock (`flock`) without waiting; false if somebody else holds it."""
        ...

    def unlock(self) -> None:
        """Give the lock back."""
        ...

    def close(self) -> None:
        """Close the descriptor; again is a no-op."""
        ...


class Syncs(Protocol):
    """Syncs in flight, for one thread that waits for all of them. Keys are the caller's."""

    size: int
    """How many may be in flight."""

    def begin(self, files: Sequence[tuple[int, File]], *, whole: bool) -> int:
        """Begin `fsync`, or `fdatasync`, of files, each with its key; tell how many, from the first on, were begun."""
        ...

    def ended(self, *, wait: bool) -> list[tuple[int, OSError | None]]:
        """Give those that have ended, the key and the failure of each; if so asked, wait a moment for one."""
        ...

    def close(self) -> None:
        """Give it back when nothing is in flight; again is a no-op."""
        ...


class Directory(Protocol):
    """The store's directory. Names are plain file names inside it."""

    def open(self, name: str, access: Access) -> File:
        """Open a regular file with one link.

        Raises:
            FileNotFoundError: It is not there and `access` does not create.
            CorruptRolloutError: Something else is planted at that name; nothing was followed.
        """
        ...

    def create_temporary(self, prefix: str) -> tuple[str, File]:
        """Make a new file for a state to be moved into place, and return its name and itself."""
        ...

    def stat(self, name: str) -> FileStat | None:
        """Tell what is at a name, not following links; None if nothing is."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Move a file over another atomically (`rename`)."""
        ...

    def unlink(self, name: str) -> bool:
        """Remove a name; false if it was not there."""
        ...

    def names(self) -> Iterator[str]:
        """List the names in the directory, in no order."""
        ...

    def clock_ns(self) -> int:
        """The file system's clock: the mtime of a file made now, in nanoseconds. Never this machine's clock."""
        ...

    def sync(self) -> None:
        """Make the names durable (`fsync` of the directory)."""
        ...

    def sync_filesystem(self) -> None:
        """Make all that was written to its file system durable (`syncfs`)."""
        ...

    def syncs(self) -> Syncs | None:
        """Give a place for syncs in flight, None where the system has no such thing."""
        ...

    def close(self) -> None:
        """Close the descriptor; again is a no-op."""
        ...


class Disk(Protocol):
    """Where directories come from."""

    def open_root(self, path: Path) -> Directory:
        """Make the directory and those above it where missing, sync every directory that got a new name, and open it.

        Raises:
            OSError: It cannot be made or opened, or its file system has no working locks.
        """
        ...


class OsFile(Descriptor):
    """A file of the operating system."""

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        return os.pwrite(self._fd, data, offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def datasync(self) -> None:
        os.fdatasync(self._fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def stat(self) -> FileStat:
        return _file_stat(os.fstat(self._fd))

    def lock(self, *, exclusive: bool) -> bool:
        return _flock(self._fd, exclusive=exclusive)

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


class OsDirectory(Descriptor):
    """A directory of the operating system."""

    def __init__(self, path: Path) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def open(self, name: str, access: Access) -> OsFile:
        flags = os.O_RDONLY if access == "read" else os.O_RDWR
        return self._open(name, flags | (os.O_CREAT if access == "create" else 0))

    def create_temporary(self, prefix: str) -> tuple[str, OsFile]:
        while True:
            name = prefix + secrets.token_hex(4)
            try:
                return name, self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue

    def _open(self, name: str, flags: int) -> OsFile:
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=self._fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise CorruptRolloutError(name, _PLANTED) from error
            raise
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.close(fd)
            raise CorruptRolloutError(name, _PLANTED)
        return OsFile(fd)

    def stat(self, name: str) -> FileStat | None:
        try:
            info = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return _file_stat(info)

    def replace(self, source: str, target: str) -> None:
        os.replace(source, target, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def unlink(self, name: str) -> bool:
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> Iterator[str]:
        # A descriptor of its own: a duplicate would share its place with every other listing.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            with os.scandir(fd) as listing:
                for entry in listing:
                    yield entry.name
        finally:
            os.close(fd)

    def clock_ns(self) -> int:
        try:
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        except OSError:
            # No such file can be made here, so nothing can be newer than what is here.
            return max([0, *(info.mtime_ns for name in self.names() if (info := self.stat(name)))])
        try:
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)

    def sync(self) -> None:
        os.fsync(self._fd)

    def sync_filesystem(self) -> None:
        sync_filesystem(self._fd)

    def syncs(self) -> OsSyncs | None:
        try:
            return OsSyncs()
        except OSError:
            return None


class OsSyncs(KernelSyncs):
    """Syncs in flight in the kernel."""

    def begin(self, files: Sequence[tuple[int, File]], *, whole: bool) -> int:
        return self.start([(key, cast("OsFile", file)._fd) for key, file in files], whole=whole)


class OsDisk:
    """The disks of this machine."""

    def open_root(self, path: Path) -> OsDirectory:
        missing = _missing_directories(path)
        for directory in missing:
            directory.mkdir(mode=0o700, exist_ok=True)
        root = OsDirectory(path)
        try:
            for directory in missing or [path]:
                _sync_parent(directory.absolute(), required=bool(missing))
            _test_locks(root, path)
        except OSError:
            root.close()
            raise
        return root


_PLANTED = "is no regular file with one link (a link, a pipe or a directory stands there); remove it and retry"


def _file_stat(info: os.stat_result) -> FileStat:
    return FileStat(info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_uid)


def _flock(fd: int, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _missing_directories(path: Path) -> list[Path]:
    """The directories to be made, the outermost first."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    return missing[::-1]


def _sync_parent(path: Path, *, required: bool) -> None:
    """Make a directory's name durable. A parent that may not be opened is skipped if the name was there before."""
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        if required:
            raise
        return
    try:
        os.fsync(parent)
    finally:
        os.close(parent)


def _test_locks(root: OsDirectory, path: Path) -> None:
    """Take and give back a lock once: a file system without locks must be refused, never used unguarded."""
    try:
        if _flock(root._fd, exclusive=False):
            fcntl.flock(root._fd, fcntl.LOCK_UN)
    except OSError as error:
        reason = f"{path}: its file system has no working flock ({error.strerror}); mount one that has, or another disk"
        raise OSError(error.errno, reason) from error
