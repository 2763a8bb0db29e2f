"""NVIDIA NeMo Gym's own file store, where its package is installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender, Sink
from tokenstore import TokenEntry
from tokenstore.codec import encode_entry

MODULE = "nemo_gym.token_id_capture"
"""Where the reference lives."""


@asynccontextmanager
async def _open(root: Path) -> AsyncIterator[Sink]:
    store = import_module(MODULE).TokenCaptureStore(root)
    yield store
    await store.close()


def _convert(entry: TokenEntry) -> Any:
    return import_module(MODULE).TokenEntry(**encode_entry(entry))


def _stored(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*.tokens.jsonl"))


def _read(root: Path, rollout: str) -> int:
    return len(import_module(MODULE).TokenCaptureStore(root).freeze_now(rollout).entries)


def _remove(root: Path, rollouts: Sequence[str]) -> None:
    """Remove with fences where it can, which its published versions up to 0.7 cannot for rollouts nobody froze."""
    store = import_module(MODULE).TokenCaptureStore(root)
    if hasattr(store, "retire_now"):
        store.retire_now(rollouts)
    else:
        asyncio.run(_drop_all(store, rollouts))


async def _drop_all(store: Any, rollouts: Sequence[str]) -> None:
    async def one(rollout: str) -> None:
        snapshot = await store.freeze(rollout)
        await store.drop(rollout, snapshot_id=snapshot.snapshot_id, version=snapshot.version)

    await asyncio.gather(*map(one, rollouts))


CONTENDERS = (
    Contender(
        name="reference",
        open=_open,
        stored=_stored,
        convert=_convert,
        read=_read,
        remove=_remove,
        needs=(MODULE,),
    ),
)
