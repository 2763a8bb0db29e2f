"""Guarding one model call: whatever happens to it, the rollout's record says so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from tokenstore.errors import InvalidEntryError
from tokenstore.protocols import TokenSink
from tokenstore.records import TokenEntry, entry_from

logger = logging.getLogger("tokenstore")
MARK_SECONDS = 1.0
"""How long leaving may take to record a loss: a caller that is being cancelled must get away."""


class Capture:
    """One model call that is being captured."""

    def __init__(self, sink: TokenSink, rollout_id: str, model_call_id: str) -> None:
        self.rollout_id = rollout_id
        self.model_call_id = model_call_id
        self.settled = False
        """Whether the call's entry or refusal is durable."""
        self._sink = sink

    async def put(self, entry: TokenEntry) -> None:
        """Store what the call gave, as `put` of the store does.

        Raises:
            InvalidEntryError: The entry is of another call.
        """
        entry = entry_from(entry)
        for field in ("rollout_id", "model_call_id"):
            if getattr(entry, field) != getattr(self, field):
                raise InvalidEntryError(
                    field, "is not the one that is being captured", model_call_id=self.model_call_id
                )
        await self._sink.put(entry)
        self.settled = True

    async def refuse(self, code: str | None) -> None:
        """Record that the engine refused the call, as `refuse_call` of the store does."""
        await self._sink.refuse_call(self.rollout_id, model_call_id=self.model_call_id, code=code)
        self.settled = True


@asynccontextmanager
async def capturing(
    sink: TokenSink, rollout_id: str, model_call_id: str, mark_if_open: Callable[[], Awaitable[None]]
) -> AsyncIterator[Capture]:
    """Record the intent, run the body, and record a loss if the body settled nothing."""
    await sink.begin_call(rollout_id, model_call_id)
    call = Capture(sink, rollout_id, model_call_id)
    try:
        yield call
    finally:
        if not call.settled:
            await _record_loss(call, mark_if_open)


async def _record_loss(call: Capture, mark_if_open: Callable[[], Awaitable[None]]) -> None:
    with anyio.move_on_after(MARK_SECONDS, shield=True) as scope:
        try:
            await mark_if_open()
        except Exception:
            # The intent is durable, so freeze masks the rollout all the same; what the body raised is what matters.
            logger.exception("rollout %s: the loss of call %s was not marked", call.rollout_id, call.model_call_id)
    if scope.cancelled_caught:
        logger.error("rollout %s: marking the loss of call %s took too long", call.rollout_id, call.model_call_id)
