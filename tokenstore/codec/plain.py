"""JSON, and the one converter between values and plain JSON objects.

ujson writes everything and reads only what a checksum vouches for: it takes `-` for 0 and lets `01`, `1.`, `NaN` and
raw control characters pass. Anybody else's bytes are read by the standard library, made stricter still.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import ujson
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

from tokenstore.errors import InvalidEntryError
from tokenstore.records import ENTRY_FIELDS, REQUIRED_FIELDS, TokenEntry


def dumps(value: Any, *, sort_keys: bool = True) -> bytes:
    """Write a JSON value as UTF-8: no spaces, keys sorted (or as they come), non-ASCII as it is.

    Raises:
        ValueError, OverflowError, TypeError: It is no JSON value.
    """
    text: str = ujson.dumps(
        value, ensure_ascii=False, escape_forward_slashes=False, allow_nan=False, sort_keys=sort_keys
    )
    return text.encode()


def loads_vouched(data: bytes) -> Any:
    """Read JSON whose bytes a checksum has vouched for."""
    return ujson.loads(data)


def loads(data: bytes | str, *, unique_keys: bool = False) -> Any:
    """Read anybody's JSON strictly: UTF-8 and RFC 8259, no `NaN`, no number beyond a double.

    Args:
        data: The text.
        unique_keys: Refuse an object with two members of one name, of which parsers keep one or the other.

    Raises:
        ValueError: It is not well-formed.
        RecursionError: It is nested deeper than the interpreter can read.
    """
    text = data if isinstance(data, str) else data.decode()
    return (_unique_decoder if unique_keys else _decoder).decode(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError("a number is beyond the range of a double")
    return number


def _unique(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object has two members of one name")
    return found


_decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_unique_decoder = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique)


def _as_it_is(value: Any, _: Any) -> Any:
    """Leave a field's value alone, since the class refuses what is wrong; cattrs would turn `7` into `"7"`."""
    return value


_converter = Converter(detailed_validation=False)
_overrides: dict[str, Any] = {name: override(struct_hook=_as_it_is) for name in (*ENTRY_FIELDS, "extra")}
_structure_fields = make_dict_structure_fn(TokenEntry, _converter, **_overrides)


def decode_entry(value: object) -> TokenEntry:
    """Make an entry of a JSON object of declared and unknown fields.

    Raises:
        InvalidEntryError: A field is missing or refused; the message names it.
        InvalidRolloutIdError: The rollout id cannot name files.
    """
    if not isinstance(value, Mapping):
        raise InvalidEntryError("entry", f"is of type {type(value).__name__}, it must be a JSON object")
    for name in REQUIRED_FIELDS:
        if name not in value:
            raise InvalidEntryError(name, "is missing")
    known = {name: value[name] for name in ENTRY_FIELDS if name in value}
    extra = {key: item for key, item in value.items() if key not in known}
    return _structure_fields({**known, "extra": extra}, TokenEntry)


def encode_entry(entry: TokenEntry) -> dict[str, Any]:
    """Make a JSON object of an entry, as a line holds it: `response_id` only when set, unknown fields beside it."""
    fields = {name: getattr(entry, name) for name in ENTRY_FIELDS}
    if entry.response_id is None:
        del fields["response_id"]
    return {**fields, **entry.extra}


_converter.register_structure_hook(TokenEntry, lambda value, _: decode_entry(value))
_converter.register_unstructure_hook(TokenEntry, encode_entry)


def to_plain(value: Any) -> Any:
    """Make plain JSON of any value of `records`, for `--json` and for the wire."""
    return _converter.unstructure(value)
