"""NVIDIA NeMo Gym with this store behind it: a sink for its servers, a source for whoever consumes.

    token_id_capture:
      enabled: true
      sink: tokenstore.integrations.nemo_gym:TokenStoreSink
      sink_kwargs: {root: /data/captures}
      rebuild_response: false
      allow_unresolved_continuations: true

Read: `nemo_gym/token_id_capture` of nemo-gym 0.7.0. It is not imported: its entries are pydantic models, which are
taken by their `model_dump(mode="json")`, what only they have as unknown fields; what the source gives has the same
`model_dump`, `model_copy` and attributes, so that Gym's trajectory builders take it for theirs.

1. A sink and a source hold a store each, which is never entered: any loop and any thread may use them, also a loop that
   did not exist when they were made.
2. Made before a fork, they work on both sides: a child makes a store of its own at first use.
3. With a sink of its own Gym wants a `lineage_store` too, or the last line above. This module has none: who sets that
   line builds trajectories from a source, by token prefixes, as `tokenstore.trajectories` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs

from tokenstore.codec import decode_entry
from tokenstore.config import StoreConfig
from tokenstore.records import (
    ENTRY_FIELDS,
    RolloutRemovalPayload,
    TokenCaptureSnapshot,
    TokenEntry,
    entry_from,
)
from tokenstore.store import TokenCaptureStore

GYM_DEFAULTS: Mapping[str, Any] = {
    "parent_call_id": None,
    "cum_len": None,
    "digest": None,
    "parent_resolution": None,
    "continuation_fingerprint": "",
    "continuation_context_len": 0,
    "continuation_context_digest": "",
    "parent_resolution_reason": "",
    "fingerprint_version": None,
    "prompt_is_delta": False,
    "prefix_requested": False,
    "prefix_supplied": False,
}
"""Fields of Gym's entries that the store does not know, with the values they have where nobody set them."""


class GymEntry:
    """An entry that answers like one of NeMo Gym's: unknown fields are attributes, and it can be dumped and copied.

    Args:
        entry: What the store gave. Nothing of it is copied, so it is not to be changed.
    """

    __slots__ = ("entry",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, entry: TokenEntry) -> None:
        self.entry = entry

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in GymEntry.__slots__:  # not set yet, while it is unpickled
            raise AttributeError(name)
        if name in ENTRY_FIELDS or name == "extra":
            return getattr(self.entry, name)
        fields = {**GYM_DEFAULTS, **self.entry.extra}
        if name not in fields:
            raise AttributeError(f"neither the store nor call {self.entry.model_call_id!r} has a field {name!r}")
        return fields[name]

    def __eq__(self, other: object) -> bool:
        return self.entry == (other.entry if isinstance(other, GymEntry) else other)

    def __repr__(self) -> str:
        return f"Gym{self.entry!r}"

    def model_dump(self, *, mode: str = "python") -> dict[str, Any]:  # noqa: ARG002 - both modes are plain JSON here
        """Give all fields as plain JSON, unknown ones beside the declared, as a pydantic model does.

        Args:
            mode: `"json"` or `"python"`.
        """
        known = {name: getattr(self.entry, name) for name in ENTRY_FIELDS}
        return {**known, **GYM_DEFAULTS, **self.entry.extra}

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> GymEntry:
        """Give a copy with some fields changed, unknown ones too.

        Raises:
            InvalidEntryError: A new value is refused.
        """
        changes = dict(update or {})
        known = {name: changes.pop(name) for name in ENTRY_FIELDS if name in changes}
        return GymEntry(attrs.evolve(self.entry, **known, extra={**self.entry.extra, **changes}))


