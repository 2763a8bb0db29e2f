"""Rows as numpy arrays in one npz file: a list column is one flat array, and `NAME_offsets` says where its rows begin.

Row `i` of `token_ids` is `token_ids[token_ids_offsets[i] : token_ids_offsets[i + 1]]`. JSON is such a column too, of
its bytes as UTF-8. Texts are arrays of strings, "" where there is none; a missing number is NaN, a missing int -1.
Nothing is pickled, so `numpy.load(path)` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BufferedIOBase
from itertools import accumulate, chain
from typing import Any
from zipfile import ZipFile

from tokenstore.export.columns import PACKED, Kind, Row

SUFFIX = "_offsets"
"""What the name of a list column's offsets ends with."""

Opener = Callable[[], BufferedIOBase]


def check() -> None:
    """Find out whether npz can be written.

    Raises:
        ModuleNotFoundError: numpy is not installed; the message says how to install it.
    """
    _numpy()


def write(file: BufferedIOBase, columns: Mapping[str, Kind], rows: Sequence[Row], note: object = None) -> None:  # noqa: ARG001
    """Write rows as a whole npz file."""
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
        yield name, _column(np, "text" if kind == "texts" else "flag", list(chain.from_iterable(values)))
    else:
        yield name, _column(np, kind, values)
        return
    yield name + SUFFIX, np.fromiter(accumulate(map(len, values), initial=0), dtype=np.int64)


def _column(np: Any, kind: Kind, values: Sequence[Any]) -> Any:
    dtype, missing = {"number": ("f8", np.nan), "int": ("i8", -1), "flag": ("?", False)}.get(kind, ("U", ""))
    return np.array([missing if value is None else value for value in values], dtype=dtype)


def _numpy() -> Any:
    try:
        import numpy as np  # noqa: PLC0415 - optional, and slow to import
    except ImportError as error:
        problem = "npz needs numpy; 'pip install tokenstore[export]' adds it"
        raise ModuleNotFoundError(problem, name="numpy") from error
    return np
