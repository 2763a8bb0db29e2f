"""A file of lines that only grows: entries, intents or the marker. Used under the rollout's lock.

1. What `append` returned from is on the disk: whole bytes, then `fdatasync`, and the name by a sync of the directory.
2. Bytes at the end that this process did not sync itself may sit in pages whose sync failed in another process and that
   the kernel now calls clean. So the lines within the last 8 MiB of such bytes, at least the last line, are written
   again in place before anything is synced: a plain fsync would lie. Each batch is synced before the next is appended,
   so nothing further back can be unsynced.
3. After a failed write the file is cut back to where it was when this process had the lock and had caught up, never
   lower: below may be what others acknowledged. After a failed sync it is cut back too, and never synced again as if
   nothing had happened. If cutting back fails, the file is poisoned: its user must start anew, with rule 2.
4. A file is the same for sure only while its descriptor is held. After the descriptor was given away, it counts as the
   same if nobody has written since: device, inode, time of change and the bytes of its last line agree. A file made
   anew may get the same inode number, and the same lines but for one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from tokenstore.errors import DurabilityError
from tokenstore.journal.disk import Access, File, FileStat
from tokenstore.journal.root import Root, durable, let_go
from tokenstore.journal.syncs import Wish

REWRITTEN = 8 * 1024 * 1024
"""Bytes of another process's lines that may be unsynced: a batch is no longer, unless it is one line."""
CHUNK = 1024 * 1024
"""Bytes read or copied in one go."""
NEAR = 8 * 1024
"""Bytes in which the newline before a last line is looked for first."""


class Fingerprint(NamedTuple):
    """What a file is, so that it is recognised when no descriptor was kept: rule 4."""

    identity: tuple[int, int]
    size: int
    start: int
    """Where its last line begins."""
    last_line: str
    """Its sha256, without the newline, in hexadecimal."""
    mtime_ns: int


class LastLine(NamedTuple):
    """The line that ends at some offset, as it was written: to recognise it, it need not be read."""

    start: int
    end: int
    digest: str


def write_all(file: File, offset: int, data: bytes) -> None:
    """Write all bytes at an offset, however short the single writes are."""
    view = memoryview(data)
    while view:
        written = file.write(offset, view)
        offset += written
        view = view[written:]


