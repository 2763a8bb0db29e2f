"""A cluster store as servers and trainers hold it: every rollout goes to its shard.

1. A shard whose directory is on this node is written directly, through a store of this process: the same files, the
   same locks, and Ray is not on the way. Every other one is asked through its channel.
2. Any loop and any thread may use it. Inside `async with` the direct stores live in that loop.
3. Removals of many rollouts go to all shards at once; one that does not answer does not stop the others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Protocol, Self

import anyio
from anyio import to_thread

from tokenstore.capture import Capture, capturing
from tokenstore.cluster.config import ClusterPlan
from tokenstore.cluster.placement import placing
from tokenstore.cluster.remote import RemoteShard
from tokenstore.cluster.totals import added_up
from tokenstore.codec import check_text
from tokenstore.errors import RemovalError, StoreClosedError
from tokenstore.ids import recordable_call_id, validate_model_call_id, validate_rollout_ids
from tokenstore.records import (
    RolloutRemovalPayload,
    RolloutStatus,
    StoreStatistics,
    TokenCaptureSnapshot,
    TokenEntry,
    entry_from,
)
from tokenstore.slices import Slices
from tokenstore.store import TokenCaptureStore

DEADLINE = 120.0
"""Seconds: longer than Ray needs by default to give up a hung node (about 65 s) and start its shard elsewhere."""

ShardClient = TokenCaptureStore | RemoteShard
"""A shard as this process reaches it: directly, or over a channel."""
Removal = Callable[[ShardClient, Sequence[str]], Awaitable[RolloutRemovalPayload]]


class Link(Protocol):
    """How a process reaches the shards."""

    def resolve(self) -> tuple[ClusterPlan, Sequence[ShardClient]]:
        """Find the store and its shards. Blocks.

        Raises:
            ShardUnavailableError: There is no such store, or its manifest does not answer.
        """
        ...


class ClusterStore:
    """A store over many shards, with the async API of `TokenCaptureStore`. Made by `connect`.

    Each operation may raise `ShardUnavailableError` beside what the store raises: the shard did not answer within the
    deadline, and the error says whether the outcome is unknown. Retrying the same call is safe, but for `delete`.

    Args:
        link: How this process reaches the shards.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._guard = threading.Lock()
        self._shards: Sequence[ShardClient] | None = None
        self._find: Callable[[str], int] = lambda _: 0
        self._stack: AsyncExitStack | None = None
        self._closed = False
        self._process = os.getpid()

    # ------------------------------------------------------------------------------------------ writing

    async def put(self, entry: TokenEntry) -> None:
        """Store a call's entry; when this returns, it is on the disk of its shard. See `TokenCaptureStore.put`."""
        entry = entry_from(entry)
        await (await self._at(entry.rollout_id)).put(entry)

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call is about to be sent, so that its loss can be seen. Again is a no-op."""
        shard = await self._at(rollout_id)
        await shard.begin_call(rollout_id, validate_model_call_id(model_call_id))

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        """Record that the engine refused a call before generating anything. It costs the rollout nothing."""
        shard = await self._at(rollout_id)
        validate_model_call_id(model_call_id)
        check_text(code, "code", model_call_id)
        await shard.refuse_call(rollout_id, model_call_id=model_call_id, code=code)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Record that a call was lost, also of a frozen rollout. An invalid call id is recorded as blank."""
        await (await self._at(rollout_id)).mark_incomplete(rollout_id, recordable_call_id(model_call_id))

    def capture(self, rollout_id: str, model_call_id: str) -> AbstractAsyncContextManager[Capture]:
        """Guard one model call, as `TokenCaptureStore.capture` does."""

        async def mark_if_open() -> None:
            await (await self._at(rollout_id)).mark_if_open(rollout_id, model_call_id)

        return capturing(self, rollout_id, model_call_id, mark_if_open)

    # ------------------------------------------------------------------------------------------ consuming

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """End writing to a rollout and return it; again returns the same, also after its shard has restarted."""
        return await (await self._at(rollout_id)).freeze(rollout_id)

    async def peek(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Return what freeze would, and change nothing."""
        return await (await self._at(rollout_id)).peek(rollout_id)

    def entries(self, rollout_id: str) -> AsyncIterator[TokenEntry]:
        """Give a rollout's entries one by one; memory does not grow with their number.

        Raises:
            ShardUnavailableError: Its shard restarted meanwhile, among other reasons; begin the reading again.
        """

        async def begin() -> AsyncIterator[TokenEntry]:
            return (await self._at(rollout_id)).entries(rollout_id)

        return _sliced(begin)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since, leaving a fence; false if that is not so."""
        shard = await self._at(rollout_id)
        return await shard.drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences. Again is a no-op.

        Raises:
            TypeError: A bare string was given; pass a list.
            RemovalError: Some ids failed, those of a shard that did not answer among them; the others are done.
        """
        return await self._remove(rollout_ids, lambda shard, batch: shard.retire(batch))

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences. Never repeated by itself: a late second one could remove a new rollout.

        Raises:
            TypeError: A bare string was given; pass a list.
            RemovalError: Some ids failed, those of a shard that did not answer among them; the others are done.
        """
        return await self._remove(rollout_ids, lambda shard, batch: shard.delete(batch))

    # ------------------------------------------------------------------------------------------ looking

    def rollouts(self) -> AsyncIterator[RolloutStatus]:
        """Give every rollout of every shard, in no order, without locks.

        Raises:
            ShardUnavailableError: A shard restarted meanwhile, among other reasons; begin the listing again.
        """
        waiting: list[ShardClient] | None = None
        part: AsyncIterator[RolloutStatus] | None = None

        async def next_one() -> list[RolloutStatus]:
            nonlocal waiting, part
            if waiting is None:
                waiting = list(await self._all())
            while True:
                if part is not None and (status := await anext(part, None)) is not None:
                    return [status]
                if not waiting:
                    return []
                part = waiting.pop().rollouts()

        return Slices(next_one)

    async def statistics(self) -> StoreStatistics:
        """What the shards have done since they started, added up; unlike the store's own this has to be awaited."""
        found: list[StoreStatistics] = []
        failed: list[Exception] = []

        async def ask(shard: ShardClient) -> None:
            try:
                found.append(shard.statistics() if isinstance(shard, TokenCaptureStore) else await shard.statistics())
            except Exception as error:  # noqa: BLE001 - it is raised below, and not in a group
                failed.append(error)

        shards = await self._all()
        async with anyio.create_task_group() as tasks:
            for shard in shards:
                tasks.start_soon(ask, shard)
        if failed:
            raise failed[0]
        return added_up(found)

    # ------------------------------------------------------------------------------------------ opening, closing

    async def __aenter__(self) -> Self:
        shards = await self._all()
        async with AsyncExitStack() as stack:
            for shard in shards:
                if isinstance(shard, TokenCaptureStore):
                    await stack.enter_async_context(shard)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._stack is not None:
            await self._stack.aclose()

    async def close(self) -> None:
        """Finish what the direct stores have accepted, and let go of them. The shards go on. Again is a no-op."""
        self._closed = self._closed or self._stack is not None
        for shard in self._shards or ():
            await shard.close()

    # ------------------------------------------------------------------------------------------ inside

    async def _all(self) -> Sequence[ShardClient]:
        if self._closed:
            raise StoreClosedError("the cluster store is closed; connect again")
        shards = self._shards
        if shards is not None and self._process != os.getpid():
            raise StoreClosedError("Ray does not go on in a forked process; start this one by spawn, and connect in it")
        return await to_thread.run_sync(self._resolved) if shards is None else shards

    def _resolved(self) -> Sequence[ShardClient]:
        """Find the shards, once however many come first."""
        with self._guard:
            if self._shards is None:
                plan, shards = self._link.resolve()
                self._find = placing(plan.config.place, plan.config.shards)
                self._process = os.getpid()
                self._shards = shards
                return shards
            return self._shards

    async def _at(self, rollout_id: str) -> ShardClient:
        return (await self._all())[self._find(rollout_id)]

    async def _remove(self, rollout_ids: Sequence[str], remove: Removal) -> RolloutRemovalPayload:
        batch = validate_rollout_ids(rollout_ids)
        shards = await self._all()
        parts: dict[int, list[str]] = {}
        for rollout_id in batch:
            parts.setdefault(self._find(rollout_id), []).append(rollout_id)
        payload: RolloutRemovalPayload = {"removed": [], "absent": []}
        causes: dict[str, Exception] = {}
        async with anyio.create_task_group() as tasks:
            for index, part in parts.items():
                tasks.start_soon(_remove_part, partial(remove, shards[index], part), part, payload, causes)
        for found in (payload["removed"], payload["absent"]):
            found.sort(key=batch.index)
        if causes:
            raise RemovalError({"removed": payload["removed"], "absent": payload["absent"]}, causes)
        return payload


async def _remove_part(
    remove: Callable[[], Awaitable[RolloutRemovalPayload]],
    part: Sequence[str],
    payload: RolloutRemovalPayload,
    causes: dict[str, Exception],
) -> None:
    """Remove what one shard holds, and note what came of it."""
    done: Any
    try:
        done = await remove()
    except RemovalError as error:
        done = error.payload
        causes.update(error.causes)
    except Exception as error:  # noqa: BLE001 - whatever it is, it does not stop the other shards
        done = {"removed": [], "absent": []}
        causes.update(dict.fromkeys(part, error))
    payload["removed"] += done["removed"]
    payload["absent"] += done["absent"]


def _sliced(begin: Callable[[], Awaitable[AsyncIterator[TokenEntry]]]) -> AsyncIterator[TokenEntry]:
    """Give the items of an iterator that has yet to be awaited."""
    items: AsyncIterator[TokenEntry] | None = None

    async def next_one() -> list[TokenEntry]:
        nonlocal items
        items = items or await begin()
        entry = await anext(items, None)
        return [] if entry is None else [entry]

    return Slices(next_one)
