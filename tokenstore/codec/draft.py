"""An entry on its way to a line: all but its prompt is checked and encoded before the lock is taken.

The prompt waits until a base can be chosen among the calls that are in the file. `line` has the form.
"""

from __future__ import annotations

import sys
import zlib
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import attrs

from tokenstore.codec.checks import SLICE, check_json_fields, encode_members, finite_floats, slices, token_array
from tokenstore.codec.content import content_digest, little_endian
from tokenstore.codec.plain import dumps, encode_entry
from tokenstore.codec.prompts import KnownPrompt
from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenEntry

_PROMPT_KEYS = ("prompt_base", "prompt_rest", "prompt_token_ids")
_ARRAYS = ("generation_log_probs", "generation_token_ids")


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
            members["prompt_token_ids"] = _member("prompt_token_ids", self._encode_prompt(0))
        else:
            members["prompt_base"] = _member("prompt_base", dumps(attrs.asdict(base.as_base())))
            members["prompt_rest"] = _member("prompt_rest", self._encode_prompt(base.length))
        body = b"{" + b",".join([members[name] for name in sorted(members)])
        line = body + (b',"crc32":%d}' % zlib.crc32(body) if checksum or base else b"}")
        if len(line) > self.max_entry_bytes:
            problem = f"takes {len(line)} bytes as a line, max_entry_bytes allows {self.max_entry_bytes}"
            raise InvalidEntryError("entry", problem, model_call_id=self.entry.model_call_id)
        return line

    def _encode_prompt(self, start: int) -> bytes:
        try:
            return _encode_numbers(self.entry.prompt_token_ids[start:])
        except TypeError:  # integers of another library; to make plain ones costs as much as to write them
            return _encode_numbers(self._ids[start:].tolist())


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


def _runs(fields: dict[str, Any]) -> Iterable[Sequence[str]]:
    """The names of members that are encoded together; see `Draft._encode`."""
    names = sorted(fields)
    if len(fields["generation_token_ids"]) <= SLICE:
        at = bisect(names, _PROMPT_KEYS[0])
        if at == bisect(names, _PROMPT_KEYS[-1]):  # as nearly always: no unknown field goes between those of the prompt
            return names[:at], names[at:]
    return [list(run) for _, run in groupby(names, key=lambda name: _place(name, fields[name]))]


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
