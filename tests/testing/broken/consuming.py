"""Stores that freeze and drop wrongly."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

import attrs
from anyio.lowlevel import checkpoint

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.errors import TokenCaptureFrozenError, TokenCaptureRetiredError
from tokenstore.records import TokenCaptureSnapshot, TokenEntry


@caught_by("freeze_of_unknown_is_empty")
class UnknownMaskingStore(BrokenStore):
    """Takes a rollout without calls for a lost one."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        return attrs.evolve(snapshot, incomplete=snapshot.incomplete or not snapshot.entries)


@caught_by("freeze_is_idempotent")
class FreezeCountingStore(BrokenStore):
    """Counts each freeze."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        rollout = self.at(rollout_id)
        rollout.version += rollout.state == "frozen"
        return await super().freeze(rollout_id)


@caught_by("snapshot_ids_differ")
class NamedAfterRolloutStore(BrokenStore):
    """Gives a snapshot the name of its rollout."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        self.at(rollout_id).snapshot_id = rollout_id
        return attrs.evolve(snapshot, snapshot_id=rollout_id)


@caught_by("late_writes_after_freeze_raise")
class LateIntentStore(BrokenStore):
    """Lets a call begin after freeze."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        if self.at(rollout_id).state == "frozen":
            await checkpoint()
        else:
            await super().begin_call(rollout_id, model_call_id)


@caught_by("late_writes_after_freeze_raise")
class LateEntryStore(BrokenStore):
    """Adds an entry after freeze."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        if rollout.state == "frozen":
            rollout.entries.setdefault(entry.model_call_id, entry)
        await super().put(entry)


@caught_by("late_writes_after_freeze_raise")
class WrongErrorStore(BrokenStore):
    """Calls a frozen rollout retired."""

    async def put(self, entry: TokenEntry) -> None:
        try:
            await super().put(entry)
        except TokenCaptureFrozenError as error:
            raise TokenCaptureRetiredError(entry.rollout_id) from error


@caught_by("drop_needs_the_pair")
class VersionBlindStore(BrokenStore):
    """Drops whatever version it is given."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        version = self.at(rollout_id).version
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)


@caught_by("drop_needs_the_pair")
class SnapshotBlindStore(BrokenStore):
    """Drops whatever snapshot id it is given."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        snapshot_id = self.at(rollout_id).snapshot_id
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)


@caught_by("drop_of_open_is_false")
class OpenDroppingStore(BrokenStore):
    """Drops an open rollout if the version is right."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        rollout = self.at(rollout_id)
        if rollout.state == "open" and rollout.version == version:
            rollout.fence()
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)


@caught_by("drop_again_is_true")
class ForgetfulDropStore(BrokenStore):
    """Does not know a drop again."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        first = self.at(rollout_id).state != "retired"
        return await super().drop(rollout_id, snapshot_id=snapshot_id, version=version) and first


@caught_by("drop_again_is_true")
class FencelessDropStore(BrokenStore):
    """Forgets a dropped rollout with its fence, and answers later drops from a list of its own."""

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        dropped = await super().drop(rollout_id, snapshot_id=snapshot_id, version=version)
        self.at(rollout_id).state = "frozen"
        return dropped


@caught_by("mark_defeats_drop")
class UncountedMarkStore(BrokenStore):
    """Does not count a mark after freeze."""

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        rollout = self.at(rollout_id)
        before = rollout.version
        await super().mark_incomplete(rollout_id, model_call_id)
        if rollout.state == "frozen":
            rollout.version = before
