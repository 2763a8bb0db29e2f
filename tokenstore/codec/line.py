"""One entry as one line: the canonical form, its checksum, and the strict reading of anybody's lines.

A line is UTF-8 JSON, no spaces, keys sorted. With shared prompts, its last member is `"crc32":<uint32>` over the bytes
before that member's comma, and the prompt may stand as `prompt_base` and `prompt_rest`. A reader knows three kinds of
bad lines: damaged (not well-formed, or the checksum disagrees), unacceptable (well-formed, but no entry of this
rollout), and of a newer schema.
"""

from __future__ import annotations

import re
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeVar

import attrs

from tokenstore.codec.checks import SLICE, check_json_fields, encode_members, finite_floats, slices, token_array
from tokenstore.codec.content import content_digest, little_endian
from tokenstore.codec.plain import decode_entry, dumps, encode_entry, loads, loads_vouched
from tokenstore.codec.prompts import KnownPrompt, PromptBase
from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.ids import recordable_call_id
from tokenstore.records import ENTRY_FIELDS, SCHEMA_VERSION, TokenEntry

T = TypeVar("T")

_LAST_MEMBER = re.compile(rb',"([^"\\]{1,32})":(0|[1-9]\d{0,9})\}\Z')
_LAST_MEMBER_BYTES = 64
_LARGE_LINE = 32 * SLICE
"""Bytes from which a line's arrays are read in slices."""
_PROMPT_KEYS = ("prompt_base", "prompt_rest", "prompt_token_ids")
_ARRAYS = ("generation_log_probs", "generation_token_ids")
_BEFORE = tuple(name for name in sorted(ENTRY_FIELDS) if name < _PROMPT_KEYS[0])
_AFTER = tuple(name for name in sorted(ENTRY_FIELDS) if name > _PROMPT_KEYS[-1])
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


class Draft:
    """An entry checked and encoded all but its prompt, which waits until a base can be chosen under the lock."""

    def __init__(self, entry: TokenEntry, max_entry_bytes: int) -> None:
        call_id = entry.model_call_id
        check_json_fields(entry)
        self.entry = entry
        self.max_entry_bytes = max_entry_bytes
        self._ids = token_array(entry.prompt_token_ids, "prompt_token_ids", call_id)
        generation = token_array(entry.generation_token_ids, "generation_token_ids", call_id)
        log_probs = finite_floats(entry.generation_log_probs, "generation_log_probs", call_id)
        self.prompt = little_endian(self._ids)
        self.generation = little_endian(generation)
        self._members = self._encode(generation.tolist(), log_probs)
        self._content: bytes | None = None

    def _encode(self, generation: list[int], log_probs: list[float]) -> dict[str, bytes]:
        """Encode all but the prompt as runs of members in the order of their keys, each run under its first key.

        One call for a run costs a third of one for each member. A run ends where a member of the prompt may have to go
        in between, and around an array that is long enough to be encoded in slices.
        """
        fields = encode_entry(self.entry)
        del fields["prompt_token_ids"]
        fields.update(generation_token_ids=generation, generation_log_probs=log_probs)
        members: dict[str, bytes] = {}
        for run in _runs(fields):
            if (first := run[0]) in _ARRAYS and len(fields[first]) > SLICE:
                members[first] = _member(first, _encode_numbers(fields[first]))
            else:
                members[first] = encode_members({name: fields[name] for name in run}, self.entry.model_call_id)
        return members

    @property
    def content(self) -> bytes:
        """The entry's content digest, computed when first asked for."""
        if self._content is None:
            self._content = content_digest(self.entry)
        return self._content

    def line(self, base: KnownPrompt | None = None, *, checksum: bool) -> bytes:
        """Finish the line, without its newline.

        Args:
            base: An earlier call of the rollout with whose ids the prompt begins, or None for the whole prompt.
            checksum: Whether to end with the checksum; a line with a base always has it.

        Raises:
            InvalidEntryError: The line is longer than is allowed.
        """
        members = dict(self._members)
        if base is None:
            members["prompt_token_ids"] = _member("prompt_token_ids", _encode_numbers(self._ids.tolist()))
        else:
            members["prompt_base"] = _member("prompt_base", dumps(attrs.asdict(base.as_base())))
            members["prompt_rest"] = _member("prompt_rest", _encode_numbers(self._ids[base.length :].tolist()))
        body = b"{" + b",".join([members[name] for name in sorted(members)])
        line = body + (b',"crc32":%d}' % zlib.crc32(body) if checksum or base else b"}")
        if len(line) > self.max_entry_bytes:
            problem = f"takes {len(line)} bytes as a line, max_entry_bytes allows {self.max_entry_bytes}"
            raise InvalidEntryError("entry", problem, model_call_id=self.entry.model_call_id)
        return line


def prepare(entry: TokenEntry, *, max_entry_bytes: int) -> Draft:
    """Check an entry's elements and encode all but its prompt.

    Raises:
        InvalidEntryError: Something is refused; the message names the field and the position.
    """
    return Draft(entry, max_entry_bytes)


def check_entry(entry: TokenEntry, *, max_entry_bytes: int = sys.maxsize) -> None:
    """Check everything about an entry that `put` checks before it writes.

    Args:
        entry: The entry, its kinds and lengths checked already when it was made.
        max_entry_bytes: Longest line that is allowed, in bytes.

    Raises:
        InvalidEntryError: Something is refused; the message names the field and the position.
    """
    prepare(entry, max_entry_bytes=max_entry_bytes).line(checksum=True)


@attrs.frozen
class StoredLine:
    """A line that was read: an entry, whose prompt is only the rest if there is a base."""

    entry: TokenEntry
    """The entry; `prompt_token_ids` holds what the line itself holds."""
    base: PromptBase | None
    """The earlier call with whose ids the prompt begins."""

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
    token_array(line.entry.prompt_token_ids, "prompt_token_ids", line.entry.model_call_id)
    token_array(line.entry.generation_token_ids, "generation_token_ids", line.entry.model_call_id)
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


def _runs(fields: dict[str, Any]) -> Iterable[Sequence[str]]:
    """The names of members that are encoded together; see `Draft._encode`."""
    if len(fields["generation_token_ids"]) <= SLICE and fields.keys() <= {*_BEFORE, *_AFTER}:
        return _BEFORE, [name for name in _AFTER if name in fields]
    return [list(run) for _, run in groupby(sorted(fields), key=lambda name: _place(name, fields[name]))]


def _place(name: str, value: Any) -> tuple[int, str]:
    """What tells one run of members from the next."""
    alone = name in _ARRAYS and len(value) > SLICE
    return sum(name > own for own in _PROMPT_KEYS), name if alone else ""


def _member(name: str, value: bytes) -> bytes:
    return b'"%b":%b' % (name.encode(), value)


def _encode_numbers(values: list[int] | list[float]) -> bytes:
    if len(values) <= SLICE:
        return dumps(values)
    return b"[" + b",".join([dumps(part)[1:-1] for part in slices(values)]) + b"]"
