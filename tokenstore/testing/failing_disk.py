"""A disk whose k-th call of a kind fails, once or for ever, with a chosen error or a short write.

It wraps any disk. A failing call does nothing but fail, with two exceptions that follow Linux: a failed `datasync`
or `sync` marks what was dirty clean without writing it (only a `SimulatedDisk` can show that); a failed `close` closes.
A failed sync of a directory loses nothing: names live in the file system's journal. Several faults: wrap twice.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from tokenstore.journal.disk import Access, Directory, Disk, File, FileStat, Syncs
from tokenstore.testing.simulated_files import SimulatedDirectory, SimulatedFile

DirectoryCall: TypeAlias = Literal[
    "open_root",
    "open",
    "create_temporary",
    "stat",
    "replace",
    "unlink",
    "names",
    "directory_sync",
    "filesystem_sync",
]
"""Calls of a disk or a directory; `replace` goes by the name of its target, `create_temporary` by its prefix."""
FileCall: TypeAlias = Literal["read", "write", "truncate", "datasync", "sync", "file_stat", "lock", "unlock", "close"]
"""Calls of a file; they go by the name with which it was opened."""
Call: TypeAlias = DirectoryCall | FileCall
CALLS: frozenset[str] = frozenset(get_args(DirectoryCall) + get_args(FileCall))
"""Every call that can fail."""


def _known_call(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if value not in CALLS:
        raise ValueError(f"Fault.call is {value!r}, one of {', '.join(sorted(CALLS))} is allowed")


def _from_one(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"Fault.{field.name} is {value!r}, an int from 1 on is allowed")


def _known_errno(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if value not in errno.errorcode:
        raise ValueError(f"Fault.errno is {value!r}, a code of the errno module is allowed")


def _only_writes(fault: Fault, field: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    if fault.call != "write":
        raise ValueError(f"Fault.short is {value!r}, but only a write can be short, not {fault.call}")
    _from_one(fault, field, value)


@attrs.frozen(kw_only=True)
class Fault:
    """Which calls fail, and how.

    Raises:
        ValueError: A value is not allowed; the message names the field and what is.
    """

    call: Call = attrs.field(validator=_known_call)
    """The kind of call."""
    at: int = attrs.field(default=1, validator=_from_one)
    """Which of the calls that match, from 1 on."""
    errno: int = attrs.field(default=errno.EIO, validator=_known_errno)
    """The error raised."""
    repeat: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    """Whether those after it fail too, until `FailingDisk.fault` is set to None."""
    name_suffix: str = attrs.field(default="", validator=attrs.validators.instance_of(str))
    """Count only calls on names that end so."""
    short: int | None = attrs.field(default=None, validator=_only_writes)
    """For a write: let so many bytes in and raise nothing."""


class FailingDisk:
    """A disk that does what another does, but for one fault.

    Args:
        inner: The disk that does the work.
        fault: What fails; None for nothing, to count the calls of a run.
    """

    def __init__(self, inner: Disk, fault: Fault | None = None) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        """How many calls there were of each kind, whatever their names."""
        self.matched = 0
        """How many calls there were that the fault counts, since it was set."""
        self.failures: list[str] = []
        """What failed or was short, such as `"datasync r.tokens.jsonl"`, in order."""
        self._mutex = threading.Lock()
        self._fault = fault

    @property
    def fault(self) -> Fault | None:
        """What fails. May be set at any time, and counts from then on; None heals the disk."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        with self._mutex:
            self._fault, self.matched = fault, 0

    @property
    def fired(self) -> bool:
        """Whether anything failed."""
        return bool(self.failures)

    def open_root(self, path: Path) -> FailingDirectory:
        self.check("open_root", path.name)
        return FailingDirectory(self, self.inner.open_root(path))

    def due(self, call: Call, name: str) -> Fault | None:
        """Count a call, and tell the fault if the call is to fail."""
        with self._mutex:
            self.calls[call] += 1
            fault = self._fault
            if fault is None or fault.call != call or not name.endswith(fault.name_suffix):
                return None
            self.matched += 1
            if self.matched != fault.at and not (fault.repeat and self.matched > fault.at):
                return None
            self.failures.append(f"{call} {name}")
            return fault

    def check(self, call: Call, name: str) -> None:
        """Count a call, and raise if it is to fail."""
        fault = self.due(call, name)
        if fault is not None:
            raise OSError(fault.errno, os.strerror(fault.errno), name)


