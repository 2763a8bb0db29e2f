"""Entries out of an export again, whose format is told by its first bytes. JSONL has none, and is read as lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tokenstore.export import npz, parquet
from tokenstore.export.columns import Exported

Reader = Callable[[Path], Iterator[list[Exported]]]
"""Gives the entries of a file, some rows at a time."""

_READERS: dict[bytes, Reader] = {parquet.MAGIC: parquet.read_entries, npz.MAGIC: npz.read_entries}


def reader_of(path: Path) -> Reader | None:
    """Tell how to read a file: None if it is neither Parquet nor npz, nor a file at all.

    Raises:
        OSError: It cannot be read.
    """
    if not path.is_file():  # of a pipe the bytes would be gone
        return None
    with path.open("rb") as file:
        return _READERS.get(file.read(4))
