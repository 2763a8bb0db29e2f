"""What the tests of a journal work with: a process that serves one rollout, and a disk that keeps a record of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenstore.config import StoreConfig
from tokenstore.journal.disk import Access, Directory, Disk, File, FileStat
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import Names
from tokenstore.journal.requests import Begin, Put, Request
from tokenstore.journal.root import Root
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.testing import SimulatedDisk

ROOT = Path("/root-of-the-store")
NAMES = Names.of("r")
TOKENS, STATE, INTENTS, MARKER, LOCK = (
    ROOT / name for name in (NAMES.tokens, NAMES.state, NAMES.intents, NAMES.marker, NAMES.lock)
)


class Process:
    """A process that serves the rollout `r` on a disk; several on one disk are processes that share a directory."""

    def __init__(self, disk: Disk, **config: Any) -> None:
        self.root = Root(disk.open_root(ROOT), StoreConfig(**config))
        self.journal = Journal(self.root, "r")

    def outcomes(self, *requests: TokenEntry | str) -> list[Exception | None]:
        """Commit entries and begun calls in one batch and give the error of each."""
        batch: Sequence[Request] = [Begin(item) if isinstance(item, str) else Put(item) for item in requests]
        self.journal.finish(self.journal.committing(batch))
        return [request.error for request in batch]

    def put(self, *entries: TokenEntry) -> None:
        """Put entries in one batch, or raise the first error."""
        self._do(*entries)

    def begin(self, *call_ids: str) -> None:
        """Begin calls in one batch, or raise the first error."""
        self._do(*call_ids)

    def _do(self, *requests: TokenEntry | str) -> None:
        for error in self.outcomes(*requests):
            if error is not None:
                raise error

    def refuse(self, call_id: str, code: str | None = "code") -> None:
        """Record a refusal."""
        self.journal.refuse(call_id, code, 7.0)

    def mark(self, call_id: str = "") -> None:
        """Record a lost call."""
        self.journal.mark(call_id)

    def freeze(self) -> TokenCaptureSnapshot:
        """End the rollout."""
        return self.journal.freeze()

    def peek(self) -> TokenCaptureSnapshot:
        """Look at the rollout."""
        return self.journal.peek()

    def drop(self, snapshot_id: str, version: int) -> bool:
        """Remove the records, if the rollout is still the one that was frozen."""
        return self.journal.finish(self.journal.dropping(snapshot_id, version))

    def fence(self) -> bool:
        """Put a fence up; tell whether there were records."""
        return self.journal.finish(self.journal.fencing())

    def retire(self) -> bool:
        """Remove the rollout behind a fence, as the store does it; tell whether there were records."""
        existed = self.fence()
        self.root.sync()
        self.journal.remove_records()
        self.root.sync()
        return existed

    def delete(self) -> bool:
        """Remove the rollout and its fence, as the store does it; tell whether there were records."""
        existed = self.retire()
        self.journal.remove_fence()
        self.root.sync()
        self.journal.remove_lock()
        return existed

    def release(self) -> None:
        """Take the descriptors away, as the budget of descriptors does."""
        assert self.journal._files.try_release()


def calls(snapshot: TokenCaptureSnapshot) -> list[str]:
    """Name the calls of a snapshot, in its order."""
    return [entry.model_call_id for entry in snapshot.entries]


def plant(disk: SimulatedDisk, lines: Sequence[bytes], *, end: bytes = b"", **files: bytes) -> SimulatedDisk:
    """Put lines into the rollout's file, and its other files by name, as another process would."""
    disk.write_file(TOKENS, b"".join(line + b"\n" for line in lines) + end)
    for name, data in files.items():
        disk.write_file(ROOT / getattr(NAMES, name), data)
    return disk


class Recorded(NamedTuple):
    """A call that was made."""

    call: str
    name: str
    offset: int = 0
    data: bytes = b""


class RecordingDisk:
    """A disk that does what another does and keeps a record of the calls that change or sync something."""

    def __init__(self, inner: Disk) -> None:
        self.inner = inner
        self.record: list[Recorded] = []

    def open_root(self, path: Path) -> RecordingDirectory:
        """Open a root."""
        return RecordingDirectory(self, self.inner.open_root(path))

    def take(self) -> list[Recorded]:
        """Give the record, and begin a new one."""
        record, self.record = self.record, []
        return record

    def take_calls(self) -> list[str]:
        """Give the record as calls and names alone, and begin a new one."""
        return [f"{made.call} {made.name}".strip() for made in self.take()]


class RecordingDirectory:
    """A directory of a recording disk."""

    def __init__(self, disk: RecordingDisk, inner: Directory) -> None:
        self._disk = disk
        self._inner = inner

    def _note(self, call: str, name: str = "") -> None:
        self._disk.record.append(Recorded(call, name))

    def open(self, name: str, access: Access) -> RecordingFile:
        """Open a file; that it was made is recorded."""
        if access == "create" and self._inner.stat(name) is None:
            self._note("create", name)
        return RecordingFile(self._disk, name, self._inner.open(name, access))

    def create_temporary(self, prefix: str) -> tuple[str, RecordingFile]:
        """Make a file, recorded by its prefix."""
        self._note("create", prefix)
        name, file = self._inner.create_temporary(prefix)
        return name, RecordingFile(self._disk, prefix, file)

    def stat(self, name: str) -> FileStat | None:
        """Look at a name."""
        return self._inner.stat(name)

    def replace(self, source: str, target: str) -> None:
        """Move a file, recorded by its target."""
        self._note("replace", target)
        self._inner.replace(source, target)

    def unlink(self, name: str) -> bool:
        """Remove a name; that it was there is recorded."""
        if self._inner.stat(name) is not None:
            self._note("unlink", name)
        return self._inner.unlink(name)

    def names(self) -> Iterator[str]:
        """List the names."""
        return self._inner.names()

    def clock_ns(self) -> int:
        """Tell the time of the file system."""
        return self._inner.clock_ns()

    def sync_filesystem(self) -> None:
        """Sync the file system."""
        self._note("sync filesystem")
        self._inner.sync_filesystem()

    def syncs(self) -> None:
        """Everybody syncs for himself."""

    def sync(self) -> None:
        """Sync the names."""
        self._note("sync directory")
        self._inner.sync()

    def close(self) -> None:
        """Close the directory."""
        self._inner.close()


class RecordingFile:
    """A file of a recording disk."""

    def __init__(self, disk: RecordingDisk, name: str, inner: File) -> None:
        self._disk = disk
        self._name = name
        self._inner = inner

    def _note(self, call: str, offset: int = 0, data: bytes = b"") -> None:
        self._disk.record.append(Recorded(call, self._name, offset, data))

    def read(self, offset: int, size: int) -> bytes:
        """Read."""
        return self._inner.read(offset, size)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write, recorded with the offset and the bytes."""
        self._note("write", offset, bytes(data))
        return self._inner.write(offset, data)

    def truncate(self, size: int) -> None:
        """Cut, recorded with the size."""
        self._note("truncate", size)
        self._inner.truncate(size)

    def datasync(self) -> None:
        """Sync the bytes."""
        self._note("datasync")
        self._inner.datasync()

    def sync(self) -> None:
        """Sync the file."""
        self._note("sync")
        self._inner.sync()

    def stat(self) -> FileStat:
        """Tell what this file is."""
        return self._inner.stat()

    def lock(self, *, exclusive: bool) -> bool:
        """Try to take the lock."""
        return self._inner.lock(exclusive=exclusive)

    def unlock(self) -> None:
        """Give the lock back."""
        self._inner.unlock()

    def close(self) -> None:
        """Close."""
        self._inner.close()
