"""Stores that remove wrongly."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.records import RolloutRemovalPayload, TokenCaptureSnapshot


@caught_by("retire_leaves_fences")
class FencelessStore(BrokenStore):
    """Retires by deleting."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        return await self.delete(rollout_ids)


@caught_by("retire_leaves_fences")
class KnownOnlyStore(BrokenStore):
    """Leaves no fence for an id that it does not know."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        unknown = [rollout_id for rollout_id in rollout_ids if rollout_id not in self.backend.rollouts]
        payload = await super().retire(rollout_ids)
        await self.delete(unknown)
        return payload


@caught_by("retire_tells_what_was_there")
class OptimisticStore(BrokenStore):
    """Says that all were removed."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        payload = await super().retire(rollout_ids)
        return {"removed": payload["removed"] + payload["absent"], "absent": []}


@caught_by("drop_after_retire_is_true")
class PairlessFenceStore(BrokenStore):
    """Leaves a fence that does not know what it fences."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        payload = await super().retire(rollout_ids)
        for rollout_id in rollout_ids:
            self.at(rollout_id).version = 0
        return payload


@caught_by("delete_tells_what_was_there")
class SortedPayloadStore(BrokenStore):
    """Tells of a batch in another order."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        payload = await super().delete(rollout_ids)
        return {"removed": sorted(payload["removed"]), "absent": sorted(payload["absent"])}


@caught_by("delete_frees_the_id")
class StickyVersionStore(BrokenStore):
    """Goes on counting where the deleted rollout stopped."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        versions = {rollout_id: self.at(rollout_id).version for rollout_id in rollout_ids}
        payload = await super().delete(rollout_ids)
        for rollout_id, version in versions.items():
            self.at(rollout_id).version = version
        return payload


@caught_by("delete_frees_the_id")
class StickyRefusalStore(BrokenStore):
    """Keeps the refusals of a deleted rollout."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        refusals = {rollout_id: self.at(rollout_id).refusals for rollout_id in rollout_ids}
        payload = await super().delete(rollout_ids)
        for rollout_id, known in refusals.items():
            self.at(rollout_id).refusals = known
        return payload


@caught_by("old_pair_does_not_drop_the_new_rollout")
class NamesakeStore(BrokenStore):
    """Names snapshots after rollout and version, so that a later rollout has the same names."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        self.at(rollout_id).snapshot_id = name = f"{rollout_id}@{snapshot.version}"
        return attrs.evolve(snapshot, snapshot_id=name)


@caught_by("delete_after_retire_lifts_the_fence")
class StickyFenceStore(BrokenStore):
    """Leaves the fence of a retired rollout when it is deleted."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        fences = {rollout_id: self.at(rollout_id) for rollout_id in rollout_ids}
        retired = [rollout_id for rollout_id, fence in fences.items() if fence.state == "retired"]
        payload = await super().delete(rollout_ids)
        self.backend.rollouts.update({rollout_id: fences[rollout_id] for rollout_id in retired})
        return payload


@caught_by("empty_batch_is_noop")
class ImpatientStore(BrokenStore):
    """Refuses an empty batch."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        if not rollout_ids:
            raise ValueError("nothing to delete")
        return await super().delete(rollout_ids)


@caught_by("duplicates_count_once")
class EchoingStore(BrokenStore):
    """Tells of an id as often as it stands in the batch."""

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        removed = (await super().delete(rollout_ids))["removed"]
        return {
            "removed": [rollout_id for rollout_id in rollout_ids if rollout_id in removed],
            "absent": [rollout_id for rollout_id in rollout_ids if rollout_id not in removed],
        }


@caught_by("bare_string_raises")
class BareStringStore(BrokenStore):
    """Takes a bare string for a batch of one."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        return await super().retire([rollout_ids] if isinstance(rollout_ids, str) else rollout_ids)


@caught_by("batch_is_checked_before_it_changes")
class EagerBatchStore(BrokenStore):
    """Removes one after the other, until it comes to an invalid id."""

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        for rollout_id in rollout_ids:
            await super().retire([rollout_id])
        return await super().retire(rollout_ids)
