"""Stores that keep entries wrongly."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

import attrs
from anyio.lowlevel import checkpoint

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.errors import ConflictingEntryError, TokenCaptureFrozenError
from tokenstore.records import TokenCaptureSnapshot, TokenEntry


@caught_by("put_is_visible")
class ForgetfulStore(BrokenStore):
    """Acknowledges an entry without keeping it, once there are three."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(entry)
        entries = self.at(entry.rollout_id).entries
        if len(entries) > 3:
            del entries[entry.model_call_id]


@caught_by("put_is_visible")
class SortingStore(BrokenStore):
    """Delivers entries in the order of their ids."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        return attrs.evolve(snapshot, entries=tuple(sorted(snapshot.entries, key=lambda entry: entry.model_call_id)))


@caught_by("rollouts_are_separate")
class GlobalCallsStore(BrokenStore):
    """Takes a call id for the same call in whatever rollout."""

    async def put(self, entry: TokenEntry) -> None:
        known = [rollout for rollout in self.backend.rollouts.values() if entry.model_call_id in rollout.entries]
        if not known:
            await super().put(entry)


@caught_by("twins_are_two_calls")
class DeduplicatingStore(BrokenStore):
    """Leaves out a call whose tokens another call had."""

    async def put(self, entry: TokenEntry) -> None:
        for known in self.at(entry.rollout_id).entries.values():
            if known.prompt_token_ids == entry.prompt_token_ids and known.model_call_id != entry.model_call_id:
                return
        await super().put(entry)


@caught_by("repeated_put_is_noop")
class DoubleCountingStore(BrokenStore):
    """Counts a repeated put again."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        rollout.version += entry.model_call_id in rollout.entries
        await super().put(entry)


@caught_by("equal_content_is_noop")
class TimestampComparingStore(BrokenStore):
    """Takes another created_at for other content."""

    async def put(self, entry: TokenEntry) -> None:
        known = self.at(entry.rollout_id).entries.get(entry.model_call_id)
        if known is not None and known.created_at != entry.created_at:
            raise ConflictingEntryError(entry.rollout_id, entry.model_call_id, "other time")
        await super().put(entry)


@caught_by("equal_content_is_noop")
class KeyOrderComparingStore(BrokenStore):
    """Takes another order of keys for other content."""

    async def put(self, entry: TokenEntry) -> None:
        known = self.at(entry.rollout_id).entries.get(entry.model_call_id)
        if known is not None and list(known.extra) != list(entry.extra):
            raise ConflictingEntryError(entry.rollout_id, entry.model_call_id, "other order")
        await super().put(entry)


@caught_by("repeated_put_after_freeze_is_noop")
class FrozenRetryRefusingStore(BrokenStore):
    """Refuses every put after freeze, also of an entry that it has."""

    async def put(self, entry: TokenEntry) -> None:
        if self.at(entry.rollout_id).state == "frozen":
            raise TokenCaptureFrozenError(entry.rollout_id)
        await super().put(entry)


@caught_by("conflicting_put_masks")
class QuietConflictStore(BrokenStore):
    """Raises on a conflict without marking the rollout."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        before = rollout.version
        try:
            await super().put(entry)
        except ConflictingEntryError:
            rollout.version, rollout.marks, rollout.incomplete = before, {}, False
            raise


@caught_by("conflicting_put_masks")
class OverwritingStore(BrokenStore):
    """Lets the last content win."""

    async def put(self, entry: TokenEntry) -> None:
        self.at(entry.rollout_id).entries.pop(entry.model_call_id, None)
        await super().put(entry)


@caught_by("conflicting_put_masks")
class ConflictCountingStore(BrokenStore):
    """Counts each conflict of one call."""

    async def put(self, entry: TokenEntry) -> None:
        try:
            await super().put(entry)
        except ConflictingEntryError:
            self.at(entry.rollout_id).version += 1
            raise


@caught_by("every_field_is_content")
class TokensOnlyStore(BrokenStore):
    """Takes calls with equal numbers for equal, whatever the rest and the sign of a zero."""

    async def put(self, entry: TokenEntry) -> None:
        known = self.at(entry.rollout_id).entries.get(entry.model_call_id)
        numbers = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
        if known is None or any(getattr(known, name) != getattr(entry, name) for name in numbers):
            await super().put(entry)


@caught_by("put_of_refused_call_masks")
class ForgivingStore(BrokenStore):
    """Lets an entry replace a refusal."""

    async def put(self, entry: TokenEntry) -> None:
        self.at(entry.rollout_id).refusals.pop(entry.model_call_id, None)
        await super().put(entry)


@caught_by("refusal_of_recorded_call_masks")
class SecondThoughtsStore(BrokenStore):
    """Takes no notice of a refusal of a call that has an entry."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        if model_call_id in self.at(rollout_id).entries:
            await checkpoint()
        else:
            await super().refuse_call(rollout_id, model_call_id=model_call_id, code=code)


@caught_by("conflict_and_mark_count_once")
class TwoBooksStore(BrokenStore):
    """Keeps marks and conflicts apart, so that a call counts in both."""

    async def put(self, entry: TokenEntry) -> None:
        rollout = self.at(entry.rollout_id)
        marked = entry.model_call_id in rollout.marks
        try:
            await super().put(entry)
        except ConflictingEntryError:
            rollout.version += marked
            raise
