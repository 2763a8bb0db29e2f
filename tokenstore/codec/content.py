"""When two entries mean the same: the content digest, independent of encoding, writer and prompt storage.

Content is every field but `created_at`, defaults filled in: ids by value, log probabilities by their 64 bits, the rest
as a JSON tree in which key order does not count and int, float and bool differ.
"""

from __future__ import annotations

import hashlib
import sys
from array import array

from tokenstore.codec.plain import dumps
from tokenstore.records import ENTRY_FIELDS, TokenEntry

_ARRAYS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})
_REST = tuple(name for name in ENTRY_FIELDS if name not in _ARRAYS and name != "created_at")


def little_endian(values: array[int] | array[float]) -> bytes:
    """The bytes of packed numbers in little-endian order, whatever the machine."""
    if sys.byteorder == "big":  # pragma: no cover - no such machine in our tests
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_little_endian(packed: bytes) -> array[int]:
    """Ids out of the bytes that `little_endian` has made."""
    ids = array("I", packed)
    if sys.byteorder == "big":  # pragma: no cover - no such machine in our tests
        ids.byteswap()
    return ids


def content_digest(entry: TokenEntry) -> bytes:
    """sha256 over ids as uint32, log probabilities as float64 and the rest as canonical JSON, each with its length.

    Args:
        entry: An entry whose elements were checked.
    """
    rest = {name: getattr(entry, name) for name in _REST}
    parts = (
        little_endian(array("I", entry.prompt_token_ids)),
        little_endian(array("I", entry.generation_token_ids)),
        little_endian(array("d", entry.generation_log_probs)),
        dumps({**rest, **entry.extra}),
    )
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
