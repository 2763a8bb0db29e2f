"""An entry on its way to a line: all but its prompt is checked and encoded before the lock is taken.

The prompt waits until a base can be chosen among the calls that are in the file. `line` has the form. A draft may be
pickled: what it is then is all that another process needs in order to write the line, as bytes.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from time import sleep
from typing import Any

import attrs

from tokenstore.codec.checks import SLICE, check_json_fields, encode_members, finite_floats, slices
from tokenstore.codec.content import content_digest, from_little_endian
from tokenstore.codec.line import decode_line
from tokenstore.codec.packing import ID_BYTES, joined, pack_ids
from tokenstore.codec.plain import dumps, encode_entry
from tokenstore.codec.prompts import KnownPrompt
from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenEntry

_PROMPT_KEYS = ("prompt_base", "prompt_rest", "prompt_token_ids")
_ARRAYS = ("generation_log_probs", "generation_token_ids", "routed_experts")
"""Members that may be long arrays of numbers."""
GAP_SECONDS = 1e-6
"""Slept after each full slice of a long array; it takes some 60 us, which is what waking up takes. A thread that waits
for the interpreter, an event loop above all, has it at once only if whoever lets go stays away until then. Otherwise it
has it after a switching interval of 5 ms, and asyncio's loop asks three times for each answer of a thread."""


class Draft:
    """An entry checked and encoded all but its prompt, which waits until a base can be chosen under the lock.

    Args:
        entry: The entry.
        max_entry_bytes: Longest line that is allowed, in bytes.
        known: Calls that its prompt may begin with, the longest first: what is known of them is not looked for again.
    """

    def __init__(self, entry: TokenEntry, max_entry_bytes: int, known: Iterable[KnownPrompt] = ()) -> None:
        call_id = entry.model_call_id
        check_json_fields(entry)
        self.rollout_id = entry.rollout_id
        self.model_call_id = call_id
        self.max_entry_bytes = max_entry_bytes
        self._entry: TokenEntry | None = entry
        prompt = pack_ids(entry.prompt_token_ids, "prompt_token_ids", call_id, known)
        generation = pack_ids(entry.generation_token_ids, "generation_token_ids", call_id)
        log_probs = finite_floats(entry.generation_log_probs, "generation_log_probs", call_id)
        self.prompt, self.generation = prompt.ids, generation.ids
        self.small = joined(prompt, generation)
        self._members = self._encode(entry, from_little_endian(self.generation).tolist(), log_probs)
        self._content: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the packed prompt and the encoded rest, without the entry itself."""
        return {**self.__dict__, "_entry": None}

    @property
    def size(self) -> int:
        """Bytes that it takes on its way to another process."""
        return len(self.prompt) + len(self.generation) + sum(map(len, self._members.values()))

    def _encode(self, entry: TokenEntry, generation: list[int], log_probs: list[float]) -> dict[str, bytes]:
        """Encode all but the prompt as runs of members in the order of their keys, each run under its first key.

        One call for a run costs a third of one for each member. A run ends where a member of the prompt may have to go
        in between, and around an array that is long enough to be encoded in slices.
        """
        fields = encode_entry(entry)
        del fields["prompt_token_ids"]
        fields.update(generation_token_ids=generation, generation_log_probs=log_probs)
        return {run[0]: self._encode_run({name: fields[name] for name in run}) for run in _runs(fields)}

    def _encode_run(self, fields: dict[str, Any]) -> bytes:
        name, value = next(iter(fields.items()))
        if _is_long(name, value):  # and so alone
            with suppress(ValueError, OverflowError, TypeError):  # to be told below, by name
                return _member(name, _encode_numbers(value))
        return encode_members(fields, self.model_call_id)

    @property
    def content(self) -> bytes:
        """The entry's content digest, computed when first asked for."""
        if self._content is None:
            self._content = content_digest(self._entry or self._read_back())
        return self._content

    def line(self, base: KnownPrompt | None = None, *, checksum: bool) -> bytes:
        """Finish the line, without its newline.

        Args:
            base: An earlier call of the rollout with whose ids the prompt begins, or None for the whole prompt.
            checksum: Whether to end with the checksum; a line with a base always has it.

        Raises:
            InvalidEntryError: The line is longer than is allowed.
        """
        line = self._written(base, checksum=checksum)
        if len(line) > self.max_entry_bytes:
            problem = f"takes {len(line)} bytes as a line, max_entry_bytes allows {self.max_entry_bytes}"
            raise InvalidEntryError("entry", problem, model_call_id=self.model_call_id)
        return line

    def _written(self, base: KnownPrompt | None, *, checksum: bool) -> bytes:
        members = dict(self._members)
        rest = from_little_endian(self.prompt[base.length * ID_BYTES if base else 0 :])
        name = "prompt_rest" if base else "prompt_token_ids"
        members[name] = _member(name, _encode_numbers(rest))
        if base:
            members["prompt_base"] = _member("prompt_base", dumps(attrs.asdict(base.as_base())))
        body = b"{" + b",".join([members[name] for name in sorted(members)])
        return body + (b',"crc32":%d}' % zlib.crc32(body) if checksum or base else b"}")

    def _read_back(self) -> TokenEntry:
        """The entry of a draft that came from another process."""
        return decode_line(self._written(None, checksum=True), self.rollout_id).entry


