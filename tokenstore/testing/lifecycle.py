"""The life of a rollout in memory: open, frozen, retired, and what each event does in each state.

Pure but for the clock and the snapshot ids: no locks, no tasks. Each event either happens wholly or raises; the only
one that raises and changes something is a conflict, which marks its call.
"""

from __future__ import annotations

import secrets
import time

from tokenstore.codec import content_digest
from tokenstore.errors import ConflictingEntryError, TokenCaptureFrozenError, TokenCaptureRetiredError
from tokenstore.records import RefusalRecord, RolloutState, TokenCaptureSnapshot, TokenEntry


class Rollout:
    """The facts of one rollout, and what each event does to them."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.state: RolloutState = "open"
        self.version = 0
        self.snapshot_id = ""
        self.entries: dict[str, TokenEntry] = {}
        self.refusals: dict[str, RefusalRecord] = {}
        self.intents: dict[str, None] = {}
        self.marks: dict[str, str] = {}
        self.lost_calls: tuple[str, ...] = ()
        self.incomplete = False

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Calls that began and have neither an entry nor a refusal."""
        return tuple(call for call in self.intents if call not in self.entries and call not in self.refusals)

    @property
    def has_records(self) -> bool:
        """Whether there is something to remove: entries, intents or marks."""
        return bool(self.entries or self.intents or self.marks)

    def begin(self, call_id: str) -> None:
        """Record that a call is about to be sent."""
        self._require_open()
        if call_id not in self.entries and call_id not in self.refusals:
            self.intents.setdefault(call_id)

    def put(self, entry: TokenEntry) -> None:
        """Add an entry, or find that it is there."""
        call_id = entry.model_call_id
        known = self.entries.get(call_id)
        if known is not None and content_digest(known) == content_digest(entry):
            return
        self._require_open()
        if known is not None:
            self._conflict(call_id, "it is recorded with other content")
        if call_id in self.refusals:
            self._conflict(call_id, "it is recorded as refused")
        self.entries[call_id] = entry
        self.version += 1

    def refuse(self, call_id: str, code: str | None) -> None:
        """Record that the engine refused a call, or find that it did."""
        known = self.refusals.get(call_id)
        if known is not None and known.code == code:
            return
        self._require_open()
        if known is not None:
            raise ConflictingEntryError(self.rollout_id, call_id, "it is recorded as refused with another code")
        if call_id in self.entries:
            self._conflict(call_id, "it is recorded with an entry, so it was not refused")
        self.refusals[call_id] = RefusalRecord(model_call_id=call_id, code=code, created_at=time.time())
        self.version += 1

    def mark(self, call_id: str, reason: str) -> None:
        """Record that a call was lost; each call counts once, whatever marks it, and a conflict keeps its name."""
        self.require_records()
        self.version += call_id not in self.marks
        if call_id not in self.marks or reason == "conflict":
            self.marks[call_id] = f"{reason}:{call_id}"
        self.incomplete = True

    def freeze(self) -> None:
        """End writing and judge what was lost."""
        self.require_records()
        if self.state == "frozen":
            return
        self.lost_calls = self.open_calls
        self.incomplete = bool(self.marks or self.lost_calls)
        self.state = "frozen"
        self.snapshot_id = secrets.token_hex(16)
        self.version += 1

    def drop(self, snapshot_id: str, version: int) -> bool:
        """Remove the records if the rollout is what the consumer took over."""
        frozen_as = (self.snapshot_id, self.version) if self.snapshot_id else None  # never frozen, it has no pair
        if self.state == "open" or frozen_as != (snapshot_id, version):
            return False
        self.fence()
        return True

    def fence(self) -> None:
        """Remove the records, whatever the state, and let nothing be written any more."""
        self.state = "retired"
        self.entries, self.refusals, self.intents, self.marks = {}, {}, {}, {}

    def snapshot(self) -> TokenCaptureSnapshot:
        """Show the rollout as it is."""
        self.require_records()
        frozen = self.state == "frozen"
        lost = tuple(f"lost_call:{call}" for call in self.lost_calls)
        return TokenCaptureSnapshot(
            rollout_id=self.rollout_id,
            entries=tuple(self.entries.values()),
            incomplete=self.incomplete,
            snapshot_id=self.snapshot_id,
            version=self.version,
            refusals=tuple(self.refusals.values()),
            incomplete_reasons=(*self.marks.values(), *lost),
            open_calls=() if frozen else self.open_calls,
            frozen=frozen,
        )

    def require_records(self) -> None:
        """Raise if only the fence is left."""
        if self.state == "retired":
            raise TokenCaptureRetiredError(self.rollout_id)

    def _require_open(self) -> None:
        self.require_records()
        if self.state == "frozen":
            raise TokenCaptureFrozenError(self.rollout_id)

    def _conflict(self, call_id: str, problem: str) -> None:
        self.mark(call_id, "conflict")
        raise ConflictingEntryError(self.rollout_id, call_id, problem)