class GymStore(Protocol):
    """What a sink and a source of NeMo Gym stand on: a store of any kind, with the methods of both protocols."""

    async def put(self, entry: TokenEntry) -> None:
        """See `TokenSink`."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """See `TokenSink`."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        """See `TokenSink`."""

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """See `TokenSink`."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """See `TokenSource`."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """See `TokenSource`."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """See `TokenSource`."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """See `TokenSource`."""

    async def close(self) -> None:
        """See `TokenSink`."""


S = TypeVar("S", bound=GymStore)


class GymClient(Generic[S]):
    """A store in a process, also in one that was forked after it was made.

    Args:
        make: Makes the store of a process.
    """

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._process = os.getpid()
        self._store = make()

    @property
    def store(self) -> S:
        """The store of this process."""
        if self._process != os.getpid():
            self._store = self._make()
            self._process = os.getpid()
        return self._store

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. May be called again."""
        await self.store.close()


class GymSink(GymClient[S]):
    """The methods that a NeMo Gym server calls; durable when one has returned."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call is about to be sent; see `TokenSink`."""
        await self.store.begin_call(rollout_id, model_call_id)

    async def put(self, entry: Any) -> None:
        """Record what a call gave.

        Args:
            entry: Gym's entry, ours, or any object with the attributes of one.

        Raises:
            InvalidEntryError: It cannot be stored; nothing was written.
            ConflictingEntryError: The call is there with other content; the rollout is now marked incomplete.
            TokenCaptureFrozenError: The entry came too late.
        """
        await self.store.put(_entry_of(entry))

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        """Record that the engine refused a call before generating anything; see `TokenSink`."""
        await self.store.refuse_call(rollout_id, model_call_id=model_call_id, code=code)

    record_engine_refusal = refuse_call

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Record that a call was lost, also of a frozen rollout; see `TokenSink`."""
        await self.store.mark_incomplete(rollout_id, model_call_id)


class GymSource(GymClient[S]):
    """The methods that a trainer, or a trajectory builder of NeMo Gym, calls."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """End writing to a rollout and return it, its entries as `GymEntry`; see `TokenSource`."""
        snapshot = await self.store.freeze(rollout_id)
        entries = cast("tuple[TokenEntry, ...]", tuple(GymEntry(entry) for entry in snapshot.entries))
        return attrs.evolve(snapshot, entries=entries)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since; see `TokenSource`."""
        return await self.store.drop(rollout_id, snapshot_id=snapshot_id, version=version)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences; see `TokenSource`."""
        return await self.store.retire(rollout_ids)

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences; see `TokenSource`."""
        return await self.store.delete(rollout_ids)


class _InDirectory(GymClient[TokenCaptureStore]):
    """A client of a directory."""

    def __init__(self, root: str | os.PathLike[str], **config: Any) -> None:
        path = Path(root)
        if not path.is_absolute():
            raise ValueError(f"root is the relative path {str(path)!r}, an absolute path is allowed")
        self.root = path
        super().__init__(partial(TokenCaptureStore, path, config=StoreConfig(**config)))


class TokenStoreSink(_InDirectory, GymSink[TokenCaptureStore]):
    """Where a NeMo Gym server records its model calls; durable when a method has returned.

    Args:
        root: The directory, absolute; servers and trainers share it.
        config: Fields of `StoreConfig`, for example `prompt_storage: full` where Gym's own library reads the directory.

    Raises:
        ValueError: The root is relative, or a field's value is not allowed.
        TypeError: `StoreConfig` has no such field.
        OSError: The directory cannot be made or opened.
    """


class TokenStoreSource(_InDirectory, GymSource[TokenCaptureStore]):
    """Where a trainer, or a trajectory builder of NeMo Gym, takes finished rollouts from. Arguments as of the sink."""


def _entry_of(value: Any) -> TokenEntry:
    """Make an entry of ours of whatever a server hands over."""
    if isinstance(value, GymEntry):
        return value.entry
    if isinstance(value, TokenEntry) or not callable(getattr(value, "model_dump", None)):
        return entry_from(value)
    return decode_entry(value.model_dump(mode="json"))
