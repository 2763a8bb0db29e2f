"""Long answers of a shard: given in parts of bounded size, each asked for with a ticket.

A shard holds two parts and one item at a time, and of a snapshot its entries, which it has verified as a whole. Tickets
do not outlive their process, nor `KEEP_SECONDS` without being asked for: whoever loses one asks anew, which changes
nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from tokenstore.cluster.wire import PART_BYTES, EntryWriter, Part, framed, plain_frame
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.store import TokenCaptureStore

KEEP_SECONDS = 300.0
"""A trainer that pauses longer within one snapshot begins again."""
MAX_STREAMS = 256
"""Answers being read at once; above that the one longest left alone is forgotten."""

Pull = Callable[[], Awaitable[bytes | None]]
"""Gives the next frame, None at the end."""


class Stream:
    """A long answer while it is read.

    Args:
        head: What comes before the items.
        pull: Gives the next item as a frame.
    """

    def __init__(self, head: Any, pull: Pull) -> None:
        self.touched = time.monotonic()
        self._head = head
        self._pull = pull
        self._ready = bytearray()
        self._over = False
        self._number = 0
        self._last: tuple[Any, bytes, bool] | None = None
        self._turn = anyio.Lock()

    async def part(self, number: int) -> tuple[Any, bytes, bool]:
        """Give head, bytes, and whether it is the last part. Asked twice at once, as Ray may, it gives the same twice.

        Args:
            number: Which part; the next one, or once more the one before.

        Raises:
            LookupError: It is neither.
        """
        async with self._turn:
            return await self._part(number)

    async def _part(self, number: int) -> tuple[Any, bytes, bool]:
        self.touched = time.monotonic()
        if self._last is not None and number == self._number - 1:
            return self._last
        if number != self._number:
            raise LookupError(f"part {number} is gone, {self._number} is next")
        await self._fill()
        data = bytes(self._ready[:PART_BYTES])
        del self._ready[:PART_BYTES]
        self._last = (self._head, data, self._over and not self._ready)
        self._head = None
        self._number += 1
        return self._last

    async def _fill(self) -> None:
        while not self._over and len(self._ready) < PART_BYTES:
            frame = await self._pull()
            if frame is None:
                self._over = True
            else:
                self._ready += framed(frame)


class Outbox:
    """The long answers of a shard that are being read, by their tickets."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}

    async def begin(self, stream: Stream) -> Part:
        """Give the first part of an answer."""
        return await self._part(secrets.token_hex(16), stream, 0)

    async def more(self, ticket: str, number: int) -> Part:
        """Give a further part.

        Raises:
            LookupError: There is no such ticket, or no such part any more.
        """
        return await self._part(ticket, self._streams[ticket], number)

    async def _part(self, ticket: str, stream: Stream, number: int) -> Part:
        head, data, last = await stream.part(number)
        self._streams.pop(ticket, None)
        self.forget(time.monotonic() - KEEP_SECONDS)
        if not last:
            self._streams[ticket] = stream
        return Part(head, data, "" if last else ticket)

    def forget(self, before: float) -> None:
        """Forget what nobody has read from since then, and the oldest of too many."""
        for ticket, stream in list(self._streams.items()):
            if stream.touched < before or len(self._streams) >= MAX_STREAMS:
                del self._streams[ticket]


def snapshot_stream(snapshot: TokenCaptureSnapshot) -> Stream:
    """A snapshot: everything but the entries, then the entries."""
    writer = EntryWriter()
    entries = iter(snapshot.entries)

    async def pull() -> bytes | None:
        await checkpoint()
        entry = next(entries, None)
        return None if entry is None else writer.frame(entry)

    fields = {name: getattr(snapshot, name) for name in SNAPSHOT_FIELDS}
    return Stream({**fields, "count": len(snapshot.entries)}, pull)


def entries_stream(store: TokenCaptureStore, rollout_id: str) -> Stream:
    """The entries of a rollout, read from the disk as they are asked for."""
    writer = EntryWriter()
    entries = store.entries(rollout_id)

    async def pull() -> bytes | None:
        entry = await anext(entries, None)
        return None if entry is None else writer.frame(entry)

    return Stream(None, pull)


def rollouts_stream(store: TokenCaptureStore) -> Stream:
    """Every rollout of a store."""
    rollouts = store.rollouts()

    async def pull() -> bytes | None:
        status = await anext(rollouts, None)
        return None if status is None else plain_frame(status)

    return Stream(None, pull)


SNAPSHOT_FIELDS = (
    "rollout_id",
    "incomplete",
    "snapshot_id",
    "version",
    "refusals",
    "incomplete_reasons",
    "open_calls",
    "frozen",
)
"""Fields of a snapshot beside its entries."""
