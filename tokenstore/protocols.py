"""What a token store is to those who write into it and those who consume it.

Both protocols are runtime checkable, and `tokenstore.testing.check_token_store` tells whether an implementation keeps
them. Any operation may be retried after an unknown outcome: it then does nothing more, or raises a frozen or retired
error because somebody else moved the rollout on. `delete` is the exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tokenstore.records import RolloutRemovalPayload, TokenCaptureSnapshot, TokenEntry


@runtime_checkable
class TokenSink(Protocol):
    """Where a rollout server records its model calls."""

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record durably that a call is about to be sent, so that its loss can be seen.

        Again, or for a call that has an entry or a refusal already: a no-op.

        Raises:
            TokenCaptureFrozenError: The rollout is frozen or retired; do not send the call.
        """
        ...

    async def put(self, entry: TokenEntry) -> None:
        """Record durably what a call gave. The same call with the same content again is a no-op, also after freeze.

        Raises:
            ConflictingEntryError: The call is there with other content; the rollout is now marked incomplete.
            TokenCaptureFrozenError: The entry came after freeze, drop or retire and was not stored.
        """
        ...

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        """Record durably that the engine refused a call before generating anything, which settles its intent.

        Raises:
            ConflictingEntryError: The call has an entry (now marked incomplete), or was refused with another code.
            TokenCaptureFrozenError: The rollout is frozen or retired.
        """
        ...

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Record durably that a call was lost, also of a frozen rollout. An invalid call id is recorded as blank.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
        """
        ...

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. May be called again."""
        ...


@runtime_checkable
class TokenSource(Protocol):
    """Where a trainer takes finished rollouts from."""

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """End writing to a rollout and return it; again returns the same. An unknown id freezes empty and complete.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
        """
        ...

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since, leaving a fence against late writes.

        Returns:
            True if the pair is the rollout's own (also again), false if it is not; then nothing was changed.
        """
        ...

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences. Again is a no-op.

        Raises:
            TypeError: A bare string was given.
            RemovalError: Some ids failed; the others are done.
            DurabilityError: The names could not be made durable; retry all of them.
        """
        ...

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences, so that the ids start empty. Call it when nothing writes to them any more.

        Raises:
            TypeError: A bare string was given.
            RemovalError: Some ids failed; the others are done.
            DurabilityError: The names could not be made durable; retry all of them.
        """
        ...

    async def close(self) -> None:
        """Finish what was accepted and let go of everything. May be called again."""
        ...
