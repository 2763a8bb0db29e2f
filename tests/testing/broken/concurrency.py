"""Stores that are right as long as one caller at a time uses one client and never changes its mind."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

import secrets

from anyio.lowlevel import checkpoint

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.testing import MemoryBackend


@caught_by("many_puts_into_one_rollout")
class RacyStore(BrokenStore):
    """Reads the version, waits, and writes it back."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        before = rollout.version
        await super().put(entry)
        rollout.version = before + 1


@caught_by("many_rollouts_at_once")
class OneAtATimeStore(BrokenStore):
    """Fails while it is busy."""

    busy = False

    async def put(self, entry: TokenEntry) -> None:
        if self.busy:
            raise BlockingIOError("busy")
        self.busy = True
        await super().put(entry)
        self.busy = False


@caught_by("same_put_at_once_counts_once")
class LookThenCountStore(BrokenStore):
    """Looks whether an entry is there, waits, and counts it."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        fresh = entry.model_call_id not in rollout.entries
        await checkpoint()
        rollout.version += fresh and entry.model_call_id in rollout.entries
        rollout.put(entry)


@caught_by("one_of_conflicting_puts_wins")
class LastWriterStore(BrokenStore):
    """Looks whether an entry is there, waits, and writes over what came meanwhile."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        fresh = entry.model_call_id not in rollout.entries
        await checkpoint()
        if fresh:
            rollout.entries.pop(entry.model_call_id, None)
        rollout.put(entry)


@caught_by("freezes_at_once_agree")
class RacyFreezeStore(BrokenStore):
    """Looks whether a rollout is frozen, waits, and names the snapshot."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        rollout = self.at(rollout_id)
        fresh = rollout.state == "open"
        snapshot = await super().freeze(rollout_id)
        if fresh:
            rollout.snapshot_id = secrets.token_hex(4)
            snapshot = rollout.snapshot()
        return snapshot


@caught_by("freeze_takes_what_was_acknowledged")
class LeakyFreezeStore(BrokenStore):
    """Reads the entries, waits, and freezes what it read."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        rollout = self.at(rollout_id)
        entries = dict(rollout.entries)
        for _ in range(4):
            await checkpoint()
        if rollout.state == "open":
            rollout.entries = entries
        return await super().freeze(rollout_id)


@caught_by("cancelled_put_can_be_retried")
class HalfDoneStore(BrokenStore):
    """Notes that it has an entry before it has it."""

    def __init__(self, *, backend: MemoryBackend | None = None) -> None:
        super().__init__(backend=backend)
        self.noted: set[tuple[str, str]] = set()

    async def put(self, entry: TokenEntry) -> None:
        name = (entry.rollout_id, entry.model_call_id)
        if name not in self.noted:
            self.noted.add(name)
            await super().put(entry)


@caught_by("cancelled_put_is_whole_or_absent")
class HalfCountedStore(BrokenStore):
    """Counts an entry before it has it."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        if entry.model_call_id not in rollout.entries:
            rollout.version += 1
            await checkpoint()
            rollout.version -= 1
        await super().put(entry)


@caught_by("clients_see_each_other")
class PrivateStore(BrokenStore):
    """Keeps the refusals of each client apart."""

    def __init__(self, *, backend: MemoryBackend | None = None) -> None:
        super().__init__(backend=backend)
        self.own = MemoryBackend()

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        await checkpoint()
        self.own.writable(rollout_id).refuse(model_call_id, code)


@caught_by("clients_write_into_one_rollout")
class CachingStore(BrokenStore):
    """Remembers the version that it wrote last, and counts from there."""

    def __init__(self, *, backend: MemoryBackend | None = None) -> None:
        super().__init__(backend=backend)
        self.versions: dict[str, int] = {}

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        known = entry.model_call_id in rollout.entries
        await super().put(entry)
        if not known:
            rollout.version = self.versions[entry.rollout_id] = self.versions.get(entry.rollout_id, 0) + 1


@caught_by("drops_at_once_agree")
class BusyDropStore(BrokenStore):
    """Answers false while another drop runs."""

    busy = False

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        if self.busy:
            return False
        self.busy = True
        dropped = await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)
        self.busy = False
        return dropped


@caught_by("close_loses_nothing")
class CleaningStore(BrokenStore):
    """Tidies up when it is closed, more than it should."""

    async def close(self) -> None:
        self.backend.rollouts.clear()
        await super().close()