class LogFile:
    """One file of lines: known and whole up to `size`, and up to `end` when it was last looked at."""

    def __init__(self, root: Root, name: str) -> None:
        self.name = name
        self.size = 0
        self.end = 0
        self.identity = (0, 0)
        self.poison: DurabilityError | None = None
        self._root = root
        self._file: File | None = None
        self._writable = False
        self._fingerprint: Fingerprint | None = None
        self._last: LastLine | None = None
        self._synced = 0
        self.named = False
        self._stale = False
        self._changed = False

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is kept."""
        return self._file is not None

    @property
    def unsynced(self) -> bool:
        """Whether known bytes or the name are not, for sure, made durable by this process."""
        return self._file is not None and (self._stale or self._synced < self.size or not self.named)

    def refresh(self, access: Access = "write") -> bool:
        """Look whether the file is still the one it was; if not, forget everything and open what is there.

        Args:
            access: `read` for those who must change nothing, also where nothing can be changed.

        Returns:
            True if it is the same as far as it was known; it may have grown up to `end`.
        """
        with durable("opening", self.name):
            self._look(access)
        same, self._changed = not self._changed, False
        return same

    def _look(self, access: Access) -> None:
        now = self._root.directory.stat(self.name)
        if now is None:
            self._forget()
            return
        self.end = now.size
        if access == "write" and not self._writable:
            self.release()
        if self._file is not None and (self.identity != now.identity or now.size < self.size):
            self._forget()
        if self._file is None:
            self._recognise(*self._open(access))

    def _open(self, access: Access) -> tuple[File, FileStat]:
        file = self._root.directory.open(self.name, access)
        try:
            now = file.stat()
        except OSError:
            let_go(file)
            raise
        self._file, self._writable = file, access != "read"
        self.identity, self.end = now.identity, now.size
        return file, now

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes, fewer at the end of the file."""
        if self._file is None:
            return b""
        with durable("read", self.name):
            return self._file.read(offset, size)

    def unterminated(self) -> tuple[int, int]:
        """Offset and length of a last line that lacks its newline; the length is 0 if none does."""
        if not self.end or self._file is None or self.read(self.end - 1, 1) in (b"", b"\n"):
            return self.end, 0
        with durable("read", self.name):
            start = self._start_of_last_line(self._file, self.end)
        return start, self.end - start

    def extend(self, size: int) -> None:
        """Take lines of others, up to `size`, as known."""
        self.size = size

    def complete_line(self) -> None:
        """Give a whole last line the newline that it lacks."""
        if self._file is not None:
            with durable("write", self.name):
                write_all(self._file, self.end, b"\n")
            self.end += 1

    def cut(self, size: int) -> None:
        """Cut off an unterminated tail, which was never acknowledged."""
        if self._file is not None:
            with durable("cutting", self.name):
                self._file.truncate(size)
            self.size = self.end = size
            self._synced = min(self._synced, size)
            self._stale = True

    def append(self, data: bytes) -> None:
        """Add whole lines and make them, and all before them, durable; the file is made if it is not there.

        Raises:
            DurabilityError: The lines are not in the file, or the file is poisoned.
        """
        self._root.finish(self.appending(data))

    def appending(self, data: bytes, digest: str = "") -> Iterator[Wish]:
        """Do as `append` does, in steps.

        Args:
            data: Whole lines.
            digest: That of the last line, as a fingerprint has it, where it is known already.
        """
        file = self._file
        if file is None:
            with durable("opening", self.name):
                file, _ = self._open("create")
        start = self._first_unsynced()
        ticket = self._root.ticket()
        self._write(file, start, data)
        yield from self._syncing(file, start, ticket)
        # If this fails, the lines stay, unknown, and are found by the next section like those of another writer.
        self._settle_name()
        if digest:
            begun = self.size + data.rfind(b"\n", 0, -1) + 1
            self._last = LastLine(begun, self.size + len(data), digest)
        self.size += len(data)
        self.end = self._synced = self.size
        self._stale = False

    def settle(self) -> None:
        """Make what was found durable: rule 2 without an append."""
        if not self._writable:
            return  # Opened by a reader: whoever rests an ack on this file catches up first, and opens it to write.
        if self._file is not None and (self._stale or self._synced < self.size):
            self.append(b"")
        elif self._file is not None:
            self._settle_name()

    def forget(self) -> None:
        """Let go of all that was known, because the file was removed."""
        self._forget()

    def release(self) -> None:
        """Give the descriptor away, remembering enough to recognise the file."""
        if self._file is None:
            return
        self._fingerprint = self._fingerprint_of(self._file, self.size)
        if self._fingerprint is None:
            self._forget()
        self.close()

    def known(self) -> Fingerprint | None:
        """The file as far as it is known, None if that cannot be told."""
        return self._fingerprint if self._file is None else self._fingerprint_of(self._file, self.size)

    def found(self) -> Fingerprint | None:
        """The whole file as it was found, None if that cannot be told."""
        return None if self._file is None else self._fingerprint_of(self._file, self.end)

    def _fingerprint_of(self, file: File, size: int) -> Fingerprint | None:
        try:
            now = file.stat()
            last = self._last if self._last and self._last.end == size else self._read_last_line(file, size)
        except OSError:
            return None
        return Fingerprint(now.identity, size, last.start, last.digest, now.mtime_ns)

    def _read_last_line(self, file: File, end: int) -> LastLine:
        start = self._start_of_last_line(file, end)
        return LastLine(start, end, self._digest(file, start, end))

    def close(self) -> None:
        """Give the descriptor away for good."""
        if self._file is not None:
            let_go(self._file)
            self._file = None

    def _forget(self) -> None:
        """Let go of all that was known; the next `refresh` tells, even if this one does not come to its end."""
        self._changed = self._changed or self._file is not None or self._fingerprint is not None
        self.close()
        self._fingerprint = self._last = None
        self.size = self.end = self._synced = 0
        self.named = self._stale = False

    def _recognise(self, file: File, now: FileStat) -> None:
        """Notice, with a fresh descriptor, if this is not the file whose descriptor was given away."""
        known = self._fingerprint
        if known is None:
            return
        try:
            same = known.identity == now.identity and known.mtime_ns == now.mtime_ns and known.size <= now.size
            same = same and self._digest(file, known.start, known.size) == known.last_line
        except OSError:
            self.close()  # Not compared yet: the fingerprint stays for the next time.
            raise
        self._fingerprint = None
        if not same:
            self._changed = True
            self._last = None
            self.named = self._stale = False
            self.size = self._synced = 0

    def _digest(self, file: File, offset: int, end: int) -> str:
        """sha256 of a line, without its newline."""
        digest = hashlib.sha256()
        while offset < end and (part := file.read(offset, min(CHUNK, end - offset))):
            offset += len(part)
            digest.update(part.removesuffix(b"\n"))
        return digest.hexdigest()

    def _start_of_last_line(self, file: File, end: int) -> int:
        """Search backwards for the newline before the last line."""
        position, size = end - 1, NEAR
        while position > 0:
            start = max(0, position - size)
            found = file.read(start, position - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            position, size = start, CHUNK
        return 0

    def _first_unsynced(self) -> int:
        """Where rewriting must begin: see rule 2."""
        if self._file is None or self._synced >= self.size:
            return self.size
        with durable("read", self.name):
            last = self._start_of_last_line(self._file, self.size)
            if self.size - last < REWRITTEN < self.size:
                last = self._end_of_line(self._file, self.size - REWRITTEN - 1)
            elif self.size <= REWRITTEN:
                last = 0
        return max(self._synced, last)

    def _end_of_line(self, file: File, offset: int) -> int:
        """Search forwards for the end of the line that holds an offset; a newline is known to follow."""
        while True:
            found = file.read(offset, CHUNK).find(b"\n")
            if found >= 0:
                return offset + found + 1
            offset += CHUNK

    def _write(self, file: File, start: int, data: bytes) -> None:
        try:
            for offset in range(start, self.size, CHUNK):
                write_all(file, offset, file.read(offset, min(CHUNK, self.size - offset)))
            write_all(file, self.size, data)
        except OSError as error:
            raise self._cut_back(file, DurabilityError("write", self.name, error)) from error

    def _syncing(self, file: File, start: int, ticket: int) -> Iterator[Wish]:
        try:
            yield from self._root.datasync(file, ticket)
        except OSError as error:
            self._synced = min(self._synced, start)
            self._stale = True
            raise self._cut_back(file, DurabilityError("sync", self.name, error)) from error

    def _cut_back(self, file: File, failure: DurabilityError) -> DurabilityError:
        """Undo a failed append, never below what was there: rule 3. Gives the failure back, to be raised."""
        try:
            file.truncate(self.end)
            self._root.sync_file(file)
        except OSError:
            self.poison = failure
        return failure

    def _settle_name(self) -> None:
        if not self.named:
            self._root.sync()
            self.named = True
