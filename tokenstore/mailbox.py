"""What callers hand to an actor: one message an operation, with a place for its answer, and where it waits."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from tokenstore.codec import Draft
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Begin, Put
from tokenstore.loop import Bell
from tokenstore.records import TokenEntry

_ID_BYTES = 7
_LOG_PROB_BYTES = 22
_SCALAR_BYTES = 8
_KEY_BYTES = 16
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
    in_steps: bool = False
    """Whether `run` gives a critical section in steps, which goes to the disk with those of others if many come."""


Operation = Put | Begin | Solo


@attrs.define(eq=False)
class Message:
    """An operation on its way through an actor. Made anywhere, and its answer awaited in the actor's event loop."""

    operation: Operation
    cost: int = 0
    """Estimated bytes that it puts in flight."""
    abandoned: bool = False
    """Its caller was cancelled: if it was not taken yet, it never will be."""
    result: Any = None
    error: BaseException | None = None
    made: float = attrs.field(factory=time.perf_counter)
    """When the caller asked."""
    _done: Bell = attrs.field(factory=Bell)

    def age(self) -> float:
        """Seconds since the caller asked."""
        return time.perf_counter() - self.made

    def answer(self, result: Any = None, error: BaseException | None = None) -> None:
        """Give the outcome and wake the caller; the first answer counts. A caller who has gone does not learn it."""
        if not self._done.rung:
            self.result, self.error = result, error
            self._done.ring()

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
    """The messages of one actor, first come, first served; while it is full, senders wait outside, in order.

    A message is always with its sender, in here, or in the hands of the actor, never in between: whoever ends an actor
    finds all that it must answer. Used inside one event loop.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._messages: deque[Message] = deque()
        self._outside: OrderedDict[Message, anyio.Event] = OrderedDict()
        self._arrived = Bell()
        self._closed = False

    @property
    def queued(self) -> int:
        """Messages in here and outside."""
        return len(self._messages) + len(self._outside)

    async def deliver(self, message: Message) -> bool:
        """Put a message in, with no await if there is a place; false if the mailbox is closed."""
        if self.try_deliver(message):
            return True
        return not self._closed and await self._wait_outside(message)

    def try_deliver(self, message: Message) -> bool:
        """Put a message in at once; false if there is no place or the mailbox is closed."""
        if self._closed or self.queued >= self._size:
            return False
        self._messages.append(message)
        self._arrived.ring()
        return True

    async def _wait_outside(self, message: Message) -> bool:
        """Wait until the message was let in, or the mailbox closed."""
        place = self._outside[message] = anyio.Event()
        try:
            await place.wait()
        except BaseException:
            message.abandoned = True  # it may have been let in meanwhile
            raise
        finally:
            turned_away = self._outside.pop(message, None) is not None
        return not turned_away

    @property
    def first(self) -> Message | None:
        """The message that `take` would give now."""
        return self._messages[0] if self._messages else None

    async def take(self) -> Message | None:
        """Wait for the next message and take it out; None after the last one of a closed mailbox."""
        # Those who were answered just now come first with their next message, so that it joins the same batch.
        await anyio.lowlevel.checkpoint()
        while not self._messages and not self._closed:
            self._arrived = Bell()
            await self._arrived.wait()
        return self.take_nowait()

    def take_nowait(self) -> Message | None:
        """Take the next message out, None if there is none."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        if self._outside and not self._closed:
            # Let in here, not by its sender: trio wakes those who wake together in any order.
            entering, place = self._outside.popitem(last=False)
            self._messages.append(entering)
            place.set()
        return message

    def close(self) -> None:
        """Let no more messages in; those in here stay, those outside are turned away."""
        self._closed = True
        self._arrived.ring()
        for place in self._outside.values():
            place.set()

    def end(self) -> list[Message]:
        """Close, and take out all that is left."""
        self.close()
        return list(iter(self.take_nowait, None))


def put_message(entry: TokenEntry | Draft) -> Message:
    """The message that stores an entry, with an estimate of the bytes of its line."""
    if isinstance(entry, Draft):
        return Message(Put(entry), _LINE_BYTES + 2 * entry.size)  # 4 bytes for each id of the prompt, in the line 7
    numbers = _ID_BYTES * (len(entry.prompt_token_ids) + len(entry.generation_token_ids))
    numbers += _LOG_PROB_BYTES * len(entry.generation_log_probs)
    numbers += _size(entry.output_items) if entry.output_items else 0
    numbers += _size(entry.extra) if entry.extra else 0
    numbers += _size([entry.routed_experts]) if entry.routed_experts is not None else 0
    return Message(Put(entry), _LINE_BYTES + numbers)


def begin_message(call_id: str) -> Message:
    """The message that records an intent."""
    return Message(Begin(call_id), _LINE_BYTES)


def _size(values: list[Any] | dict[str, Any]) -> int:
    """Estimate the bytes of JSON values; of a long list, by its first element.

    Each list and object is looked at once: one that holds itself, which the codec will refuse, would have no end here.
    """
    size = 0
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(values, 1)]
    while waiting:
        value, times = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            size += times * _KEY_BYTES * len(value)
            value = value.values()
        elif len(value) > 64:
            times *= len(value)
            value = value[:1]
        for item in value:
            if isinstance(item, str):
                size += times * (len(item) if item.isascii() else 3 * len(item))
            elif isinstance(item, dict | list | tuple):
                waiting.append((item, times))
            else:
                size += times * _SCALAR_BYTES
    return size
