"""What a user would write first: a line of JSON appended and fsynced in `asyncio.to_thread`."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.contenders import Contender, Sink
from tokenstore import TokenEntry
from tokenstore.codec import encode_entry


class _Files:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, entry: TokenEntry) -> None:
        await asyncio.to_thread(self._append, entry)

    def _append(self, entry: TokenEntry) -> None:
        line = json.dumps(encode_entry(entry), ensure_ascii=False, separators=(",", ":")) + "\n"
        with (self._root / f"{entry.rollout_id}.jsonl").open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


@asynccontextmanager
async def _open(root: Path) -> AsyncIterator[Sink]:
    root.mkdir()
    yield _Files(root)


def _stored(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*.jsonl"))


def _read(root: Path, rollout: str) -> int:
    return len([json.loads(line) for line in (root / f"{rollout}.jsonl").read_bytes().splitlines()])


def _remove(root: Path, rollouts: Sequence[str]) -> None:
    for rollout in rollouts:
        (root / f"{rollout}.jsonl").unlink()
    descriptor = os.open(root, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


CONTENDERS = (Contender(name="to_thread + json", open=_open, stored=_stored, read=_read, remove=_remove),)
