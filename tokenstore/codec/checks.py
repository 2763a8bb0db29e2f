"""What may be stored: the strict look at elements, in slices so that an event loop in the same process stays awake.

Messages name the field, the position and the kind of the value, never text or tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from tokenstore.codec.plain import dumps
from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenEntry

SLICE = 8192
"""Numbers handled in one go: under half a millisecond in which no other thread gets the interpreter."""
MAX_NESTING = 512
"""Levels of lists and objects in one JSON value; ujson reads 1,024."""


def slices(values: Sequence[Any], size: int = SLICE) -> Iterator[Sequence[Any]]:
    """Cut a sequence into slices of so many elements."""
    for start in range(0, len(values), size):
        yield values[start : start + size]


_FLOAT = frozenset({float})


def finite_floats(values: Sequence[float], field: str, call_id: str) -> list[float]:
    """Check log probabilities and give them back as floats, ints converted.

    Raises:
        InvalidEntryError: A value is not a finite real number; the message has its position.
    """
    floats: list[float] = []
    for given in slices(values):
        part = given
        if not _FLOAT.issuperset(map(type, part)):
            part = [_plain_float(value, len(floats) + at, field, call_id) for at, value in enumerate(part)]
        # A sum is finite only if all are, at the speed of C; one that is not may be of finite values all the same.
        if not math.isfinite(sum(part)) and not all(map(math.isfinite, part)):
            at = next(at for at, value in enumerate(part) if not math.isfinite(value))
            refuse(field, f"position {len(floats) + at} holds {part[at]}, it must be finite", call_id)
        floats.extend(part)
    return floats


def check_json(value: Any, field: str, call_id: str) -> None:
    """Check that a value is plain JSON that comes back as it went in.

    Raises:
        InvalidEntryError: It holds something else, a non-finite number, a lone surrogate or more than 512 levels.
    """
    if not isinstance(value, _BRANCHES):
        _check_scalar(value, field, call_id)
        return
    waiting: list[tuple[Any, int]] = [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_NESTING:
            refuse(field, f"is nested deeper than {MAX_NESTING} levels", call_id)
        if isinstance(node, dict):
            _check_keys(node, field, call_id)
            node = node.values()
        # Long arrays of plain numbers, such as routed experts, are told by their types at the speed of C.
        if _HARMLESS.issuperset(map(type, node)):
            continue
        for child in node:
            if isinstance(child, _BRANCHES):
                waiting.append((child, depth + 1))
            else:
                _check_scalar(child, field, call_id)


_BRANCHES = (dict, list, tuple)
_HARMLESS = frozenset({int, bool, type(None)})


def _check_keys(node: dict[Any, Any], field: str, call_id: str) -> None:
    with suppress(TypeError):
        if "".join(node).isascii():  # all of them at the speed of C; if not, the loop finds which and why
            return
    for key in node:
        if not isinstance(key, str):
            refuse(field, f"holds an object key of type {type(key).__name__}, keys are strings", call_id)
        _check_scalar(key, field, call_id)


def _check_scalar(value: object, field: str, call_id: str) -> None:
    if isinstance(value, str):
        if not value.isascii():
            _check_unicode(value, field, call_id)
    elif isinstance(value, float):
        if not math.isfinite(value):
            refuse(field, f"holds {value}, which is not JSON", call_id)
    elif value is not None and not isinstance(value, int):
        refuse(field, f"holds a value of type {type(value).__name__}, which is not JSON; convert it first", call_id)


def _check_unicode(text: str, field: str, call_id: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        refuse(field, f"holds a lone surrogate at position {error.start} of a string, which is no UTF-8", call_id)


def check_text(value: str | None, field: str, call_id: str) -> None:
    """Check a text that goes beside entries.

    Raises:
        InvalidEntryError: It is neither a string that UTF-8 can carry nor None.
    """
    if value is not None and not isinstance(value, str):
        refuse(field, f"is of type {type(value).__name__}, it must be a string or None", call_id)
    check_json(value, field, call_id)


def check_json_fields(entry: TokenEntry) -> None:
    """Check the fields of an entry that hold text or JSON.

    Raises:
        InvalidEntryError: A field holds what JSON cannot carry; the message names it.
    """
    call_id = entry.model_call_id
    check_json(entry.model, "model", call_id)
    check_json(entry.response_id, "response_id", call_id)
    check_json(entry.routed_experts, "routed_experts", call_id)
    for position, item in enumerate(entry.output_items):
        check_json(item, f"output_items[{position}]", call_id)
    for key, value in entry.extra.items():
        check_json(key, "extra", call_id)
        check_json(value, "extra", call_id)


def encode_members(fields: dict[str, Any], call_id: str) -> bytes:
    """Write checked members of a line, in the order of their keys, without braces.

    Raises:
        InvalidEntryError: One holds an integer too long for JSON readers.
    """
    try:
        return dumps(fields)[1:-1]
    except (ValueError, OverflowError, TypeError) as error:
        for field, value in fields.items():
            _check_writable(field, value, call_id)
        raise InvalidEntryError("entry", f"cannot be written as JSON ({error})", model_call_id=call_id) from None


def _check_writable(field: str, value: Any, call_id: str) -> None:
    try:
        dumps(value)
    except (ValueError, OverflowError, TypeError) as error:
        refuse(field, f"cannot be written as JSON ({error})", call_id)


def _plain_float(value: object, position: int, field: str, call_id: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            refuse(field, f"position {position} holds an integer beyond the range of a double", call_id)
    what = "None" if value is None else f"a value of type {type(value).__name__}"
    return refuse(field, f"position {position} holds {what}, it must be a finite number; {TOLIST}", call_id)


TOLIST = "a tensor's .tolist() gives plain numbers"
"""What to do about numbers of another library."""


def refuse(field: str, problem: str, call_id: str) -> NoReturn:
    """Say that an entry is not accepted.

    Raises:
        InvalidEntryError: Always.
    """
    raise InvalidEntryError(field, problem, model_call_id=call_id) from None
