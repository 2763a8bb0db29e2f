"""Small entries and lines that many tests are made of."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any
from unittest import SkipTest

from tokenstore.codec import KnownPrompt, prepare
from tokenstore.records import TokenEntry

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


def data_folder(variable: str) -> Path:
    """Find data outside the project, or skip the test with the reason."""
    folder = os.environ.get(variable)
    if not folder:
        # Not pytest's own: processes that tests start import this module, and would import pytest with it.
        raise SkipTest(f"{variable} is not set: it names a folder that is not part of the project")
    return Path(folder)
