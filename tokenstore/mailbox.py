"""What callers hand to an actor: one message an operation, with a place for its answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
import attrs

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
        """Give the outcome and wake the caller; a caller who has gone does not learn it."""
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
