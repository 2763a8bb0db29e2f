"""One entry as one line: the canonical form, its checksum, and the strict reading of anybody's lines (`draft` writes).

A line is UTF-8 JSON, no spaces, keys sorted. With shared prompts, its last member is `"crc32":<uint32>` over the bytes
before that member's comma, and the prompt may stand as `prompt_base` and `prompt_rest`. A reader knows three kinds of
bad lines: damaged (not well-formed, or the checksum disagrees), unacceptable (well-formed, but no entry of this
rollout), and of a newer schema.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from tokenstore.codec.checks import SLICE, check_json_fields, finite_floats
from tokenstore.codec.content import little_endian
from tokenstore.codec.packing import pack_ids
from tokenstore.codec.plain import decode_entry, loads, loads_vouched
from tokenstore.codec.prompts import PromptBase
from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.ids import recordable_call_id
from tokenstore.records import SCHEMA_VERSION, TokenEntry

T = TypeVar("T")

_LAST_MEMBER = re.compile(rb',"([^"\\]{1,32})":(0|[1-9]\d{0,9})\}\Z')
_LAST_MEMBER_BYTES = 64
_LARGE_LINE = 32 * SLICE
"""Bytes from which a line's arrays are read in slices."""
_SLICED_KEYS = (b"generation_log_probs", b"generation_token_ids", b"prompt_rest", b"prompt_token_ids")


class DamagedLineError(ValueError):
    """The bytes of a line are not what was written, or no JSON at all."""


class UnacceptableLineError(ValueError):
    """A line is well-formed but is no entry of this rollout."""


class NewerSchemaError(ValueError):
    """A line was written by a newer library."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"schema_version {version} is newer than {SCHEMA_VERSION}; upgrade tokenstore")


@attrs.frozen
class StoredLine:
    """A line that was read: an entry, whose prompt is only the rest if there is a base."""

    entry: TokenEntry
    """The entry; `prompt_token_ids` holds what the line itself holds."""
    base: PromptBase | None
    """The earlier call with whose ids the prompt begins."""

    @property
    def head(self) -> LineHead:
        """What the line is about."""
        return LineHead(self.entry.model_call_id, self.base.model_call_id if self.base else None)

    @property
    def own_ids(self) -> bytes:
        """The packed ids that the line itself holds: prompt or rest, then generation."""
        return little_endian(array("I", self.entry.prompt_token_ids) + array("I", self.entry.generation_token_ids))

    def with_prompt(self, prompt: list[int]) -> TokenEntry:
        """The entry with its whole prompt. Its values were checked when it was read, so they are not again."""
        entry: TokenEntry = object.__new__(TokenEntry)
        for field in attrs.fields(TokenEntry):
            object.__setattr__(entry, field.name, getattr(self.entry, field.name))
        object.__setattr__(entry, "prompt_token_ids", prompt)
        return entry


def decode_line(payload: bytes, rollout_id: str) -> StoredLine:
    """Read a line, without its newline, of a rollout's file.

    Raises:
        DamagedLineError: It is not well-formed, or its checksum disagrees.
        UnacceptableLineError: It is no entry of this rollout.
        NewerSchemaError: It was written by a newer library.
    """
    vouched = _check_sum(payload)
    value = _load(payload, _read_vouched if vouched else loads)
    if not isinstance(value, dict):
        raise UnacceptableLineError("it is no JSON object")
    _check_schema(value)
    if value.pop("crc32", None) is not None and not vouched:
        raise DamagedLineError("its checksum is not at its end")
    try:
        line = _structure(value, vouched=vouched)
    except (InvalidEntryError, InvalidRolloutIdError) as error:
        raise UnacceptableLineError(str(error)) from None
    if line.entry.rollout_id != rollout_id:
        raise UnacceptableLineError("it is of another rollout")
    return line


@attrs.frozen
class LineHead:
    """What a line is about: enough to index it."""

    model_call_id: str
    base_id: str | None
    """The earlier call that its prompt begins with."""


def inspect_line(payload: bytes, rollout_id: str) -> LineHead:
    """Look at a line as `decode_line` does, but leave out the arrays that its checksum vouches for.

    Raises:
        DamagedLineError, UnacceptableLineError, NewerSchemaError: As `decode_line` does.
    """
    if not _check_sum(payload):
        return LineHead(decode_line(payload, rollout_id).entry.model_call_id, None)
    value, _ = _load(payload, _read_skeleton)
    if not isinstance(value, dict):
        raise UnacceptableLineError("it is no JSON object")
    _check_schema(value)
    call_id = value.get("model_call_id")
    if value.get("rollout_id") != rollout_id or recordable_call_id(call_id) != call_id or not call_id:
        raise UnacceptableLineError("it is of another rollout or names no call")
    if "prompt_base" not in value:
        return LineHead(call_id, None)
    try:
        return LineHead(call_id, PromptBase.structure(value["prompt_base"]).model_call_id)
    except InvalidEntryError as error:
        raise UnacceptableLineError(str(error)) from None


def _check_sum(payload: bytes) -> bool:
    """Whether a checksum vouches for the line; false for a line without one."""
    last = _LAST_MEMBER.search(payload, max(0, len(payload) - _LAST_MEMBER_BYTES))
    if last is None:
        return False
    right = zlib.crc32(memoryview(payload)[: last.start()]) == int(last[2])
    if last[1] == b"crc32":
        if not right:
            raise DamagedLineError("its checksum disagrees")
        return True
    if right:  # our line after all, with a flipped bit in the very name of the checksum
        raise DamagedLineError("its checksum has lost its name")
    return False


def _load(payload: bytes, read: Callable[[bytes], T]) -> T:
    try:
        return read(payload)
    except RecursionError:
        raise UnacceptableLineError("it is nested too deep") from None
    except ValueError as error:
        raise DamagedLineError(str(error)) from None


def _take_arrays(payload: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Take the long arrays out of a line, leaving empty ones.

    The bytes `,"name":[` can only be a key: inside a string its quotes would be escaped.
    """
    arrays: dict[str, bytes] = {}
    for name in _SLICED_KEYS:
        mark = b',"' + name + b'":['
        if payload.count(mark) == 1:
            start = payload.index(mark) + len(mark)
            end = payload.find(b"]", start)
            if end >= 0:  # else the parser will say that it has no end
                arrays[name.decode()] = payload[start:end]
                payload = payload[:start] + payload[end:]
    return payload, arrays


