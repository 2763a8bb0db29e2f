"""Token ids, checked and packed: 4 bytes an id, little-endian, as they are compared and summed up.

array() packs at the speed of C whatever counts as an integer. Only of a bool it makes 0 or 1, silently. Such ids are
rare, so they are looked for in the bytes and looked at one by one; and where the ids begin with those of a call that is
known, as an agent's do, only the rest is searched.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from tokenstore.codec.checks import SLICE, TOLIST, refuse, slices
from tokenstore.codec.content import little_endian

PACKED_SLICE = 32 * SLICE
"""Ids packed in one go: two milliseconds. Another thread gets the interpreter after five, if it has to ask for it."""
LOOKS = 32
"""Places looked at one by one; where there are more, the types of all are looked at instead."""
ID_BYTES = 4
"""Of a packed id."""
_LARGEST_ID = 2**32 - 1
_SMALL = tuple(number.to_bytes(ID_BYTES, "little") for number in (False, True))

Places = tuple[int, ...] | None
"""Where ids are 0 or 1; None if they are so in many places."""


class Beginning(Protocol):
    """Packed ids that others may begin with."""

    @property
    def length(self) -> int:
        """How many ids these are."""
        ...

    @property
    def small(self) -> Places:
        """Where they are 0 or 1."""
        ...

    def begins(self, packed: bytes) -> bool:
        """Whether packed ids begin with these."""
        ...


class Packed(NamedTuple):
    """Ids as they were checked."""

    ids: bytes
    small: Places


def pack_ids(ids: Sequence[int], field: str, call_id: str, known: Iterable[Beginning] = ()) -> Packed:
    """Check token ids and pack them.

    Args:
        ids: Any number of them.
        field: What an error names.
        call_id: The call that it names.
        known: What they may begin with, the longest first; packed from ids that were checked.

    Raises:
        InvalidEntryError: An id is not an int in 0 .. 2**32 - 1; the message has its position.
    """
    packed = little_endian(_array(ids, field, call_id))
    small = _small_ids(packed, next((beginning for beginning in known if beginning.begins(packed)), None))
    if _holds_bools(ids, small):
        _one_by_one(ids, field, call_id)
    return Packed(packed, small)


def joined(first: Packed, second: Packed) -> Places:
    """Tell where the ids of two runs, one after the other, are 0 or 1."""
    if first.small is None or second.small is None or len(first.small) + len(second.small) > LOOKS:
        return None
    length = len(first.ids) // ID_BYTES
    return (*first.small, *[length + at for at in second.small])


def _array(ids: Sequence[int], field: str, call_id: str) -> array[int]:
    packed = array("I")
    try:
        if len(ids) <= PACKED_SLICE:
            return array("I", ids)
        for part in slices(ids, PACKED_SLICE):
            packed.extend(array("I", part))
    except (TypeError, OverflowError):  # looked at from the first one on: the first wrong one is named
        return _one_by_one(ids, field, call_id)
    return packed


def _one_by_one(ids: Sequence[int], field: str, call_id: str) -> array[int]:
    return array("I", [_plain_id(value, at, field, call_id) for at, value in enumerate(ids)])


def _small_ids(packed: bytes, beginning: Beginning | None) -> Places:
    """Look for ids that are 0 or 1, behind what is known."""
    if beginning is not None and beginning.small is None:
        return None
    start, found = (beginning.length * ID_BYTES, [*(beginning.small or ())]) if beginning else (0, [])
    for wanted in _SMALL:
        at = packed.find(wanted, start)
        looks = len(found)
        while at >= 0:
            if looks == LOOKS:
                return None
            looks += 1
            if at % ID_BYTES == 0:
                found.append(at // ID_BYTES)
            at = packed.find(wanted, at + 1)
    return tuple(found)


def _holds_bools(ids: Sequence[int], small: Places) -> bool:
    if small is None:
        return any(bool in set(map(type, part)) for part in slices(ids, PACKED_SLICE))
    return any(isinstance(ids[at], bool) for at in small)


def _plain_id(value: object, position: int, field: str, call_id: str) -> int:
    """One id, looked at by itself; whatever counts as an integer does, but for bools."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        problem = f"position {position} holds a value of type {type(value).__name__}, ids are ints; {TOLIST}"
        refuse(field, problem, call_id)
    if not 0 <= number <= _LARGEST_ID:
        refuse(field, f"position {position} is outside 0 .. 2**32 - 1", call_id)
    return number
