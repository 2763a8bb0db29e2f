"""Rows as numpy arrays in one npz file: a list column is one flat array, and `NAME_offsets` says where its rows begin.

Row `i` of `token_ids` is `token_ids[token_ids_offsets[i] : token_ids_offsets[i + 1]]`. JSON is such a column too, of
its bytes as UTF-8. Texts are arrays of strings, "" where there is none; of those that may be missing `NAME_given` says
whether one is there. A missing number is NaN, a missing int -1.
Nothing is pickled, so `numpy.load(path)` reads it. `read_entries` reads it row by row, all arrays side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BufferedIOBase
from itertools import accumulate, chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from tokenstore.errors import InvalidEntryError, TokenStoreError
from tokenstore.export.columns import COLUMNS, PACKED, Exported, Kind, Row, entry_of, exported
from tokenstore.extras import needed

GIVEN = "_given"
"""What the name of the flags of a text column ends with that say which texts are there."""
OPTIONAL = frozenset({"response_id", "group_id"})
"""Text columns that may be missing."""
MISSING_INT = -1
"""What stands for an int that is not there; counts and places are none."""
SUFFIX = "_offsets"
"""What the name of a list column's offsets ends with."""

MAGIC = b"PK\3\4"
"""The first bytes of a file."""

Opener = Callable[[], BufferedIOBase]


def check() -> None:
    """Find out whether npz can be written.

    Raises:
        ModuleNotFoundError: numpy is not installed; the message says how to install it.
    """
    _numpy()


def write(file: BufferedIOBase, columns: Mapping[str, Kind], rows: Sequence[Row], note: object = None) -> None:  # noqa: ARG001
    """Write rows as a whole npz file.

    Raises:
        InvalidEntryError: A text ends with a NUL, which arrays of strings lose; another format holds it.
    """
    np = _numpy()
    with ZipFile(file, "w") as archive:
        for name, kind in columns.items():
            for member, values in _arrays(np, name, kind, [row[name] for row in rows]):
                with archive.open(f"{member}.npy", "w", force_zip64=True) as out:
                    np.lib.format.write_array(out, values, allow_pickle=False)


def merge(parts: Sequence[Opener], into: BufferedIOBase) -> None:
    """Put parts together, one array after the other, of which one part's share is in memory."""
    np = _numpy()
    with parts[0]() as first, ZipFile(first) as archive:
        members = archive.namelist()
    with ZipFile(into, "w") as archive:
        for member in members:
            with archive.open(member, "w", force_zip64=True) as out:
                _join(np, parts, member, out)


def read_entries(path: Path) -> Iterator[list[Exported]]:
    """Give the entries of an export of entries, one at a time.

    Raises:
        InvalidEntryError: The file is npz, but no export of entries.
        ModuleNotFoundError: numpy is not installed; the message says how to install it.
        OSError: It cannot be read.
    """
    np = _numpy()
    try:
        with ZipFile(path) as archive, ExitStack() as stack:
            names = [*entry_of(dict.fromkeys(COLUMNS["entries"])), "incomplete"]
            if missing := [name for name in names if f"{name}.npy" not in archive.namelist()]:
                raise InvalidEntryError(missing[0], "is no array of this npz file, which is no export of entries")
            readers = {name: _Column(np, archive, name, stack) for name in names}
            for _ in range(readers["rollout_id"].rows):
                yield [exported({name: reader.next() for name, reader in readers.items()})]
    except (BadZipFile, EOFError, KeyError, ValueError) as error:
        if isinstance(error, TokenStoreError):
            raise
        raise OSError(f"not a whole npz file: {error}") from error


