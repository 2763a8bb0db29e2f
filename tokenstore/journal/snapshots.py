"""Snapshots: what is delivered of a rollout, and the seal that fixes it.

A full reading has verified every line; here it becomes the facts that the state file will hold, the reasons why a
rollout is incomplete, and the snapshot. The files are looked at, under the rollout's lock, and never changed.
"""

from __future__ import annotations

import secrets
import weakref

import attrs

from tokenstore.journal.files import RolloutFiles
from tokenstore.journal.index import Index
from tokenstore.journal.lifecycle import State, incomplete_reasons
from tokenstore.journal.reading import Verified, verify
from tokenstore.records import TokenCaptureSnapshot


class Snapshots:
    """Makes the snapshots of one rollout."""

    def __init__(self, files: RolloutFiles) -> None:
        self._files = files
        self._delivered: tuple[State, tuple[int, int], weakref.ref[TokenCaptureSnapshot]] | None = None

    def verify(self, index: Index) -> Verified:
        """Read and verify every line."""
        return verify(self._files.lines, self._files.tokens.size, index.calls)

    def sealed(self, index: Index, verified: Verified) -> State:
        """The state of the rollout frozen as it was found."""
        state = self._with_findings(index, verified)
        reasons = self._reasons(state, verified, self._files.lost_calls())
        return attrs.evolve(
            state,
            frozen=True,
            incomplete=bool(reasons),
            snapshot_id=secrets.token_hex(16),
            version=state.version + 1,
            entry_digests=verified.digests,
            verdict=reasons,
        )

    def deliver(self, index: Index, verified: Verified) -> TokenCaptureSnapshot:
        """The snapshot of a frozen rollout, remembered as long as somebody holds it."""
        snapshot = self._snapshot(index.current(), verified)
        self._delivered = index.state, self._files.tokens.identity, weakref.ref(snapshot)
        return snapshot

    def delivered_before(self, index: Index) -> TokenCaptureSnapshot | None:
        """The snapshot that was verified and delivered, if somebody still holds it and nothing has changed since."""
        if self._delivered is None:
            return None
        state, identity, snapshot = self._delivered
        same = state is index.state and identity == self._files.tokens.identity
        return snapshot() if same else None

    def look(self, index: Index, verified: Verified) -> TokenCaptureSnapshot:
        """The snapshot of a rollout as it is, open or frozen."""
        return self._snapshot(self._with_findings(index, verified), verified)

    @staticmethod
    def _with_findings(index: Index, verified: Verified) -> State:
        """The facts with what this reading found; a sealed rollout is masked by it, and nothing is written."""
        if index.state.status == "open":
            index.add_damage(verified.reasons)
        return index.current()

    def _reasons(self, state: State, verified: Verified, lost_calls: list[str]) -> tuple[str, ...]:
        return incomplete_reasons(state, lost_calls, list(verified.reasons), marker=self._files.marker.is_open)

    def _snapshot(self, state: State, verified: Verified) -> TokenCaptureSnapshot:
        lost = self._files.lost_calls() if state.verdict is None else []
        reasons = self._reasons(state, verified, lost if state.frozen else [])
        return TokenCaptureSnapshot(
            rollout_id=self._files.rollout_id,
            entries=verified.entries,
            incomplete=bool(reasons),
            snapshot_id=state.snapshot_id,
            version=state.version,
            refusals=state.refusals,
            incomplete_reasons=reasons,
            open_calls=() if state.frozen else tuple(lost),
            frozen=state.frozen,
        )
