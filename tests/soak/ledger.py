"""What was asked and what was acknowledged, by rollout, and what follows for what must, may and must not be there.

Times are the machine's monotonic clock, the same in all processes. An operation without an answer counts as over when
its process was dead. Two operations whose times overlap may have happened in either order, so a fact is required only
if nothing that ended after the fact was asked for could have taken it away.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import attrs

REMOVALS = frozenset({"drop", "retire", "delete"})
MAKERS = frozenset({"put", "begin", "refuse", "mark", "freeze", "drop", "retire"})
WRITERS = MAKERS | {"delete"}
_ON_DISK = ("damaged:", "lost_base:", "unacceptable:", "state_lost")


@attrs.define(slots=True, eq=False)
class Operation:
    """One operation on one rollout."""

    kind: str
    rollout: str
    call: str
    variant: int
    asked: float
    ended: float = math.inf
    outcome: str = "unknown"
    """`acked`, `no` (a drop that did not match), `frozen`, `retired`, `conflict`, `failed`, `unknown`, or an error."""
    facts: Any = None
    """What a freeze gave: snapshot id, version, and the variant of each call."""


@attrs.frozen
class Facts:
    """What was found of one rollout after recovery."""

    state: str
    version: int = 0
    snapshot_id: str = ""
    entries: dict[str, int | None] = attrs.field(factory=dict)
    """The variant of each call; None if it is none that was ever asked for."""
    refusals: dict[str, str | None] = attrs.field(factory=dict)
    reasons: tuple[str, ...] = ()
    open_calls: tuple[str, ...] = ()


@attrs.define
class Verdict:
    """What is wrong with one rollout."""

    lost: list[str] = attrs.field(factory=list)
    """Acknowledged, and not there."""
    wrong: list[str] = attrs.field(factory=list)
    """There, or said, and cannot be."""


class Account:
    """All operations on one rollout, and whether the power was ever cut meanwhile."""

    def __init__(self, rollout: str) -> None:
        self.rollout = rollout
        self.was_cut = False
        self._kinds: defaultdict[str, list[Operation]] = defaultdict(list)
        self._fresh: list[Operation] = []

    def add(self, operation: Operation) -> None:
        """Take an operation that was asked for."""
        self._kinds[operation.kind].append(operation)
        self._fresh.append(operation)

    def judge(self, found: Facts) -> Verdict:
        """Compare what was found with what must, may and must not be; when no operation is running."""
        verdict = Verdict()
        for operation in self._of(WRITERS):
            problem = self._missing(operation, found)
            if problem:
                stands = f"it is {found.state}, version {found.version}, incomplete by {list(found.reasons)}"
                stands += ", the power was cut" if self.was_cut else ", the power was never cut"
                verdict.lost.append(
                    f"{self.rollout}: {operation.kind} {operation.call} was acknowledged, {problem}; {stands}"
                )
        verdict.wrong.extend(f"{self.rollout}: {problem}" for problem in self._impossible(found))
        self._fresh.clear()
        return verdict

    def _of(self, kinds: Iterable[str]) -> Iterator[Operation]:
        return chain.from_iterable(self._kinds[kind] for kind in kinds)

    # ------------------------------------------------------------------------------------------ what must be there

    def _missing(self, operation: Operation, found: Facts) -> str:
        """What is missing of an acknowledged operation, empty if nothing is or something may have taken it away."""
        if operation.outcome not in ("acked", "conflict"):
            return ""
        if operation.kind in ("retire", "drop"):
            kept = found.state == "retired" or self._any_after(operation, {"delete"})
            return "" if kept else f"and is {found.state}"
        if operation.kind == "delete":
            kept = found.state == "absent" or self._any_after(operation, MAKERS)
            return "" if kept else f"and is {found.state}"
        if self._any_after(operation, REMOVALS):
            return ""
        if found.state not in ("open", "frozen"):
            return f"and the rollout is {found.state}"
        return _CHECKS[operation.kind](operation, found) if operation.kind in _CHECKS else ""

    def _any_after(self, operation: Operation, kinds: Iterable[str]) -> bool:
        """Whether any other operation of some kinds may have happened after this one."""
        return any(
            other is not operation and other.ended > operation.asked and other.outcome != "no"
            for other in self._of(kinds)
        )

    # ------------------------------------------------------------------------------------------ what must not be there

    def _impossible(self, found: Facts) -> Iterator[str]:
        for call, variant in found.entries.items():
            if not self._possible({"put"}, call, variant):
                yield f"entry {call} is variant {variant}, which nobody can have put"
        for call in found.refusals:
            if not self._possible({"refuse"}, call):
                yield f"call {call} is refused, and nobody can have refused it"
        cause = {"frozen": {"freeze"}, "retired": REMOVALS}.get(found.state)
        if cause and not self._possible(cause):
            yield f"it is {found.state}, and nobody can have asked for that"
        for reason in found.reasons:
            if not self._may_be_incomplete(reason):
                yield f"it is incomplete by {reason}, which cannot be"
        for operation in self._fresh:
            if not self._plausible(operation):
                yield f"{operation.kind} {operation.call} was answered {operation.outcome}"

    def _possible(self, kinds: Iterable[str], call: str | None = None, variant: int | None = -1) -> bool:
        """Whether an operation was asked for that no acknowledged delete has undone for sure; -1 is any variant."""
        return any(
            call in (None, operation.call)
            and variant in (-1, operation.variant)
            and not self._surely_deleted(operation)
            for operation in self._of(kinds)
        )

    def _surely_deleted(self, operation: Operation) -> bool:
        return any(each.outcome == "acked" and each.asked > operation.ended for each in self._kinds["delete"])

    def _may_be_incomplete(self, reason: str) -> bool:
        kind, _, call = reason.partition(":")
        if reason.startswith(_ON_DISK):
            return self.was_cut and reason != "state_lost"
        if kind == "lost_call":
            return self._possible({"begin"}, call)
        if kind == "flagged":
            return self._possible({"mark", "put", "refuse"})
        # A conflict writes its mark first: a crash between leaves the mark.
        return self._possible({"mark", "put", "refuse"}, call)

    def _plausible(self, operation: Operation) -> bool:
        """Whether an answer could be given: by what others had asked for before it came."""
        wanted = {"frozen": {"freeze"}, "retired": REMOVALS, "conflict": {"put", "refuse"}}.get(operation.outcome)
        if wanted is None:
            return operation.outcome in ("acked", "no", "unknown", "failed")
        call = operation.call if operation.outcome == "conflict" else None
        return any(
            other is not operation and other.asked < operation.ended and call in (None, other.call)
            for other in self._of(wanted)
        )


def _missing_mark(operation: Operation, found: Facts) -> str:
    named = {f"marked:{operation.call}", f"conflict:{operation.call}"} & set(found.reasons)
    return "" if named else "and nothing says so"


def _missing_put(operation: Operation, found: Facts) -> str:
    if operation.outcome == "conflict":
        return _missing_mark(operation, found)
    there = found.entries.get(operation.call)
    return "" if there == operation.variant else f"variant {operation.variant}, and {there} is there"


def _missing_begin(operation: Operation, found: Facts) -> str:
    known = operation.call in found.entries or operation.call in found.refusals
    known = known or operation.call in found.open_calls or f"lost_call:{operation.call}" in found.reasons
    return "" if known else "and the intent is gone"


def _missing_refusal(operation: Operation, found: Facts) -> str:
    if operation.outcome == "conflict":
        return _missing_mark(operation, found)
    return "" if operation.call in found.refusals else "and the refusal is gone"


def _missing_freeze(operation: Operation, found: Facts) -> str:
    snapshot_id, version, entries = operation.facts
    if (found.state, found.snapshot_id) != ("frozen", snapshot_id) or found.version < version:
        return f"and is {found.state}, {found.snapshot_id} version {found.version}"
    return "" if found.entries == entries else f"with {entries}, and there is {found.entries}"


_CHECKS: dict[str, Callable[[Operation, Facts], str]] = {
    "put": _missing_put,
    "begin": _missing_begin,
    "refuse": _missing_refusal,
    "mark": _missing_mark,
    "freeze": _missing_freeze,
}
