"""A file system in a process of its own, on the images of the simulated disk: a kernel above, every harsh choice below.

`python -m tests.kernel.filesystem MOUNT` serves one flat directory. It is told what to do by extended attributes of it:

| attribute | value | from then on |
|---|---|---|
| `user.cut` | | every call fails with EIO: the power is gone |
| `user.restart` | a persistence policy and a seed | what that policy leaves of the cut is there |
| `user.fail` | the end of a name | the next sync of such a file fails once, and later ones lie about what it lost |
"""

# ruff: noqa: D102 - libfuse documents the operations

from __future__ import annotations

import errno
import itertools
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfusepy import FUSE, Operations

from tokenstore.testing import PersistencePolicy, SimulatedDisk
from tokenstore.testing.simulated_files import Inode, os_error

ROOT = Path("/root-of-the-file-system")


class SimulatedFileSystem(Operations):  # type: ignore[misc]  # the library has no types
    """One flat directory whose power can be cut."""

    use_ns = True

    def __init__(self) -> None:
        self._disk = SimulatedDisk()
        self._dead = False
        self._fails = ""
        self._handles: dict[int, tuple[str, Inode]] = {}
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------------------------------ names

    def _check_power(self) -> None:
        if self._dead:
            raise os_error(errno.EIO, "power")

    @property
    def _names(self) -> Any:
        self._check_power()
        return self._disk._root(ROOT)

    def _opened(self, fh: int) -> tuple[str, Inode]:
        self._check_power()
        return self._handles[fh]

    def _find(self, path: str) -> Inode:
        inode = self._names.seen.get(path[1:])
        if inode is None:
            raise os_error(errno.ENOENT, path)
        return inode  # type: ignore[no-any-return]

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
        if path == "/" and fh not in self._handles:
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2, "st_ino": 1, **owner}
        inode = self._handles[fh][1] if fh in self._handles else self._find(path)
        size, time = len(inode.images.seen), inode.mtime_ns
        facts = {"st_size": size, "st_mtime": time, "st_ctime": time, "st_ino": inode.number, "st_nlink": 1}
        return {"st_mode": stat.S_IFREG | 0o600, **facts, **owner}

    def readdir(self, _path: str, _fh: int) -> list[str]:
        return [".", "..", *self._names.seen]

    def create(self, path: str, _mode: int, _fi: object = None) -> int:
        self._disk.create(self._names, path[1:])
        return self.open(path, 0)

    def open(self, path: str, _flags: int) -> int:
        number = next(self._numbers)
        self._handles[number] = (path[1:], self._find(path))
        self._handles[number][1].opens += 1
        return number

    def release(self, _path: str, fh: int) -> int:
        _, inode = self._handles.pop(fh, ("", None))
        if inode is not None:
            inode.opens -= 1
            self._disk.release(inode)
        return 0

    def rename(self, old: str, new: str) -> int:
        inode, replaced = self._find(old), self._names.seen.get(new[1:])
        self._names.change(old[1:], new[1:], inode)
        self._disk.drop(replaced)
        return 0

    def unlink(self, path: str) -> int:
        inode = self._find(path)
        self._names.change(path[1:], None, inode)
        self._disk.drop(inode)
        return 0

    def fsyncdir(self, _path: str, _datasync: int, _fh: int) -> int:
        self._names.sync()
        return 0

    # ------------------------------------------------------------------------------------------ bytes

    def _change(self, inode: Inode, images: Any) -> None:
        inode.images = images
        inode.mtime_ns = self._disk.tick()

    def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
        return self._opened(fh)[1].images.seen[offset : offset + size]

    def write(self, _path: str, data: bytes, offset: int, fh: int) -> int:
        inode = self._opened(fh)[1]
        self._change(inode, inode.images.written(offset, bytes(data)))
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        inode = self._opened(fh)[1] if fh in self._handles else self._find(path)
        self._change(inode, inode.images.truncated(length))
        return 0

    def fsync(self, _path: str, _datasync: int, fh: int) -> int:
        name, inode = self._opened(fh)
        if self._fails and name.endswith(self._fails):
            self._fails = ""
            inode.images = inode.images.forgotten()
            raise os_error(errno.EIO, name)
        inode.images = inode.images.synced()
        return 0

    # ------------------------------------------------------------------------------------------ being told

    def setxattr(self, _path: str, name: str, value: bytes, _options: int, _position: int = 0) -> int:
        orders: dict[str, Callable[[str], None]] = {
            "user.cut": self._cut,
            "user.restart": self._restart,
            "user.fail": self._fail,
        }
        orders[name](bytes(value).decode())
        return 0

    def _cut(self, _: str) -> None:
        self._dead = True

    def _restart(self, how: str) -> None:
        policy, seed = how.split()
        self._disk = self._disk.after_crash(PersistencePolicy(policy), seed=int(seed))
        self._handles.clear()
        self._dead = False

    def _fail(self, name: str) -> None:
        self._fails = name


if __name__ == "__main__":
    FUSE(
        SimulatedFileSystem(),
        sys.argv[1],
        foreground=True,
        nothreads=True,
        hard_remove=True,
        use_ino=True,
        direct_io=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )
