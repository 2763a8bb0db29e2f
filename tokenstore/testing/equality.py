"""Whether two entries are the same to the last bit, told apart from the codec so that a test can catch the codec."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

from tokenstore.records import ENTRY_FIELDS, TokenEntry

_LOG_PROBS = "generation_log_probs"


def first_difference(expected: TokenEntry, given: TokenEntry) -> str | None:
    """Name the first place where an entry is not what it should be, or give None if it is the same.

    Floats are compared by their 64 bits, and int, float and bool differ. Tuples are lists and key order does not count,
    as in JSON. A whole log probability is a float. Nothing of the content is named.
    """
    for name in (*ENTRY_FIELDS, "extra"):
        wanted, found = getattr(expected, name), getattr(given, name)
        if name == _LOG_PROBS:
            wanted = [float(log_prob) for log_prob in wanted]
        place = _json_difference(wanted, found, name)
        if place is not None:
            return place
    return None


def _json_difference(expected: Any, given: Any, name: str) -> str | None:
    """Walk two JSON trees side by side, without recursion since they may be hundreds of levels deep."""
    waiting = [(expected, given, name)]
    while waiting:
        wanted, found, place = waiting.pop()
        if isinstance(wanted, dict) and isinstance(found, dict):
            if wanted.keys() != found.keys():
                return f"{place} (its keys)"
            waiting.extend((wanted[key], found[key], f"{place}[{key!r}]") for key in wanted)
        elif isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
            if len(wanted) != len(found):
                return f"{place} (its length)"
            if _same_run(wanted, found):
                continue
            waiting.extend((*pair, f"{place}[{at}]") for at, pair in enumerate(zip(wanted, found, strict=True)))
        elif not _same_scalar(wanted, found):
            return place
    return None


def _same_run(expected: Sequence[Any], given: Sequence[Any]) -> bool:
    """Whether both are the same ints, or the same floats, and nothing else: token arrays, compared at C speed."""
    kinds = {*map(type, expected), *map(type, given)}
    if kinds == {int}:
        return list(expected) == list(given)
    return kinds == {float} and array("d", expected).tobytes() == array("d", given).tobytes()


def _same_scalar(expected: object, given: object) -> bool:
    if type(expected) is not type(given):
        return False
    if isinstance(expected, float) and isinstance(given, float):
        return struct.pack("<d", expected) == struct.pack("<d", given)
    return expected == given
