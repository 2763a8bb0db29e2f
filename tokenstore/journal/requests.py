"""What an actor hands to its journal: runs of puts and begin_calls, answered one by one."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tokenstore.codec import Draft, KnownPrompt, prepare
from tokenstore.errors import TokenStoreError
from tokenstore.records import TokenEntry


@attrs.define(eq=False)
class Put:
    """A call's entry to be stored."""

    entry: TokenEntry | Draft
    """The entry, or what another process has made of it."""
    draft: Draft | None = None
    """The checked and encoded entry, made in the worker before the lock is taken; it survives a busy lock."""
    error: TokenStoreError | None = None
    """Why this entry alone was refused; None when it is durable."""

    def prepare(self, max_entry_bytes: int, known: Sequence[KnownPrompt]) -> None:
        """Check and encode the entry, or note why it is refused."""
        if self.draft is None and self.error is None:
            try:
                self.draft = prepare(self.entry, max_entry_bytes=max_entry_bytes, known=known)
            except TokenStoreError as error:
                self.error = error


@attrs.define(eq=False)
class Begin:
    """A call about to be sent."""

    model_call_id: str
    error: TokenStoreError | None = None
    """Why this call alone was refused; None when its intent is durable."""

    def prepare(self, max_entry_bytes: int, known: Sequence[KnownPrompt]) -> None:
        """Nothing to prepare."""


Request = Put | Begin