def prepare(
    entry: TokenEntry | Draft, *, max_entry_bytes: int = sys.maxsize, known: Iterable[KnownPrompt] = ()
) -> Draft:
    """Check an entry's elements and encode all but its prompt; of a draft only the limit is left to be set.

    Args:
        entry: Either.
        max_entry_bytes: Longest line that is allowed, in bytes.
        known: As a draft takes them.

    Raises:
        InvalidEntryError: Something is refused; the message names the field and the position.
    """
    if isinstance(entry, Draft):
        entry.max_entry_bytes = max_entry_bytes
        return entry
    return Draft(entry, max_entry_bytes, known)


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
    if not any(_is_long(name, fields.get(name)) for name in _ARRAYS):
        at = bisect(names, _PROMPT_KEYS[0])
        if at == bisect(names, _PROMPT_KEYS[-1]):  # as nearly always: no unknown field goes between those of the prompt
            return names[:at], names[at:]
    return [list(run) for _, run in groupby(names, key=lambda name: _place(name, fields[name]))]


def _place(name: str, value: Any) -> tuple[int, str]:
    """What tells one run of members from the next."""
    return sum(name > own for own in _PROMPT_KEYS), name if _is_long(name, value) else ""


def _is_long(name: str, value: Any) -> bool:
    return name in _ARRAYS and _weight(value) > SLICE


def _weight(value: Any) -> int:
    """About how many numbers there are in lists of lists: as if each were as long as the first of its kind."""
    count = 1
    while isinstance(value, list | tuple | array) and value:
        count *= len(value)
        value = value[0]
    return count


def _member(name: str, value: bytes) -> bytes:
    return b'"%b":%b' % (name.encode(), value)


def _encode_numbers(values: Sequence[Any]) -> bytes:
    """Write an array, in slices if it is long."""
    weight = _weight(values)
    if weight <= SLICE:
        return dumps(_listed(values))
    parts = slices(values, max(1, SLICE * len(values) // weight))
    return b"[" + b",".join([_encode_slice(part) for part in parts]) + b"]"


def _encode_slice(values: Sequence[Any]) -> bytes:
    encoded = dumps(_listed(values))[1:-1]
    if len(encoded) > SLICE:  # less is soon done, and there may be very many such: lists shorter than the first one
        sleep(GAP_SECONDS)
    return encoded


def _listed(values: Sequence[Any]) -> Sequence[Any]:
    """What ujson writes: of packed ids plain ones, which integers of another library need not be."""
    return values.tolist() if isinstance(values, array) else values
