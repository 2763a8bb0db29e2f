"""A token store in memory: the whole lifecycle without a disk, for tests of code that uses a store.

It is also the shortest statement of what a token store does, written apart from the real one so that each can check
the other. `lifecycle` has one method for each event of a rollout; the store around it checks what comes in and copies
it, so that nothing a caller does to its objects later shows.

1. An operation first lets other tasks run, and there it may be cancelled; then it is done in one go.
2. Every store over one backend sees what every other has done, from any task, event loop or thread of the process.
3. Nothing is durable: the facts live as long as the backend.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self

import attrs
from anyio.lowlevel import checkpoint

from tokenstore.codec import check_entry
from tokenstore.errors import InvalidEntryError, StoreClosedError
from tokenstore.ids import recordable_call_id, validate_model_call_id, validate_rollout_id, validate_rollout_ids
from tokenstore.records import (
    RolloutRemovalPayload,
    TokenCaptureSnapshot,
    TokenEntry,
    entry_from,
    removal_payload,
)
from tokenstore.testing.lifecycle import Rollout


class MemoryBackend:
    """Where in-memory stores keep their rollouts; stores over one backend are clients of one store.

    Attributes:
        rollouts: Every rollout that was written to, also those of which only the fence is left.
        lock: Held around each operation; never while a task waits.
    """

    def __init__(self) -> None:
        self.rollouts: dict[str, Rollout] = {}
        self.lock = threading.Lock()

    def writable(self, rollout_id: str) -> Rollout:
        """Find a rollout, or make it."""
        return self.rollouts.setdefault(rollout_id, Rollout(rollout_id))

    def readable(self, rollout_id: str) -> Rollout:
        """Find a rollout; an unknown one looks empty and is not made."""
        return self.rollouts.get(rollout_id) or Rollout(rollout_id)

    def retire(self, rollout_id: str) -> bool:
        """Fence a rollout and tell whether it had records."""
        rollout = self.writable(rollout_id)
        had_records = rollout.has_records
        rollout.fence()
        return had_records

    def delete(self, rollout_id: str) -> bool:
        """Forget a rollout with its fence and tell whether it had records."""
        had_records = self.retire(rollout_id)  # fenced, so that whoever reads it entry by entry notices
        del self.rollouts[rollout_id]
        return had_records


class InMemoryTokenStore:
    """A token store without a disk: a `TokenSink` and a `TokenSource` that keep every rule of the lifecycle.

    Use it as it is or in `async with`, on asyncio and trio. It refuses what the real store refuses. Nothing outlives
    the backend.

    Args:
        backend: Share one between several stores to make them clients of one store; by default it has its own.
    """

    def __init__(self, *, backend: MemoryBackend | None = None) -> None:
        self.backend = MemoryBackend() if backend is None else backend
        self._entered = False
        self._closed = False

    async def __aenter__(self) -> Self:
        self._require_usable()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        validate_rollout_id(rollout_id)
        validate_model_call_id(model_call_id)
        await self._turn()
        with self.backend.lock:
            self.backend.writable(rollout_id).begin(model_call_id)

    async def put(self, entry: TokenEntry) -> None:
        kept = _checked_copy(entry)
        await self._turn()
        with self.backend.lock:
            self.backend.writable(kept.rollout_id).put(kept)

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        validate_rollout_id(rollout_id)
        validate_model_call_id(model_call_id)
        _check_code(code)
        await self._turn()
        with self.backend.lock:
            self.backend.writable(rollout_id).refuse(model_call_id, code)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        validate_rollout_id(rollout_id)
        await self._turn()
        with self.backend.lock:
            self.backend.writable(rollout_id).mark(recordable_call_id(model_call_id), "marked")

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        validate_rollout_id(rollout_id)
        await self._turn()
        with self.backend.lock:
            rollout = self.backend.writable(rollout_id)
            rollout.freeze()
            return rollout.snapshot()

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        validate_rollout_id(rollout_id)
        await self._turn()
        with self.backend.lock:
            return self.backend.readable(rollout_id).drop(snapshot_id, version)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        batch = validate_rollout_ids(rollout_ids)
        await self._turn()
        with self.backend.lock:
            return removal_payload({rollout_id: self.backend.retire(rollout_id) for rollout_id in batch}, batch)

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        batch = validate_rollout_ids(rollout_ids)
        await self._turn()
        with self.backend.lock:
            return removal_payload({rollout_id: self.backend.delete(rollout_id) for rollout_id in batch}, batch)

    async def peek(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Show a rollout without changing it; `frozen` tells whether more may come.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
        """
        validate_rollout_id(rollout_id)
        await self._turn()
        with self.backend.lock:
            return self.backend.readable(rollout_id).snapshot()

    async def entries(self, rollout_id: str) -> AsyncIterator[TokenEntry]:
        """Give the entries that are there now, one by one.

        Raises:
            TokenCaptureRetiredError: The rollout is retired, or was removed meanwhile.
        """
        validate_rollout_id(rollout_id)
        await self._turn()
        with self.backend.lock:
            rollout = self.backend.readable(rollout_id)
            known = rollout.snapshot().entries
        for entry in known:
            yield entry
            await checkpoint()
            rollout.require_records()

    def read_entries(self, rollout_id: str) -> list[TokenEntry]:
        """Give the entries that are there now; a retired rollout has none."""
        self._require_usable()
        with self.backend.lock:
            return list(self.backend.readable(validate_rollout_id(rollout_id)).entries.values())

    def is_incomplete(self, rollout_id: str) -> bool:
        """Tell whether something is known to be lost; calls in flight do not count."""
        self._require_usable()
        with self.backend.lock:
            return self.backend.readable(validate_rollout_id(rollout_id)).incomplete

    async def close(self) -> None:
        """Let go of the backend, which keeps its rollouts. A store that was never entered can be used again."""
        self._closed = self._entered

    async def _turn(self) -> None:
        self._require_usable()
        await checkpoint()
        self._require_usable()

    def _require_usable(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed; make another over the same backend")


def _checked_copy(value: object) -> TokenEntry:
    """Take an entry as a file would give it back: tuples as lists, whole log probabilities as floats."""
    entry = entry_from(value)
    check_entry(entry)
    return attrs.evolve(
        entry,
        generation_log_probs=[float(log_prob) for log_prob in entry.generation_log_probs],
        output_items=_plain(entry.output_items),
        extra=_plain(entry.extra),
        routed_experts=_plain(entry.routed_experts),
    )


def _check_code(code: object) -> None:
    if code is None:
        return
    if not isinstance(code, str):
        raise InvalidEntryError("code", f"is of type {type(code).__name__}, it must be a string or None")
    if any("\ud800" <= character <= "\udfff" for character in code):
        raise InvalidEntryError("code", "holds a lone surrogate, which is no UTF-8")


def _plain(value: Any) -> Any:
    """Copy a JSON tree, without recursion since it may be nested hundreds of levels deep."""
    top = [value]
    waiting: list[tuple[Any, Any]] = [(top, 0)]
    while waiting:
        parent, key = waiting.pop()
        child = parent[key]
        if isinstance(child, dict):
            parent[key] = copy = dict(child)
            waiting.extend((copy, name) for name in copy)
        elif isinstance(child, list | tuple):
            parent[key] = items = list(child)
            waiting.extend((items, position) for position in range(len(items)))
    return top[0]
