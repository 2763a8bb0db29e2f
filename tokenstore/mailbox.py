"""What callers hand to an actor: one message an operation, with a place for its answer, and where it waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from tokenstore.budget import Budget
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Begin, Put
from tokenstore.records import TokenEntry

_ID_BYTES = 7
_LOG_PROB_BYTES = 22
_SCALAR_BYTES = 8
_LINE_BYTES = 256
"""Rough sizes of a line's parts, for the budget of bytes in flight: a bound, not a count."""


@attrs.define(eq=False)
class Solo:
    """An operation that is handled alone."""

    run: Callable[[Journal], Any]
    reads: bool = False
    """Whether it mostly reads, and so belongs to the threads of readers."""
    retires: bool = False
    """Whether the actor may end after it."""


Operation = Put | Begin | Solo


@attrs.define(eq=False)
class Message:
    """An operation on its way through an actor. Made, and its answer awaited, in the actor's event loop."""

    operation: Operation
    cost: int = 0
    """Estimated bytes that it puts in flight."""
    abandoned: bool = False
    """Its caller was cancelled: if it was not taken yet, it never will be."""
    result: Any = None
    error: BaseException | None = None
    made: float = attrs.field(factory=time.perf_counter)
    """When the caller asked."""
    _done: anyio.Event = attrs.field(factory=anyio.Event)

    def age(self) -> float:
        """Seconds since the caller asked."""
        return time.perf_counter() - self.made

    def answer(self, result: Any = None, error: BaseException | None = None) -> None:
        """Give the outcome and wake the caller; the first answer counts. A caller who has gone does not learn it."""
        if not self._done.is_set():
            self.result, self.error = result, error
            self._done.set()

    async def wait(self) -> Any:
        """Wait for the outcome. Cancelled while it is queued, the operation is never done; later, it is completed."""
        try:
            await self._done.wait()
        except BaseException:
            self.abandoned = True
            raise
        if self.error is not None:
            raise self.error
        return self.result


class Mailbox:
    """The messages of one actor, first come, first served; while it is full, senders wait for a place, in order.

    A message is always with its sender, in here, or in the hands of the actor, never in between: whoever ends an actor
    finds all that it must answer. Used inside one event loop.
    """

    def __init__(self, size: int) -> None:
        self._places = Budget(size)
        self._messages: deque[Message] = deque()
        self._arrived = anyio.Event()
        self._closed = False

    @property
    def queued(self) -> int:
        """Messages in here, and senders that wait for a place."""
        return self._places.taken + self._places.waiting

    async def deliver(self, message: Message) -> bool:
        """Put a message in, with no await if there is a place; false if the mailbox is closed.

        Cancelled while waiting for a place, the message is not in here.
        """
        await self._places.take(1)
        if self._closed:
            self._places.give(1)
            return False
        self._put(message)
        return True

    def try_deliver(self, message: Message) -> bool:
        """Put a message in at once; false if there is no place or the mailbox is closed."""
        delivered = not self._closed and self._places.try_take(1)
        if delivered:
            self._put(message)
        return delivered

    def _put(self, message: Message) -> None:
        self._messages.append(message)
        self._arrived.set()

    @property
    def first(self) -> Message | None:
        """The message that `take` would give now."""
        return self._messages[0] if self._messages else None

    async def take(self) -> Message | None:
        """Wait for the next message and take it out; None after the last one of a closed mailbox."""
        # Those who were answered just now come first with their next message, so that it joins the same batch.
        await anyio.lowlevel.checkpoint()
        while not self._messages and not self._closed:
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self.take_nowait()

    def take_nowait(self) -> Message | None:
        """Take the next message out, None if there is none."""
        if not self._messages:
            return None
        self._places.give(1)
        return self._messages.popleft()

    def close(self) -> None:
        """Let no more messages in; those that are in here stay, and senders that wait for a place are turned away."""
        self._closed = True
        self._arrived.set()

    def end(self) -> list[Message]:
        """Close, and take out all that is left."""
        self.close()
        return list(iter(self.take_nowait, None))


def put_message(entry: TokenEntry) -> Message:
    """The message that stores an entry, with an estimate of the bytes of its line."""
    numbers = _ID_BYTES * (len(entry.prompt_token_ids) + len(entry.generation_token_ids))
    numbers += _LOG_PROB_BYTES * len(entry.generation_log_probs)
    rest = sum(_size(value) for value in (entry.output_items, entry.routed_experts, entry.extra))
    return Message(Put(entry), _LINE_BYTES + numbers + rest)


def begin_message(call_id: str) -> Message:
    """The message that records an intent."""
    return Message(Begin(call_id), _LINE_BYTES)


def _size(value: Any, depth: int = 0) -> int:
    """Estimate the bytes of a JSON value; of a long list of lists, by its first element."""
    if isinstance(value, str):
        return len(value) if value.isascii() else 3 * len(value)
    if depth > 32:
        return _SCALAR_BYTES
    if isinstance(value, dict):
        return sum(_SCALAR_BYTES + _size(key) + _size(item, depth + 1) for key, item in value.items())
    if isinstance(value, list | tuple) and value:
        if len(value) > 64:
            return len(value) * _size(value[0], depth + 1)
        return sum(_size(item, depth + 1) for item in value)
    return _SCALAR_BYTES
