"""Rows as Parquet, by pyarrow: list columns of numbers, JSON as text, and a note on the schema of what it is.

Hugging Face `datasets`, polars and duckdb read these files as they are. The only module that imports pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from itertools import accumulate
from pathlib import Path
from typing import Any

from tokenstore.codec import dumps
from tokenstore.errors import InvalidEntryError
from tokenstore.export.columns import COLUMNS, PACKED, Exported, Kind, Row, batches, entry_of, exported
from tokenstore.extras import needed

GROUP_BYTES = 32 * 1024 * 1024
"""Packed bytes of a row group, which readers take up whole."""
READ_ROWS = 16
"""Rows that are read at once: calls of long prompts are megabytes each as Python lists."""
NOTE = b"tokenstore"
"""Key of the note in the schema's metadata: a JSON object."""
MAGIC = b"PAR1"
"""The first bytes of a file."""

Opener = Callable[[], BufferedIOBase]


def check() -> None:
    """Find out whether Parquet can be written.

    Raises:
        ModuleNotFoundError: pyarrow is not installed; the message says how to install it.
    """
    _pyarrow()


def write(file: BufferedIOBase, columns: Mapping[str, Kind], rows: Sequence[Row], note: Mapping[str, Any]) -> None:
    """Write rows as a whole Parquet file."""
    pa, pq = _pyarrow()
    schema = pa.schema([(name, _type(pa, kind)) for name, kind in columns.items()], metadata={NOTE: dumps(dict(note))})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches(rows, GROUP_BYTES):
            arrays = [_array(pa, kind, [row[name] for row in batch]) for name, kind in columns.items()]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def merge(parts: Sequence[Opener], into: BufferedIOBase) -> None:
    """Put parts together, one row group after the other."""
    _, pq = _pyarrow()
    with parts[0]() as first:
        schema = pq.read_schema(first)
    with pq.ParquetWriter(into, schema, compression="zstd") as writer:
        for opener in parts:
            with opener() as part, pq.ParquetFile(part) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))


def read_entries(path: Path) -> Iterator[list[Exported]]:
    """Give the entries of an export of entries, some rows at a time.

    Raises:
        InvalidEntryError: The file is Parquet, but no export of entries.
        ModuleNotFoundError: pyarrow is not installed; the message says how to install it.
        OSError: It cannot be read.
    """
    pa, pq = _pyarrow()
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in COLUMNS["entries"] if name in file.schema_arrow.names]
            if missing := [name for name in entry_of(dict.fromkeys(COLUMNS["entries"])) if name not in names]:
                raise InvalidEntryError(missing[0], "is no column of this Parquet file, which is no export of entries")
            for batch in file.iter_batches(READ_ROWS, columns=names):
                yield [exported(row) for row in batch.to_pylist()]
    except pa.ArrowInvalid as error:
        raise OSError(f"not a whole Parquet file: {error}") from error


def _pyarrow() -> tuple[Any, Any]:
    with needed("export", "pyarrow", "Parquet needs pyarrow"):
        import pyarrow as pa  # noqa: PLC0415 - optional, and slow to import
        import pyarrow.parquet as pq  # noqa: PLC0415
    return pa, pq


def _type(pa: Any, kind: Kind) -> Any:
    single = {"text": pa.string(), "json": pa.string(), "number": pa.float64(), "int": pa.int64(), "flag": pa.bool_()}
    items = {
        "texts": pa.string(),
        "flags": pa.bool_(),
        "int32s": pa.int32(),
        "uint32s": pa.uint32(),
        "uint8s": pa.uint8(),
        "float32s": pa.float32(),
        "float64s": pa.float64(),
    }
    return pa.list_(items[kind]) if kind in items else single[kind]


def _array(pa: Any, kind: Kind, values: Sequence[Any]) -> Any:
    """Make a column; packed lists go in as they are, without a Python object for each number."""
    if kind not in PACKED:
        return pa.array(values, _type(pa, kind))
    flat = b"".join(values)
    offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    item = _type(pa, kind).value_type
    numbers = pa.Array.from_buffers(item, len(flat) * 8 // item.bit_width, [None, pa.py_buffer(flat)])
    return pa.ListArray.from_arrays(offsets, numbers, type=_type(pa, kind))