class FailingDirectory:
    """A directory of a failing disk."""

    def __init__(self, disk: FailingDisk, inner: Directory) -> None:
        self._disk = disk
        self._inner = inner

    def open(self, name: str, access: Access) -> FailingFile:
        self._disk.check("open", name)
        return FailingFile(self._disk, name, self._inner.open(name, access))

    def create_temporary(self, prefix: str) -> tuple[str, FailingFile]:
        self._disk.check("create_temporary", prefix)
        name, file = self._inner.create_temporary(prefix)
        return name, FailingFile(self._disk, name, file)

    def stat(self, name: str) -> FileStat | None:
        self._disk.check("stat", name)
        return self._inner.stat(name)

    def replace(self, source: str, target: str) -> None:
        self._disk.check("replace", target)
        self._inner.replace(source, target)

    def unlink(self, name: str) -> bool:
        self._disk.check("unlink", name)
        return self._inner.unlink(name)

    def clock_ns(self) -> int:
        return self._inner.clock_ns()

    def names(self) -> Iterator[str]:
        self._disk.check("names", "")
        return self._inner.names()

    def sync(self) -> None:
        self._disk.check("directory_sync", "")
        self._inner.sync()

    def sync_filesystem(self) -> None:
        try:
            self._disk.check("filesystem_sync", "")
        except OSError:
            self.forget_dirty()
            raise
        self._inner.sync_filesystem()

    def syncs(self) -> Syncs | None:
        """Everybody syncs for himself, so that each sync is a call that can fail."""
        return None

    def forget_dirty(self) -> None:
        """Lose what was not synced of all files, where the disk below can."""
        if isinstance(self._inner, SimulatedDirectory | FailingDirectory):
            self._inner.forget_dirty()

    def close(self) -> None:
        self._inner.close()


class FailingFile:
    """A file of a failing disk."""

    def __init__(self, disk: FailingDisk, name: str, inner: File) -> None:
        self._disk = disk
        self._name = name
        self._inner = inner

    def read(self, offset: int, size: int) -> bytes:
        self._disk.check("read", self._name)
        return self._inner.read(offset, size)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        fault = self._disk.due("write", self._name)
        if fault is None:
            return self._inner.write(offset, data)
        if fault.short is None:
            raise OSError(fault.errno, os.strerror(fault.errno), self._name)
        return self._inner.write(offset, data[: fault.short])

    def truncate(self, size: int) -> None:
        self._disk.check("truncate", self._name)
        self._inner.truncate(size)

    def datasync(self) -> None:
        self._check_sync("datasync")
        self._inner.datasync()

    def sync(self) -> None:
        self._check_sync("sync")
        self._inner.sync()

    def _check_sync(self, call: FileCall) -> None:
        try:
            self._disk.check(call, self._name)
        except OSError:
            self.forget_dirty()
            raise

    def forget_dirty(self) -> None:
        """Lose what was not synced, where the disk below can."""
        if isinstance(self._inner, SimulatedFile | FailingFile):
            self._inner.forget_dirty()

    def stat(self) -> FileStat:
        self._disk.check("file_stat", self._name)
        return self._inner.stat()

    def lock(self, *, exclusive: bool) -> bool:
        self._disk.check("lock", self._name)
        return self._inner.lock(exclusive=exclusive)

    def unlock(self) -> None:
        self._disk.check("unlock", self._name)
        self._inner.unlock()

    def close(self) -> None:
        # The inner close comes first: a failed close of Linux has closed too, and a leak would hide in the test.
        self._inner.close()
        self._disk.check("close", self._name)
