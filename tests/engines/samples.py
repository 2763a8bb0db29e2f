"""Answers that engines sent, or that were constructed after their classes: data outside the project."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.engines.dialects import IDS
from tests.samples import data_folder
from tokenstore import TokenEntry

VARIABLE = "TOKENSTORE_WIRE_DATA"


def sample(name: str) -> Path:
    """Find a sample, or skip the test with the reason."""
    return data_folder(VARIABLE) / name


@cache
def parsed(name: str) -> Any:
    """Read a sample of one JSON value."""
    return json.loads(sample(name).read_bytes())


def read(engine: ModuleType, name: str, **about: Any) -> TokenEntry:
    """Let an engine's file read a sample: a whole answer, or a stream with a chunk a line."""
    text = sample(name).read_text(encoding="utf-8")
    if name.endswith(".json"):
        made: TokenEntry = engine.entry_from_response(text, **IDS, **about)
        return made
    return read_stream(engine, text.splitlines(), **about)


def read_stream(engine: ModuleType, chunks: list[Any], **about: Any) -> TokenEntry:
    """Let an engine's file read chunks."""
    assembler = engine.StreamAssembler(**IDS, **about)
    for chunk in chunks:
        assembler.feed(chunk)
    made: TokenEntry = assembler.entry()
    return made
