"""Rows as JSON objects, one a line.

Entries are written as `tokenstore ingest` takes them, declared and unknown fields side by side, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BufferedIOBase
from typing import Any

from tokenstore.codec import dumps, loads
from tokenstore.export.columns import Kind, Row, entry_of

CHUNK = 1024 * 1024
"""Bytes copied at once."""

Opener = Callable[[], BufferedIOBase]


def check() -> None:
    """Nothing is needed."""


def write(file: BufferedIOBase, columns: Mapping[str, Kind], rows: Sequence[Row], note: object = None) -> None:  # noqa: ARG001
    """Write rows; entries are told by their columns."""
    plain = _entry if "model_call_id" in columns else _row
    file.writelines(dumps(plain(row, columns)) + b"\n" for row in rows)


def merge(parts: Sequence[Opener], into: BufferedIOBase) -> None:
    """Put parts together."""
    for opener in parts:
        with opener() as part:
            while chunk := part.read(CHUNK):
                into.write(chunk)


def _row(row: Row, columns: Mapping[str, Kind]) -> Row:
    plain = {name: _plain(value) for name, value in row.items()}
    return {name: _parsed(value) if columns[name] == "json" else value for name, value in plain.items()}


def _entry(row: Row, columns: Mapping[str, Kind]) -> dict[str, Any]:
    plain = _row(entry_of(row), columns)
    extra = plain.pop("extra")
    if plain["response_id"] is None:
        del plain["response_id"]
    return {**plain, **extra}


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _parsed(value: str | None) -> Any:
    return None if value is None else loads(value)
