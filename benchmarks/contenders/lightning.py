"""lmdb: one batching writer in a thread, orjson."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, Sink
from benchmarks.contenders.batching import BatchingWriter, Row

_ROOM = 16 * 1024**3
"""Bytes that the map may grow to; the file is sparse."""


def _environment(root: Path, **settings: Any) -> Any:
    return import_module("lmdb").open(str(root / "entries.lmdb"), subdir=False, map_size=_ROOM, **settings)


@asynccontextmanager
async def _open(root: Path) -> AsyncIterator[Sink]:
    root.mkdir()
    with _environment(root) as environment:

        def write(rows: list[Row]) -> None:
            with environment.begin(write=True) as transaction:
                for rollout, call, entry in rows:
                    transaction.put(f"{rollout}/{call}".encode(), entry)

        writer = BatchingWriter(lambda rows: asyncio.to_thread(write, rows), import_module("orjson").dumps)
        yield writer
        await writer.close()


def _stored(root: Path) -> int:
    with _environment(root, readonly=True) as environment:
        return int(environment.stat()["entries"])


def _entries_of(cursor: Any, rollout: str) -> Iterator[bytes]:
    """The keys of a rollout's entries, one after the other; the cursor stands on each in turn."""
    first = f"{rollout}/".encode()
    there = cursor.set_range(first)
    while there and cursor.key().startswith(first):
        yield cursor.key()
        there = cursor.next()


def _read(root: Path, rollout: str) -> int:
    loads = import_module("orjson").loads
    with _environment(root, readonly=True) as environment, environment.begin() as transaction:
        cursor = transaction.cursor()
        return len([loads(cursor.value()) for _ in _entries_of(cursor, rollout)])


def _remove(root: Path, rollouts: Sequence[str]) -> None:
    with _environment(root) as environment, environment.begin(write=True) as transaction:
        for rollout in rollouts:
            for key in list(_entries_of(transaction.cursor(), rollout)):
                transaction.delete(key)


CONTENDERS = (Contender(name="lmdb", open=_open, stored=_stored, read=_read, remove=_remove, needs=("lmdb", "orjson")),)
