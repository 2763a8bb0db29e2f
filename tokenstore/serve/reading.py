"""From the bytes of an engine's answer to the entry and to what the client may see; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenstore.codec import dumps
from tokenstore.engines.call import Call
from tokenstore.engines.values import parsed
from tokenstore.errors import EngineAnswerError
from tokenstore.records import TokenEntry
from tokenstore.serve.asking import Plan
from tokenstore.serve.frames import Frames, OversizeError, data_of, with_data
from tokenstore.serve.redaction import event_without, tree_of, without

DONE = b"[DONE]"
_ENDED = ("response.completed", "response.incomplete")


def read_whole(plan: Plan, rollout_id: str, call_id: str, body: bytes) -> tuple[TokenEntry, bytes]:
    """Read a whole answer.

    Returns:
        The entry, and the answer as the client may see it: the same bytes, if the client asked for all that is in it.

    Raises:
        EngineAnswerError: The answer cannot be trusted.
    """
    answer = parsed(_call(plan, rollout_id, call_id), body)
    entry = plan.endpoint.engine.entry_from_response(answer, rollout_id=rollout_id, model_call_id=call_id, **plan.about)
    shown = without(answer, tree_of(plan.hidden))
    return entry, body if shown is answer else dumps(shown, sort_keys=False)


class Passing:
    """A stream on its way: takes the engine's bytes and gives what the client may see of them now."""

    def __init__(self, plan: Plan, rollout_id: str, call_id: str, limit: int) -> None:
        self._held = bytearray()
        self._limit = limit
        self.failed: bytes | None = None
        """The event that was refused, if it was the engine's word that it failed."""
        self._call = _call(plan, rollout_id, call_id)
        self._tree = tree_of(plan.hidden)
        self._frames = Frames(limit)
        self._ending = False
        self._assembler = plan.endpoint.engine.StreamAssembler(
            rollout_id=rollout_id, model_call_id=call_id, **plan.about
        )

    def take(self, piece: bytes) -> bytes:
        """Take a piece of the body and give what may be passed on.

        Raises:
            EngineAnswerError: The stream cannot be trusted.
            OversizeError: An event is too large, or what comes after the end.
        """
        shown = []
        for frame in self._frames.feed(piece):
            seen = self._frame(frame)
            if self._ending:
                self._hold(seen)
            else:
                shown.append(seen)
        return b"".join(shown)

    @property
    def held(self) -> bytes:
        """The end of the stream, which the client may see when the entry is durable."""
        return bytes(self._held)

    def entry(self) -> TokenEntry:
        """Make the entry when the body has ended.

        Raises:
            EngineAnswerError: The stream was cut, or cannot be trusted.
            OversizeError: What comes after the end is too large.
        """
        if rest := self._frames.end():
            self._hold(self._frame(rest))
        made: TokenEntry = self._assembler.entry()
        return made

    def _hold(self, seen: bytes) -> None:
        self._held += seen
        if len(self._held) > self._limit:
            raise OversizeError

    def _frame(self, frame: bytes) -> bytes:
        try:
            data = data_of(frame)
        except ValueError as error:
            call_id = self._call.model_call_id
            raise EngineAnswerError(self._assembler.engine, "stream", str(error), model_call_id=call_id) from None
        if data is None:
            return frame
        if data.strip() == DONE:
            self._ending = True
            self._assembler.feed("[DONE]")
            return frame
        return self._event(frame, data)

    def _event(self, frame: bytes, data: bytes) -> bytes:
        event = parsed(self._call, data)
        try:
            self._assembler.feed(event)
        except EngineAnswerError:
            self.failed = frame if isinstance(event, Mapping) and event.get("error") else None
            raise
        self._ending = self._ending or ends(event)
        shown = event_without(event, self._tree)
        if shown is None:
            return b""
        return frame if shown is event else with_data(frame, dumps(shown, sort_keys=False))


def ends(event: Mapping[str, Any]) -> bool:
    """Tell whether an event says that the answer is whole."""
    choices = event.get("choices")
    meta = event.get("meta_info")
    return (
        (isinstance(choices, list) and any(isinstance(one, dict) and one.get("finish_reason") for one in choices))
        or (isinstance(meta, dict) and bool(meta.get("finish_reason")))
        or event.get("type") in _ENDED
        or event.get("stop") is True
    )


def _call(plan: Plan, rollout_id: str, call_id: str) -> Call:
    engine: str = plan.endpoint.engine.ENGINE
    return Call(engine=engine, rollout_id=rollout_id, model_call_id=call_id)
