"""aiosqlite: a write-ahead log with `synchronous=FULL`, one batching writer, orjson."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from importlib import import_module
from pathlib import Path
from sqlite3 import connect

from benchmarks.contenders import Contender, Sink
from benchmarks.contenders.batching import BatchingWriter, Row

_TABLE = "CREATE TABLE entries (rollout TEXT, call TEXT, entry BLOB, PRIMARY KEY (rollout, call))"


@asynccontextmanager
async def _open(root: Path) -> AsyncIterator[Sink]:
    root.mkdir()
    async with import_module("aiosqlite").connect(root / "entries.sqlite") as database:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", _TABLE):
            await database.execute(statement)
        await database.commit()

        async def commit(rows: list[Row]) -> None:
            await database.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
            await database.commit()

        writer = BatchingWriter(commit, import_module("orjson").dumps)
        yield writer
        await writer.close()


def _stored(root: Path) -> int:
    with closing(connect(root / "entries.sqlite")) as database:
        return int(database.execute("SELECT count(*) FROM entries").fetchone()[0])


def _read(root: Path, rollout: str) -> int:
    loads = import_module("orjson").loads
    with closing(connect(root / "entries.sqlite")) as database:
        rows = database.execute("SELECT entry FROM entries WHERE rollout = ? ORDER BY rowid", (rollout,))
        return len([loads(entry) for (entry,) in rows])


def _remove(root: Path, rollouts: Sequence[str]) -> None:
    with closing(connect(root / "entries.sqlite")) as database:
        database.execute("PRAGMA synchronous=FULL")
        database.executemany("DELETE FROM entries WHERE rollout = ?", [(rollout,) for rollout in rollouts])
        database.commit()


CONTENDERS = (
    Contender(name="aiosqlite", open=_open, stored=_stored, read=_read, remove=_remove, needs=("aiosqlite", "orjson")),
)
