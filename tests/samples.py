"""Small entries and lines that many tests are made of."""

from __future__ import annotations

import json
import os
import zlib
from array import array
from pathlib import Path
from typing import Any

import attrs
import pytest

from tokenstore.codec import KnownPrompt, prepare
from tokenstore.records import TokenEntry
from tokenstore.testing import first_difference

LIMIT = 2**30
"""A bound on lines that nothing here reaches."""


def entry(call_id: str = "c0", /, **fields: Any) -> TokenEntry:
    """Make a small entry of the rollout `r`; other fields by name."""
    known: dict[str, Any] = {
        "rollout_id": "r",
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": [4, 5],
        "generation_log_probs": [-0.5, -1.25],
        "model": "m",
        "output_items": [{"type": "message", "text": "hello"}],
        "created_at": 1.5,
    }
    return TokenEntry(**{**known, "model_call_id": call_id, **fields})


def line_of(value: TokenEntry, *, checksum: bool = True, base: KnownPrompt | None = None) -> bytes:
    """Write an entry as a line without its newline."""
    return prepare(value, max_entry_bytes=LIMIT).line(base, checksum=checksum)


def foreign_line(value: dict[str, Any]) -> bytes:
    """Write any JSON object as a line without a checksum, as another library would."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()


def vouched(body: bytes) -> bytes:
    """Give the bytes of a JSON object a right checksum, whatever they are."""
    body = body.removesuffix(b"}")
    return body + b',"crc32":%d}' % zlib.crc32(body)


def nested(levels: int) -> Any:
    """Nest lists and objects in turns, so many levels deep."""
    value: Any = "leaf"
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def quick_difference(wanted: TokenEntry, found: TokenEntry) -> str | None:
    """Name the first place where a long entry is not what it should be, its arrays compared at the speed of C."""
    for name in ("prompt_token_ids", "generation_token_ids"):
        if getattr(wanted, name) != getattr(found, name):
            return name
    if array("d", wanted.generation_log_probs).tobytes() != array("d", found.generation_log_probs).tobytes():
        return "generation_log_probs"
    return first_difference(_without_arrays(wanted), _without_arrays(found))


def _without_arrays(value: TokenEntry) -> TokenEntry:
    return attrs.evolve(value, prompt_token_ids=[], generation_token_ids=[], generation_log_probs=[])


def data_folder(variable: str) -> Path:
    """Find data outside the project, or skip the test with the reason."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} is not set: it names a folder that is not part of the project")
    return Path(folder)
