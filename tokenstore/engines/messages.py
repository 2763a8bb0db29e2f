"""The content of a streamed answer, put together: text, reasoning, tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenstore.engines.answer import content_of
from tokenstore.engines.call import Call
from tokenstore.engines.values import list_of, object_of, optional_object, path, text_of

_GROWING = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
"""Strings of a message that come in parts; of anything else the last value that is not null stays."""


class Message:
    """A message, or the text of a completion, that grows by chunks."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str]] = {}
        self._rest: dict[str, Any] = {}
        self._tool_calls: dict[int, dict[str, Any]] = {}
        self._any = False

    def grow(self, call: Call, choice: Mapping[str, Any], where: str) -> None:
        """Add what a chunk of a choice brings: a `delta` of chat, or a `text` of completions.

        Raises:
            EngineAnswerError: It is of another form.
        """
        if choice.get("delta") is None:
            text = text_of(call, choice, "text", where)
            delta: Mapping[str, Any] = {} if text is None else {"content": text}
        else:
            delta = object_of(call, choice["delta"], path(where, "delta"))
        self._any = self._any or bool(delta)
        for key, value in delta.items():
            self._grow(call, delta, key, value, path(where, "delta"))

    def items(self) -> list[dict[str, Any]]:
        """Give the content as output items, none if only ids came."""
        if not self._any:
            return []
        grown = {key: "".join(parts) for key, parts in self._parts.items()}
        calls = [self._tool_calls[index] for index in sorted(self._tool_calls)]
        return [content_of({**self._rest, **grown, **({"tool_calls": calls} if calls else {})})]

    def _grow(self, call: Call, delta: Mapping[str, Any], key: str, value: Any, where: str) -> None:
        if value is None:
            return
        if key in _GROWING:
            self._parts.setdefault(key, []).append(text_of(call, delta, key, where) or "")
        elif key == "tool_calls":
            for at, part in enumerate(list_of(call, value, path(where, key))):
                self._grow_tool_call(call, object_of(call, part, f"{where}.tool_calls[{at}]"), at, where)
        else:
            self._rest[key] = value

    def _grow_tool_call(self, call: Call, part: Mapping[str, Any], at: int, where: str) -> None:
        """Add a part of a tool call: its id and name come once, its arguments in parts."""
        field = f"{where}.tool_calls[{at}]"
        index = part.get("index", at)
        if type(index) is not int:
            call.wrong(f"{field}.index", "is no int")
        known = self._tool_calls.setdefault(index, {})
        function = {**known.get("function", {})}
        for key, value in optional_object(call, part, "function", field).items():
            if key == "arguments" and isinstance(value, str):
                function[key] = function.get(key, "") + value
            elif value is not None:
                function[key] = value
        known.update({key: value for key, value in part.items() if value is not None and key != "index"})
        if function:
            known["function"] = function
