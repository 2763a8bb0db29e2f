"""Stores that keep intents, refusals and marks wrongly."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

import attrs
from anyio.lowlevel import checkpoint

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.ids import validate_model_call_id, validate_rollout_id
from tokenstore.records import TokenCaptureSnapshot


@caught_by("lost_call_masks")
class IntentBlindStore(BrokenStore):
    """Does not record that a call began."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        validate_rollout_id(rollout_id)
        validate_model_call_id(model_call_id)
        await checkpoint()


@caught_by("settled_calls_do_not_mask")
class SuspiciousStore(BrokenStore):
    """Takes a refused call for a lost one."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        snapshot = await super().freeze(rollout_id)
        lost = tuple(f"lost_call:{refusal.model_call_id}" for refusal in snapshot.refusals)
        reasons = snapshot.incomplete_reasons + lost
        return attrs.evolve(snapshot, incomplete=bool(reasons), incomplete_reasons=reasons)


@caught_by("begin_again_is_noop")
class IntentCountingStore(BrokenStore):
    """Counts the beginning of a call that is known."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        rollout = self.at(rollout_id)
        rollout.version += model_call_id in rollout.entries
        await super().begin_call(rollout_id, model_call_id)


@caught_by("refusals_are_kept")
class CodelessStore(BrokenStore):
    """Keeps no code that is empty."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        await super().refuse_call(rollout_id, model_call_id=model_call_id, code=code or None)


@caught_by("repeated_refusal_is_noop")
class RefusalCountingStore(BrokenStore):
    """Counts a repeated refusal again."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        rollout = self.at(rollout_id)
        rollout.version += model_call_id in rollout.refusals
        await super().refuse_call(rollout_id, model_call_id=model_call_id, code=code)


@caught_by("other_refusal_code_raises")
class LastRefusalStore(BrokenStore):
    """Lets the last code win."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        known = self.at(rollout_id).refusals
        if model_call_id in known:
            known[model_call_id] = attrs.evolve(known[model_call_id], code=code)
        await super().refuse_call(rollout_id, model_call_id=model_call_id, code=code)


@caught_by("marks_mask")
class MarkCountingStore(BrokenStore):
    """Counts a repeated mark again."""

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        rollout = self.at(rollout_id)
        rollout.version += model_call_id in rollout.marks
        await super().mark_incomplete(rollout_id, model_call_id)


@caught_by("mark_without_call_masks")
class PickyMarkStore(BrokenStore):
    """Refuses a mark because of its call id."""

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        validate_model_call_id(model_call_id)
        await super().mark_incomplete(rollout_id, model_call_id)


@caught_by("mark_after_freeze_masks")
class SealedStore(BrokenStore):
    """Takes no notice of a mark after freeze."""

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        if self.at(rollout_id).state == "frozen":
            await checkpoint()
        else:
            await super().mark_incomplete(rollout_id, model_call_id)
