"""What a shard can be asked to do, as a table, and what each costs in bytes on its way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tokenstore.cluster.streams import Outbox, Stream, entries_stream, rollouts_stream, snapshot_stream
from tokenstore.cluster.wire import Operation
from tokenstore.codec import Draft
from tokenstore.records import StoreStatistics
from tokenstore.store import TokenCaptureStore

OVERHEAD = 1024
"""Bytes of an operation beside its draft, as a guess."""


async def _freeze(store: TokenCaptureStore, rollout_id: str) -> Stream:
    return snapshot_stream(await store.freeze(rollout_id))


async def _peek(store: TokenCaptureStore, rollout_id: str) -> Stream:
    return snapshot_stream(await store.peek(rollout_id))


async def _entries(store: TokenCaptureStore, rollout_id: str) -> Stream:
    return entries_stream(store, rollout_id)


async def _rollouts(store: TokenCaptureStore) -> Stream:
    return rollouts_stream(store)


async def _refuse_call(store: TokenCaptureStore, rollout_id: str, model_call_id: str, code: str | None) -> None:
    await store.refuse_call(rollout_id, model_call_id=model_call_id, code=code)


async def _drop(store: TokenCaptureStore, rollout_id: str, snapshot_id: str, version: int) -> bool:
    return await store.drop(rollout_id, snapshot_id=snapshot_id, version=version)


async def _statistics(store: TokenCaptureStore) -> StoreStatistics:
    return store.statistics()


WRITING: Mapping[str, Callable[..., Awaitable[Any]]] = {
    "put": TokenCaptureStore.put_prepared,
    "begin_call": TokenCaptureStore.begin_call,
    "refuse_call": _refuse_call,
    "mark_incomplete": TokenCaptureStore.mark_incomplete,
    "mark_if_open": TokenCaptureStore.mark_if_open,
    "drop": _drop,
    "retire": TokenCaptureStore.retire,
    "delete": TokenCaptureStore.delete,
    "statistics": _statistics,
}
"""Operations with a short answer, of the store and their arguments: these travel in batches."""
READING: Mapping[str, Callable[..., Awaitable[Stream]]] = {
    "freeze": _freeze,
    "peek": _peek,
    "entries": _entries,
    "rollouts": _rollouts,
}
"""Operations with a long answer."""
ONCE = frozenset({"delete"})
"""Operations that are never repeated for a caller: a late second one could remove a new rollout of the same id."""


async def perform(store: TokenCaptureStore, operation: Operation, outbox: Outbox) -> Any:
    """Do an operation and give its answer, or the first part of it."""
    if operation.name in READING:
        return await outbox.begin(await READING[operation.name](store, *operation.arguments))
    return await WRITING[operation.name](store, *operation.arguments)


def size_of(operation: Operation) -> int:
    """Guess how many bytes an operation takes on its way."""
    return OVERHEAD + sum(argument.size for argument in operation.arguments if isinstance(argument, Draft))
