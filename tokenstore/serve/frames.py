"""Server-sent events, cut out of a body that comes in pieces; the bytes of each are kept as they came."""

from __future__ import annotations

import re

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")
_FIELDS = (b"event:", b"id:", b"retry:", b":")


class OversizeError(Exception):
    """An event is larger than is allowed."""


class Frames:
    """Cuts a body into events."""

    def __init__(self, limit: int) -> None:
        self._rest = bytearray()
        self._limit = limit

    def feed(self, piece: bytes) -> list[bytes]:
        """Take a piece of the body and give the events that are whole now, each with its blank line.

        Raises:
            OversizeError: An event is larger than the limit.
        """
        seen = max(0, len(self._rest) - 3)  # an end may have begun in the piece before
        self._rest += piece
        frames, start = [], 0
        while match := _END.search(self._rest, max(start, seen)):
            frames.append(bytes(self._rest[start : match.end()]))
            start = match.end()
        del self._rest[:start]
        if len(self._rest) > self._limit:
            raise OversizeError
        return frames

    def end(self) -> bytes:
        """Give what came after the last whole event."""
        rest, self._rest = bytes(self._rest), bytearray()
        return rest


def data_of(frame: bytes) -> bytes | None:
    """Give the data of an event, None if it has none, as a comment that keeps a connection alive.

    Raises:
        ValueError: A line is none of an event.
    """
    found = []
    for line in frame.splitlines():
        if line.startswith(b"data:"):
            found.append(line[5:].removeprefix(b" "))
        elif line.strip() and not line.startswith(_FIELDS):
            raise ValueError("a line is none of a server-sent event")
    return b"\n".join(found) if found else None


def with_data(frame: bytes, data: bytes) -> bytes:
    """Give an event with other data, its other lines as they were."""
    others = [line for line in frame.splitlines() if line.strip() and not line.startswith(b"data:")]
    return b"\n".join([*others, b"data: " + data]) + b"\n\n"
