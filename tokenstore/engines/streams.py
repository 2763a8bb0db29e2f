"""A streamed answer, put together chunk by chunk; what all engines share.

1. A chunk may be a parsed event (a dict, or an object of the openai client), a `str` (whole lines, with or without
   `data: ` before the JSON), or `bytes` (a piece of the body, cut anywhere).
2. What `feed` refused, `entry` refuses too: an entry is never made around a chunk that could not be read.
3. `[DONE]` ends the stream, but is not what makes it whole: that is the engine's word for why it finished.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Unpack

from tokenstore.engines.answer import Answer, entry_of
from tokenstore.engines.call import About, Call
from tokenstore.engines.failures import raise_failure, speaks
from tokenstore.engines.values import object_of, parsed
from tokenstore.errors import EngineAnswerError
from tokenstore.records import TokenEntry

_OTHER_FIELDS = ("event:", "id:", "retry:", ":")
"""Lines of server-sent events that carry no data; a comment keeps the connection alive."""


class Assembler(ABC):
    """What is common to the `StreamAssembler` of every engine."""

    engine: ClassVar[str]

    def __init__(self, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> None:
        self._call = Call(engine=self.engine, rollout_id=rollout_id, model_call_id=model_call_id, **about)
        self._rest = bytearray()
        self._chunks = 0
        self._done = False
        self._spoke = False
        self._refusal: EngineAnswerError | None = None

    def feed(self, chunk: Any) -> None:
        """Take the next chunk.

        Args:
            chunk: A parsed event, a `str` of whole lines, or `bytes` cut anywhere.

        Raises:
            EngineAnswerError: It cannot be trusted, and so the whole stream cannot; mark the rollout incomplete.
            EngineFailureError: The engine says that it failed; ask `refusal_from_response` about it.
        """
        if self._refusal is not None:
            raise self._refusal
        try:
            self._feed(chunk)
        except EngineAnswerError as error:
            self._refusal = error
            raise

    def entry(self) -> TokenEntry:
        """Make the entry, when the stream has ended.

        Raises:
            UnfinishedAnswerError: The stream was cut or aborted.
            EngineAnswerError: A chunk was refused, or what came together breaks a rule.
        """
        rest, self._rest = self._rest, bytearray()
        if rest:  # the body ended without a newline
            self.feed(rest + b"\n")
        if self._refusal is not None:
            raise self._refusal
        return entry_of(self._call, self._answer())

    def _feed(self, chunk: Any) -> None:
        if isinstance(chunk, bytes | bytearray):
            self._piece(chunk)
        elif isinstance(chunk, str):
            for line in chunk.split("\n"):
                self._line(line)
        else:
            self._event(chunk)

    def _piece(self, piece: bytes | bytearray) -> None:
        self._rest += piece
        if b"\n" not in piece:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            try:
                text = line.decode()
            except UnicodeDecodeError:
                self._call.unfinished(f"chunk {self._chunks}", "holds bytes that are no UTF-8")
            self._line(text)

    def _line(self, line: str) -> None:
        text = line.strip()
        if not text or text.startswith(_OTHER_FIELDS):
            return
        text = text.removeprefix("data:").lstrip()
        if text == "[DONE]":
            self._done = True
        elif text:
            self._event(parsed(self._call, text))

    def _event(self, value: Any) -> None:
        where = f"chunk {self._chunks}"
        self._chunks += 1
        event = object_of(self._call, value, where)
        if self._done:
            self._call.wrong(where, "comes after [DONE]: two streams were mixed", chunks=self._chunks)
        self._check(event)
        self._take(event, where)
        self._spoke = self._spoke or speaks(event)

    def _check(self, body: Mapping[str, Any]) -> None:
        """Raise what an error object says; text that came without ids counts as one."""
        raise_failure(self._call, body, generated=max(self._generated(), int(self._spoke)))

    @abstractmethod
    def _take(self, event: Mapping[str, Any], where: str) -> None:
        """Take an event that is no error; each engine has its own."""

    @abstractmethod
    def _answer(self) -> Answer:
        """Give what came together; each engine has its own."""

    @abstractmethod
    def _generated(self) -> int:
        """Count the ids that have come."""
