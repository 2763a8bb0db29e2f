"""Bytes of a JSONL file to numbered lines and entries: pure, so that it runs in a worker thread.

Memory stays bounded whatever the input: a chunk at a time, and of a line that is too long only the fact is kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tokenstore.codec import decode_entry, loads
from tokenstore.errors import TokenStoreError
from tokenstore.records import RESERVED_KEYS, TokenEntry


@attrs.frozen
class Line:
    """A line of an input file that is not blank, by its number from 1; `data` is `None` if it was too long to keep."""

    number: int
    data: bytes | None


@attrs.frozen
class Refusal:
    """Why a line did not become an entry, or an entry did not enter the store."""

    line: int
    error: str
    problem: str


class LineSplitter:
    """Cuts chunks of a file into lines, without ever holding more than one line's limit of an unfinished one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._number = 0
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Take the next chunk and give the lines that end in it."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._keep(end)
            yield from self._finished()
        self._keep(rest)

    def end(self) -> Iterator[Line]:
        """Give the last line if it lacks its newline."""
        if self._size:
            yield from self._finished()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _finished(self) -> Iterator[Line]:
        self._number += 1
        data = None if self._size > self._limit else b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if data is None or data.strip():
            yield Line(self._number, data)


def decode(line: Line, limit: int) -> TokenEntry | Refusal:
    """Make an entry of a line, or say why it is none."""
    if line.data is None:
        return Refusal(line.number, "InvalidEntryError", f"the line is longer than {limit:,} bytes")
    try:
        value = loads(line.data)
    except RecursionError:
        return Refusal(line.number, "ValueError", "not JSON that can be read: it is nested too deeply")
    except ValueError as error:
        return Refusal(line.number, type(error).__name__, f"not JSON: {error}")
    if isinstance(value, dict) and not RESERVED_KEYS.isdisjoint(value):
        return Refusal(line.number, "InvalidEntryError", _own_line(value))
    try:
        return decode_entry(value)
    except TokenStoreError as error:
        return refusal_of(line.number, error)


def refusal_of(line: int, error: TokenStoreError) -> Refusal:
    """Say that the store refused a line."""
    return Refusal(line, type(error).__name__, str(error))


def _own_line(value: dict[str, object]) -> str:
    keys = ", ".join(sorted(RESERVED_KEYS & value.keys()))
    return f"is a line of a store's own file (it has {keys}), not an entry; open its directory as a store instead"
