"""The life of a rollout, as values and one table: no files, no clock, no event loop.

1. A rollout is open, then perhaps frozen, then perhaps retired; it never goes back while its state file is there.
2. `RULINGS` says what each event does in each state. Whoever handles an event classifies it and obeys.
3. The version counts new calls, refusals, marks, damaged ranges and the freeze; nothing else. It is the stored version
   plus the calls that the stored index does not know, so every process and every restart computes the same number.
4. A call is marked at most once, whatever the reason: one line of the marker, one count.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import attrs

from tokenstore.journal.damage import news
from tokenstore.records import RefusalRecord, RolloutState


class Event(Enum):
    """What is asked of a rollout, told apart by what it already knows of the call."""

    BEGIN_NEW = auto()
    BEGIN_KNOWN = auto()
    PUT_NEW = auto()
    PUT_SAME = auto()
    PUT_OTHER = auto()
    PUT_REFUSED = auto()
    REFUSE_NEW = auto()
    REFUSE_SAME = auto()
    REFUSE_OTHER = auto()
    REFUSE_ANSWERED = auto()
    MARK = auto()
    MARK_IF_OPEN = auto()
    FREEZE = auto()
    DROP_MATCH = auto()
    DROP_OTHER = auto()
    READ = auto()


class Ruling(Enum):
    """What to do about an event."""

    RECORD = auto()
    """Make it durable."""
    NOTHING = auto()
    """It holds already, or does not matter: succeed."""
    CONFLICT_MARK = auto()
    """Mark the call, then raise a conflict."""
    CONFLICT = auto()
    """Raise a conflict; nothing is lost by it."""
    FROZEN = auto()
    """Raise that the rollout is frozen."""
    RETIRED = auto()
    """Raise that the rollout is retired."""
    NO = auto()
    """Answer false."""


_R = Ruling
RULINGS: dict[Event, tuple[Ruling, Ruling, Ruling]] = {
    #                       open              frozen      retired
    Event.BEGIN_NEW: (_R.RECORD, _R.FROZEN, _R.RETIRED),
    Event.BEGIN_KNOWN: (_R.NOTHING, _R.FROZEN, _R.RETIRED),
    Event.PUT_NEW: (_R.RECORD, _R.FROZEN, _R.RETIRED),
    Event.PUT_SAME: (_R.NOTHING, _R.NOTHING, _R.RETIRED),
    Event.PUT_OTHER: (_R.CONFLICT_MARK, _R.FROZEN, _R.RETIRED),
    Event.PUT_REFUSED: (_R.CONFLICT_MARK, _R.FROZEN, _R.RETIRED),
    Event.REFUSE_NEW: (_R.RECORD, _R.FROZEN, _R.RETIRED),
    Event.REFUSE_SAME: (_R.NOTHING, _R.NOTHING, _R.RETIRED),
    Event.REFUSE_OTHER: (_R.CONFLICT, _R.FROZEN, _R.RETIRED),
    Event.REFUSE_ANSWERED: (_R.CONFLICT_MARK, _R.FROZEN, _R.RETIRED),
    Event.MARK: (_R.RECORD, _R.RECORD, _R.RETIRED),
    Event.MARK_IF_OPEN: (_R.RECORD, _R.NOTHING, _R.NOTHING),
    Event.FREEZE: (_R.RECORD, _R.NOTHING, _R.RETIRED),
    Event.DROP_MATCH: (_R.NO, _R.RECORD, _R.NOTHING),
    Event.DROP_OTHER: (_R.NO, _R.NO, _R.NO),
    Event.READ: (_R.NOTHING, _R.NOTHING, _R.RETIRED),
}
_COLUMNS: dict[RolloutState, int] = {"open": 0, "frozen": 1, "retired": 2}


def rule(event: Event, state: RolloutState) -> Ruling:
    """What an event does in a state."""
    return RULINGS[event][_COLUMNS[state]]


@attrs.frozen(kw_only=True)
class State:
    """The facts of a rollout as its state file holds them; without a file, the defaults."""

    frozen: bool = False
    retired: bool = False
    incomplete: bool = False
    snapshot_id: str = ""
    version: int = 0
    entry_digests: dict[str, str] = attrs.field(factory=dict)
    """sha256 of each indexed line, without its newline, by call id."""
    indexed_size: int | None = 0
    """Bytes of the lines that the digests cover; None in a file of an older reference, which covers all."""
    refusals: tuple[RefusalRecord, ...] = ()
    marked: tuple[str, ...] | None = ()
    """Calls whose marks are counted; None if the file has no such list."""
    conflicts: tuple[str, ...] = ()
    """Those of `marked` that were recorded twice with different facts."""
    damage: tuple[str, ...] = ()
    """Reasons found on the disk, counted."""
    verdict: tuple[str, ...] | None = None
    """The reasons sealed at freeze; None if the freezer left none."""
    unknown: dict[str, Any] = attrs.field(factory=dict)
    """Keys of other writers, kept."""

    @property
    def status(self) -> RolloutState:
        """Where the rollout is in its life."""
        if self.retired:
            return "retired"
        return "frozen" if self.frozen else "open"

    def refusal_of(self, call_id: str) -> RefusalRecord | None:
        """The refusal of a call."""
        return next((record for record in self.refusals if record.model_call_id == call_id), None)

    def mark_reasons(self) -> list[str]:
        """Why marks make it incomplete, a reason a call."""
        conflicts = set(self.conflicts)
        return [f"{'conflict' if call_id in conflicts else 'marked'}:{call_id}" for call_id in self.marked or ()]

    def without_index(self) -> State:
        """The same facts, all lines to be read again: the version counts no call that it does not cover."""
        return attrs.evolve(self, version=self.version - len(self.entry_digests), indexed_size=0, entry_digests={})

    def bare(self) -> State:
        """A fence that holds no more than `drop` asks for."""
        return attrs.evolve(self, marked=(), conflicts=(), damage=(), verdict=None)

    def fence(self) -> State:
        """The state that stays when the records go."""
        return attrs.evolve(self, retired=True, indexed_size=0, entry_digests={}, refusals=())


def with_marks(state: State, call_ids: list[str], *, conflict: bool = False) -> State:
    """Count marks, each call once, the first time; a conflict keeps its name."""
    marked = dict.fromkeys(state.marked or ())
    fresh = [call_id for call_id in dict.fromkeys(call_ids) if call_id not in marked]
    conflicts = dict.fromkeys([*state.conflicts, *(call_ids if conflict else ())])
    return attrs.evolve(
        state,
        incomplete=True,
        version=state.version + len(fresh),
        marked=(*marked, *fresh),
        conflicts=tuple(conflicts),
    )


def with_damage(state: State, reasons: list[str]) -> State:
    """Count what was found on the disk, each damaged range once."""
    fresh = news(state.damage, reasons)
    counted = sum(reason.startswith("damaged:") for reason in fresh)
    return attrs.evolve(state, incomplete=True, version=state.version + counted, damage=(*state.damage, *fresh))


def incomplete_reasons(state: State, lost_calls: list[str], found: list[str], *, marker: bool) -> tuple[str, ...]:
    """Why a rollout is incomplete, nothing twice; `flagged` if it is and nothing names a call.

    Args:
        state: The facts, all marks counted.
        lost_calls: Calls with an intent and nothing else; none while the rollout is open.
        found: What reading the lines has found, beyond what the state says.
        marker: Whether the marker exists.
    """
    reasons = [
        *(state.verdict or ()),
        *state.mark_reasons(),
        *(f"lost_call:{call_id}" for call_id in lost_calls),
        *state.damage,
        *news([*(state.verdict or ()), *state.damage], found),
    ]
    if not reasons and (state.incomplete or marker):
        reasons = ["flagged"]
    return tuple(dict.fromkeys(reasons))
