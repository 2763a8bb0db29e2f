"""Stores that change what they are given, or take what they should refuse."""

# ruff: noqa: D102 - the protocols document the methods

from __future__ import annotations

import json

import attrs
from anyio.lowlevel import checkpoint

from tests.testing.broken.base import BrokenStore, caught_by
from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenCaptureSnapshot, TokenEntry


@caught_by("agent_rollout_comes_back")
class TruncatingStore(BrokenStore):
    """Keeps the last 1,024 ids of a prompt."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(attrs.evolve(entry, prompt_token_ids=entry.prompt_token_ids[-1024:]))


@caught_by("every_shape_comes_back")
class NonEmptyStore(BrokenStore):
    """Refuses an entry that generated nothing."""

    async def put(self, entry: TokenEntry) -> None:
        if not entry.generation_token_ids:
            raise InvalidEntryError("generation_token_ids", "is empty")
        await super().put(entry)


@caught_by("every_shape_comes_back")
class SignedIdsStore(BrokenStore):
    """Keeps ids as 32-bit numbers with a sign."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(attrs.evolve(entry, prompt_token_ids=[i & 0x7FFFFFFF for i in entry.prompt_token_ids]))


@caught_by("unknown_fields_come_back")
class SchemaOnlyStore(BrokenStore):
    """Leaves out fields that it does not know."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(attrs.evolve(entry, extra={}))


@caught_by("unknown_fields_come_back")
class NullDroppingStore(BrokenStore):
    """Leaves out fields that are null."""

    async def put(self, entry: TokenEntry) -> None:
        known = {key: value for key, value in entry.extra.items() if value is not None}
        await super().put(attrs.evolve(entry, extra=known))


@caught_by("deep_items_come_back")
class ShallowStore(BrokenStore):
    """Gives up on deep nesting."""

    async def put(self, entry: TokenEntry) -> None:
        if str(entry.output_items).count("[") > 100:
            raise RecursionError("too deep")
        await super().put(entry)


@caught_by("log_probs_come_back")
class RoundingStore(BrokenStore):
    """Keeps fifteen digits of a log probability."""

    async def put(self, entry: TokenEntry) -> None:
        rounded = [float(f"{log_prob:.15g}") for log_prob in entry.generation_log_probs]
        await super().put(attrs.evolve(entry, generation_log_probs=rounded))


@caught_by("unusual_ids_come_back")
class AsciiCallsStore(BrokenStore):
    """Spells call ids in ASCII."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(attrs.evolve(entry, model_call_id=json.dumps(entry.model_call_id)[1:-1]))


@caught_by("later_changes_do_not_show")
class AliasingStore(BrokenStore):
    """Keeps the caller's own objects."""

    async def put(self, entry: TokenEntry) -> None:
        await super().put(entry)
        self.at(entry.rollout_id).entries[entry.model_call_id] = entry


@caught_by("bad_entries_are_refused")
class TrustingStore(BrokenStore):
    """Looks at no element."""

    async def put(self, entry: TokenEntry) -> None:
        await checkpoint()
        self.at(entry.rollout_id).put(entry)


@caught_by("bad_entries_are_refused")
class TalkativeStore(BrokenStore):
    """Shows in its errors what it was given."""

    async def put(self, entry: TokenEntry) -> None:
        try:
            await super().put(entry)
        except InvalidEntryError as error:
            shown = f"{entry.prompt_token_ids} {entry.generation_log_probs} {entry.output_items} {entry.extra}"
            raise InvalidEntryError(error.field, f"{error.problem}: {shown}") from error


@caught_by("bad_call_ids_are_refused")
class AnyCallStore(BrokenStore):
    """Lets a call begin under any id."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        await checkpoint()
        self.at(rollout_id).begin(model_call_id)


@caught_by("bad_refusal_codes_are_refused")
class AnyCodeStore(BrokenStore):
    """Takes a code of any type."""

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        text = None if code is None else str(code)
        await super().refuse_call(rollout_id, model_call_id=model_call_id, code=text)


@caught_by("bad_rollout_ids_are_refused")
class AnyRolloutStore(BrokenStore):
    """Freezes a rollout of any name."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        await checkpoint()
        rollout = self.at(rollout_id)
        rollout.freeze()
        return rollout.snapshot()