def _read_skeleton(payload: bytes) -> tuple[Any, dict[str, bytes]]:
    """Read a line but for its long arrays; read it whole if one of them is not the line's own member.

    An array of an item may hold lists or texts with a `]`. Cut there, the rest is never well-formed: it has lost an
    opening bracket or a quote.
    """
    skeleton, arrays = _take_arrays(payload)
    try:
        value = loads_vouched(skeleton)
    except ValueError:
        value = None
    if isinstance(value, dict) and arrays.keys() <= value.keys():
        return value, arrays
    return loads_vouched(payload), {}


def _read_vouched(payload: bytes) -> Any:
    """Read a line; a large one's long arrays a slice at a time."""
    if len(payload) <= _LARGE_LINE:
        return loads_vouched(payload)
    value, arrays = _read_skeleton(payload)
    if arrays:
        value.update((name, _read_numbers(text)) for name, text in arrays.items())
    return value


def _read_numbers(text: bytes) -> list[Any]:
    numbers: list[Any] = []
    start = 0
    while start < len(text):
        end = text.find(b",", start + 8 * SLICE)
        end = len(text) if end < 0 else end
        numbers += loads_vouched(b"[" + text[start:end] + b"]")
        start = end + 1
    return numbers


def _check_schema(value: dict[str, Any]) -> None:
    version = value.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise NewerSchemaError(version)


def _structure(value: dict[str, Any], *, vouched: bool) -> StoredLine:
    base = _structure_base(value, vouched=vouched)
    line = StoredLine(decode_entry(value), base)
    # Also of a line with a right checksum: whoever wrote it may have let ujson pass a NaN or half a surrogate pair.
    check_json_fields(line.entry)
    pack_ids(line.entry.prompt_token_ids, "prompt_token_ids", line.entry.model_call_id)
    pack_ids(line.entry.generation_token_ids, "generation_token_ids", line.entry.model_call_id)
    log_probs = finite_floats(line.entry.generation_log_probs, "generation_log_probs", line.entry.model_call_id)
    line.entry.generation_log_probs[:] = log_probs
    return line


def _structure_base(value: dict[str, Any], *, vouched: bool) -> PromptBase | None:
    if "prompt_base" not in value and "prompt_rest" not in value:
        return None
    if not vouched:
        raise DamagedLineError("it shares a prompt but has no checksum")
    if "prompt_token_ids" in value:
        raise UnacceptableLineError("it has a prompt twice")
    value["prompt_token_ids"] = value.pop("prompt_rest", None)
    return PromptBase.structure(value.pop("prompt_base", None))
