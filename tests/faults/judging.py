"""Whether what a reader is given can be what the facts say: the invariants of one snapshot.

A problem is a sentence; no problem is the empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from tests.faults.entries import variant_of
from tests.faults.facts import Belief, Facts, Seal, Stored
from tokenstore.records import TokenCaptureSnapshot

_Check: TypeAlias = Callable[[Facts, TokenCaptureSnapshot], str]


def problem_of(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    """Say what is wrong with a snapshot, if the rollout stands so."""
    if facts.status == "retired":
        return "a retired rollout gave a snapshot"
    if snapshot.frozen != (facts.status == "frozen"):
        return f"it is {'frozen' if snapshot.frozen else 'open'} and should be {facts.status}"
    checks = _COMMON + (_SEALED if facts.seal else _UNSEALED)
    return next((problem for check in checks if (problem := check(facts, snapshot))), "")


def sealed(facts: Facts, snapshot: TokenCaptureSnapshot) -> Facts:
    """The facts after a freeze has given a snapshot that they allow: what it holds is sure, nothing else is possible.

    Intents stay, because a removal tells whether there were records.
    """
    marks = frozenset(call for kind, call in _reasons(snapshot) if kind in ("marked", "conflict"))
    conflicts = frozenset(call for kind, call in _reasons(snapshot) if kind == "conflict")
    stored = stored_in(snapshot)
    return Facts(
        status="frozen",
        entries=Belief(frozenset(stored)),
        begun=facts.begun,
        refusals=Belief(frozenset(_refused_in(snapshot))),
        marks=Belief(marks),
        conflicts=Belief(conflicts),
        seal=Seal(snapshot.snapshot_id, snapshot.version, stored, snapshot.incomplete_reasons, marks),
        touched=True,
        torn=facts.torn,
        foreign=facts.foreign,
    )


def stored_in(snapshot: TokenCaptureSnapshot) -> tuple[Stored, ...]:
    """The calls of a snapshot and which variants of them it holds; -1 for one that nobody ever put."""
    variants = [(entry.model_call_id, variant_of(entry)) for entry in snapshot.entries]
    return tuple((call, -1 if variant is None else variant) for call, variant in variants)


def _refused_in(snapshot: TokenCaptureSnapshot) -> list[tuple[str, str | None]]:
    return [(record.model_call_id, record.code) for record in snapshot.refusals]


def _reasons(snapshot: TokenCaptureSnapshot) -> list[tuple[str, str]]:
    """The reasons, each as its kind and what it names."""
    return [(kind, named) for kind, _, named in (r.partition(":") for r in snapshot.incomplete_reasons)]


def _named(snapshot: TokenCaptureSnapshot, *kinds: str) -> list[str]:
    return [named for kind, named in _reasons(snapshot) if kind in kinds]


def _answered(snapshot: TokenCaptureSnapshot) -> set[str]:
    """Calls with an entry or a refusal."""
    entries = {entry.model_call_id for entry in snapshot.entries}
    return entries | {record.model_call_id for record in snapshot.refusals}


# ---------------------------------------------------------------------------------------------- checks


def _incomplete_has_reasons(_: Facts, snapshot: TokenCaptureSnapshot) -> str:
    if snapshot.incomplete == bool(snapshot.incomplete_reasons):
        return ""
    return f"incomplete is {snapshot.incomplete}, the reasons are {snapshot.incomplete_reasons}"


def _version_counts(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    """The version is the number of calls, refusals, marks, damaged ranges, and the freeze."""
    marks = set(_named(snapshot, "marked", "conflict"))
    damaged = _named(snapshot, "damaged")
    wanted = len(snapshot.entries) + len(snapshot.refusals) + len(marks) + len(damaged) + snapshot.frozen
    return (
        ""
        if snapshot.version == wanted or facts.foreign
        else f"its version is {snapshot.version}, its facts make {wanted}"
    )


def _marks_are_those_asked_for(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    named = set(_named(snapshot, "marked", "conflict"))
    allowed = facts.marks.possible | ({""} if "marks" in facts.torn else frozenset())
    if not facts.marks.sure <= named <= allowed:
        return f"it is marked for {sorted(named)}: sure {_list(facts.marks.sure)}, possible {_list(allowed)}"
    conflicts = set(_named(snapshot, "conflict"))
    if facts.conflicts.allows(conflicts):
        return ""
    return f"it has conflicts {sorted(conflicts)}: sure {_list(facts.conflicts.sure)}"


def _only_known_kinds_of_reasons(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    allowed = {"marked", "conflict", "lost_call"}
    if "lines" in facts.torn:
        allowed |= {"damaged", "lost_base"}
    if facts.marks.possible or "marks" in facts.torn or (facts.seal and "flagged" in facts.seal.reasons):
        allowed.add("flagged")  # a marker without a line, or a freeze that found one
    strange = {kind for kind, _ in _reasons(snapshot)} - allowed
    return f"it is incomplete for {sorted(strange)}: {snapshot.incomplete_reasons}" if strange else ""


def _entries_are_those_put(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    stored = stored_in(snapshot)
    if len(dict(stored)) == len(stored) and facts.entries.allows(stored):
        return ""
    return f"it has {list(stored)}: sure {_list(facts.entries.sure)}, possible {_list(facts.entries.maybe)}"


def _refusals_are_those_made(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    refused = _refused_in(snapshot)
    if len(dict(refused)) == len(refused) and facts.refusals.allows(refused):
        return ""
    return f"it has the refusals {refused}: sure {_list(facts.refusals.sure)}"


def _lost_calls_mask(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    """A begun call without an answer makes a frozen rollout incomplete, and is open in one that is not."""
    lost = set(_named(snapshot, "lost_call")) if snapshot.frozen else set(snapshot.open_calls)
    answered = _answered(snapshot)
    strange = lost - facts.begun.possible
    if lost & answered:
        return f"{_list(lost & answered)} were answered and are lost"
    if strange and "intents" not in facts.torn:
        return f"{_list(strange)} were never begun and are lost"
    missing = facts.begun.sure - answered - lost
    return f"{_list(missing)} were begun, have no answer and are not lost" if missing else ""


def _is_the_sealed_one(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    seal = facts.seal
    assert seal is not None
    if (snapshot.snapshot_id, stored_in(snapshot)) != (seal.snapshot_id, seal.stored):
        return f"it is {snapshot.snapshot_id} with {stored_in(snapshot)}, frozen was {seal.snapshot_id}, {seal.stored}"
    if seal.reasons and not snapshot.incomplete:
        return f"it is complete and was incomplete for {seal.reasons}"
    missing = set(seal.reasons) - {*snapshot.incomplete_reasons, "flagged"}  # which gives way to what names a call
    return f"it has lost the reasons {sorted(missing)}" if missing else ""


def _seal_lost_no_call(facts: Facts, snapshot: TokenCaptureSnapshot) -> str:
    seal = facts.seal
    assert seal is not None
    fresh = {f"lost_call:{call}" for call in _named(snapshot, "lost_call")} - set(seal.reasons)
    return f"after its freeze it has lost {sorted(fresh)}" if fresh else ""


def _list(members: Iterable[object]) -> list[object]:
    return sorted(members, key=repr)


_COMMON: tuple[_Check, ...] = (
    _incomplete_has_reasons,
    _marks_are_those_asked_for,
    _only_known_kinds_of_reasons,
    _entries_are_those_put,
    _refusals_are_those_made,
    _version_counts,
)
_UNSEALED: tuple[_Check, ...] = (_lost_calls_mask,)
_SEALED: tuple[_Check, ...] = (_is_the_sealed_one, _seal_lost_no_call)