class _Column:
    """The rows of a column, one after the other, without the others in memory."""

    def __init__(self, np: Any, archive: ZipFile, name: str, stack: ExitStack) -> None:
        self._kind = kind = COLUMNS["entries"][name]
        self._values = _Array(np, stack.enter_context(archive.open(f"{name}.npy")))
        self._given = _Array(np, stack.enter_context(archive.open(name + GIVEN + ".npy"))) if name in OPTIONAL else None
        self._offsets: _Array | None = None
        self.rows = self._values.length
        if kind in PACKED or kind == "json":
            self._offsets = _Array(np, stack.enter_context(archive.open(f"{name}{SUFFIX}.npy")))
            self._start = int(self._offsets.take(1)[0])

    def next(self) -> Any:
        """Give the next row's value, None where there was none."""
        if self._offsets is None:
            return self._single()
        start, self._start = self._start, int(self._offsets.take(1)[0])
        values = self._values.take(self._start - start)
        if self._kind == "json":
            return values.tobytes().decode() or None
        return values.tolist()

    def _single(self) -> Any:
        value = self._values.take(1).tolist()[0]
        if self._given is not None:
            return value if self._given.take(1)[0] else None
        return None if self._kind == "int" and value == MISSING_INT else value


class _Array:
    """The items of one array, in their order."""

    def __init__(self, np: Any, file: Any) -> None:
        np.lib.format.read_magic(file)
        (self.length,), _, self._dtype = np.lib.format.read_array_header_1_0(file)
        self._np, self._file = np, file

    def take(self, count: int) -> Any:
        """Give the next items."""
        size = count * self._dtype.itemsize
        data = self._file.read(size) if size >= 0 else b""
        if len(data) != size:
            raise EOFError("an array ends too early")
        return self._np.frombuffer(data, self._dtype)


def _join(np: Any, parts: Sequence[Opener], member: str, out: Any) -> None:
    shapes = [_header(np, opener, member) for opener in parts]
    dtype = np.result_type(*(dtype for _, dtype in shapes))
    offsets = member.removesuffix(".npy").endswith(SUFFIX)
    total = sum(length for length, _ in shapes) - (len(parts) - 1 if offsets else 0)
    head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (total,)}
    np.lib.format.write_array_header_1_0(out, head)
    end = 0
    for number, opener in enumerate(parts):
        values = _load(np, opener, member).astype(dtype)
        if offsets:  # each part begins at 0 again
            values = (values + end)[1 if number else 0 :]
            end = int(values[-1]) if len(values) else end
        out.write(values.tobytes())


def _header(np: Any, opener: Opener, member: str) -> tuple[int, Any]:
    with opener() as part, ZipFile(part) as archive, archive.open(member) as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return shape[0], dtype


def _load(np: Any, opener: Opener, member: str) -> Any:
    with opener() as part, ZipFile(part) as archive, archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _arrays(np: Any, name: str, kind: Kind, values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Give a column as arrays by their names."""
    if kind in PACKED:
        yield name, np.frombuffer(b"".join(values), dtype=PACKED[kind])
    elif kind == "json":
        values = [(value or "").encode() for value in values]
        yield name, np.frombuffer(b"".join(values), dtype="u1")
    elif kind in ("texts", "flags"):
        yield name, _column(np, name, "text" if kind == "texts" else "flag", list(chain.from_iterable(values)))
    else:
        yield name, _column(np, name, kind, values)
        if name in OPTIONAL:
            yield name + GIVEN, _column(np, name, "flag", [value is not None for value in values])
        return
    yield name + SUFFIX, np.fromiter(accumulate(map(len, values), initial=0), dtype=np.int64)


def _column(np: Any, name: str, kind: Kind, values: Sequence[Any]) -> Any:
    dtype, missing = {"number": ("f8", np.nan), "int": ("i8", MISSING_INT), "flag": ("?", False)}.get(kind, ("U", ""))
    if dtype == "U" and any(value and value.endswith("\0") for value in values):
        raise InvalidEntryError(name, "ends with a NUL, which arrays of strings lose; export as JSONL or Parquet")
    return np.array([missing if value is None else value for value in values], dtype=dtype)


def _numpy() -> Any:
    with needed("export", "numpy", "npz needs numpy"):
        import numpy as np  # noqa: PLC0415 - optional, and slow to import
    return np
