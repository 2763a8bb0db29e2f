"""What the bytes of a file of entries say: split into lines, look at each, come to a verdict. Reads only.

A line is an entry, damaged, or unacceptable. A power cut can leave a hole of NULs inside a batch with valid lines after
it, and a hole ends in the middle of a line of its own; so what follows the last NUL of a line is looked at by itself.
Memory is bounded by the longest line that is allowed: of a longer one only the length is kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import attrs

from tokenstore.codec import (
    DamagedLineError,
    LineHead,
    NewerSchemaError,
    StoredLine,
    UnacceptableLineError,
    decode_line,
    inspect_line,
)
from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.damage import damaged
from tokenstore.journal.logfile import CHUNK

_NEWLINES = re.compile(rb"\n+")
Read = Callable[[int, int], bytes]
"""Reads up to some bytes at an offset."""


@attrs.frozen
class RawLine:
    """A line's place and bytes."""

    offset: int
    """Where it begins."""
    end: int
    """Where the next one begins."""
    payload_offset: int
    """Where the bytes behind its last NUL begin."""
    payload: bytes | None
    """Those bytes, without the newline; None if there are more than is allowed."""
    terminated: bool
    """Whether it ends in a newline."""


class _Builder:
    """Collects a line from the chunks of a file."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset = self._payload_offset = self._position = offset
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def empty(self) -> bool:
        return self._position == self._offset

    def feed(self, part: bytes) -> None:
        self._position += len(part)
        nul = part.rfind(b"\0")
        if nul >= 0:
            part = part[nul + 1 :]
            self._payload_offset = self._position - len(part)
            self._parts.clear()
            self._size = 0
        self._size += len(part)
        if self._size <= self._limit:
            self._parts.append(part)
        else:
            self._parts.clear()

    def finish(self, *, terminated: bool) -> RawLine:
        payload = b"".join(self._parts) if self._size <= self._limit else None
        return RawLine(self._offset, self._position + terminated, self._payload_offset, payload, terminated)


def split_lines(read: Read, start: int, end: int, limit: int) -> Iterator[RawLine]:
    """Split bytes of a file into lines; the last one may be unterminated. Empty ones that follow each other are one.

    Args:
        read: Reads the file.
        start: Where to begin; a line must begin there.
        end: Where to stop.
        limit: Longest payload that is kept, in bytes.
    """
    line = _Builder(start, limit)
    position = start
    while position < end and (chunk := read(position, min(CHUNK, end - position))):
        begin = 0
        while (cut := chunk.find(b"\n", begin)) >= 0:
            if line.empty and (run := _NEWLINES.match(chunk, begin)):
                cut = run.end() - 1
                yield RawLine(position + begin, position + cut + 1, position + begin, b"", terminated=True)
            else:
                line.feed(chunk[begin:cut])
                yield line.finish(terminated=True)
            begin = cut + 1
            line = _Builder(position + begin, limit)
        line.feed(chunk[begin:])
        position += len(chunk)
    if not line.empty:
        yield line.finish(terminated=False)


@attrs.frozen
class Found:
    """What a line is."""

    offset: int
    """Where the line's entry, or the line, begins."""
    end: int
    """Where the next line begins."""
    damage: tuple[str, ...] = ()
    """Reasons: `damaged:<offset>+<length>`, `unacceptable:<offset>`."""
    payload: bytes = b""
    """The bytes of the entry, empty if there is none."""
    head: LineHead | None = None
    """The entry's call and base, None if there is no entry."""
    terminated: bool = True
    """Whether the line ends in a newline."""

    @property
    def digest(self) -> str:
        """sha256 of the entry's bytes, as a state file holds it."""
        return hashlib.sha256(self.payload).hexdigest()


def examine(raw: RawLine, rollout_id: str, file: str) -> Found:
    """Tell what a line is.

    Raises:
        CorruptRolloutError: It was written by a newer library: nothing may be concluded or changed.
    """
    whole = damaged(raw.offset, raw.end - raw.offset)
    if raw.payload is None:
        return Found(raw.offset, raw.end, (f"unacceptable:{raw.offset}",), terminated=raw.terminated)
    try:
        head = inspect_line(raw.payload, rollout_id)
    except DamagedLineError:
        return Found(raw.offset, raw.end, (whole,), terminated=raw.terminated)
    except UnacceptableLineError:
        return Found(raw.offset, raw.end, (f"unacceptable:{raw.offset}",), terminated=raw.terminated)
    except NewerSchemaError as error:
        raise CorruptRolloutError(file, f"the line at byte {raw.offset} has {error}; nothing was changed") from None
    return _found(raw, raw.payload, head)


def _found(raw: RawLine, payload: bytes, head: LineHead) -> Found:
    """An entry's line, maybe behind a hole."""
    hole = raw.payload_offset - raw.offset
    damage = (damaged(raw.offset, hole),) if hole else ()
    return Found(raw.payload_offset, raw.end, damage, payload, head, raw.terminated)


@attrs.frozen
class LineReader:
    """Reads the lines of one rollout's file."""

    read: Read
    """Reads the file."""
    rollout_id: str
    """The rollout that the lines must be of."""
    file: str
    """The file's name, for messages."""
    limit: int
    """Longest line that is looked at, in bytes."""

    def find(self, start: int, end: int) -> Iterator[Found]:
        """Tell what each line of a range is, the unterminated last one included."""
        for raw in split_lines(self.read, start, end, self.limit):
            yield examine(raw, self.rollout_id, self.file)

    def read_whole(self, start: int, end: int) -> Iterator[tuple[Found, StoredLine | None]]:
        """Do as `find` does and read each entry's line whole; None where there is no entry after all."""
        for raw in split_lines(self.read, start, end, self.limit):
            try:
                line = decode_line(raw.payload or b"", self.rollout_id)
            except (DamagedLineError, UnacceptableLineError, NewerSchemaError):
                # Seldom, so only now is it asked what the line is: whoever is read whole would be parsed twice.
                yield examine(raw, self.rollout_id, self.file), None
            else:
                yield _found(raw, raw.payload or b"", line.head), line

    def decode_at(self, offset: int) -> StoredLine:
        """Read again the entry's line that begins at an offset."""
        raw = next(split_lines(self.read, offset, offset + self.limit + 1, self.limit))
        return decode_line(raw.payload or b"", self.rollout_id)
