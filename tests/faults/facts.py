"""What is known of a rollout from the answers that its callers got: the model that the journal is held against.

A fact is sure once it was acknowledged, and possible once it was asked for. Whatever happens later, a rollout holds
every sure fact and none that was never possible. Where an answer is missing and the status may have changed, there are
several `Facts`, one for each way it may have gone; an answer that one of them does not allow rules it out.

The model is the contract's lifecycle table in a few lines, without files: a rollout's calls, refusals and marks as
sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import attrs

from tests.faults.questions import (
    Answer,
    Begin,
    Disguise,
    Drop,
    Freeze,
    Mark,
    Peek,
    Put,
    Question,
    Refuse,
    RemovalStep,
    Remove,
    Scan,
)
from tokenstore.records import RolloutState

T = TypeVar("T")
Stored: TypeAlias = tuple[str, int]
"""A call and the variant of its entry."""
Refused: TypeAlias = tuple[str, str | None]
"""A call and the code with which it was refused."""


@attrs.frozen(cache_hash=True)
class Belief(Generic[T]):
    """A set of which some members are sure and some are possible."""

    sure: frozenset[T] = frozenset()
    maybe: frozenset[T] = frozenset()

    @property
    def possible(self) -> frozenset[T]:
        """All that may be there."""
        return self.sure | self.maybe

    def plus(self, member: T) -> Belief[T]:
        """It is there."""
        return Belief(self.sure | {member}, self.maybe - {member})

    def perhaps(self, other: Belief[T]) -> Belief[T]:
        """It may be as another belief says."""
        return Belief(self.sure, self.maybe | (other.possible - self.sure))

    def without(self, members: Iterable[T]) -> Belief[T]:
        """These are not there, unless they are sure."""
        return Belief(self.sure, self.maybe.difference(members))

    def allows(self, found: Iterable[T]) -> bool:
        """Whether a set may be the one believed in."""
        return self.sure <= set(found) <= self.possible


@attrs.frozen(cache_hash=True)
class Seal:
    """What a freeze has given, and every later one must give again."""

    snapshot_id: str = attrs.field(hash=False)  # it is random, and hashes are compared between runs
    version: int
    stored: tuple[Stored, ...]
    reasons: tuple[str, ...]
    marks: frozenset[str]
    """Calls whose marks the version counts."""


@attrs.frozen(cache_hash=True)
class Facts:
    """One way in which a rollout may stand."""

    status: RolloutState = "open"
    entries: Belief[Stored] = Belief()
    begun: Belief[str] = Belief()
    refusals: Belief[Refused] = Belief()
    marks: Belief[str] = Belief()
    conflicts: Belief[str] = Belief()
    """Those of the marks that are conflicts."""
    seal: Seal | None = None
    """Of a frozen or retired rollout, if the freeze was acknowledged."""
    touched: bool = False
    """Whether anything was ever asked of it, so that files may be there."""
    foreign: bool = False
    """Whether somebody else has written its state: then the version may count more or less than there is."""
    torn: frozenset[str] = frozenset()
    """Kinds of files (`"lines"`, `"intents"`, `"marks"`) in which a power cut may have left holes."""

    def stored(self, call: str) -> int | None:
        """The variant of a call's entry, if it is sure."""
        return next((variant for name, variant in self.entries.sure if name == call), None)

    def refused(self, call: str) -> bool:
        """Whether a call was refused for sure."""
        return any(name == call for name, _ in self.refusals.sure)

    def retired(self) -> Facts:
        """The rollout behind a fence; the fence keeps the pair that `drop` asks for."""
        return Facts(status="retired", seal=self.seal, touched=True, marks=self.marks, foreign=self.foreign)

    def with_mark(self, call: str, *, conflict: bool = False) -> Facts:
        """The rollout with a call marked."""
        conflicts = self.conflicts.plus(call) if conflict else self.conflicts
        return attrs.evolve(self, marks=self.marks.plus(call), conflicts=conflicts)

    def perhaps(self, other: Facts) -> Facts:
        """The rollout if it may be so or as another says, with the same status."""
        beliefs = {name: getattr(self, name).perhaps(getattr(other, name)) for name in _BELIEFS}
        return attrs.evolve(self, **beliefs, touched=True, foreign=self.foreign or other.foreign)

    def after_power_cut(self) -> Facts:
        """What was only possible may now be a hole in its file."""
        torn = {kind for kind, names in _FILES.items() if any(getattr(self, name).maybe for name in names)}
        return self if torn <= self.torn else attrs.evolve(self, torn=self.torn | torn)


_BELIEFS = ("entries", "begun", "refusals", "marks", "conflicts")
_FILES = {"lines": ("entries",), "intents": ("begun",), "marks": ("marks",)}
Outcome: TypeAlias = tuple[Answer, Facts]

# ---------------------------------------------------------------------------------------------- one question


def answered(facts: Facts, question: Question, answer: Answer) -> set[Facts]:
    """Give the ways in which the rollout may stand after an answer; none if the answer is wrong."""
    if answer == "unknown":
        return unanswered(facts, question)
    return {
        after if after.touched or isinstance(question, Remove) else attrs.evolve(after, touched=True)
        for way in _ways(facts, question)
        for given, after in _outcomes(way, question)
        if given == answer
    }


def unanswered(facts: Facts, question: Question) -> set[Facts]:
    """Give the ways in which the rollout may stand if a question was asked and no answer came."""
    same = attrs.evolve(facts, touched=True)
    others: set[Facts] = set()
    if isinstance(question, Remove) and facts.status != "retired":
        others.add(facts.retired())
    for way in _ways(facts, question):
        for _, after in _outcomes(way, question):
            if isinstance(question, Remove | RemovalStep) or after.status != facts.status:
                others.add(after)
            else:
                same = same.perhaps(after)
    return {same, *others}


def _ways(facts: Facts, question: Question) -> Iterator[Facts]:
    """Give the facts once for each way in which the call in question may stand."""
    if not isinstance(question, Put | Begin | Refuse):
        yield facts
        return
    call = question.call
    entries = [stored for stored in facts.entries.maybe if stored[0] == call]
    refusals = [refused for refused in facts.refusals.maybe if refused[0] == call]
    if not entries and not refusals:
        yield facts
        return
    bare = attrs.evolve(facts, entries=facts.entries.without(entries), refusals=facts.refusals.without(refusals))
    yield bare
    if bare.stored(call) is None and not bare.refused(call):
        yield from (attrs.evolve(bare, entries=bare.entries.plus(stored)) for stored in entries)
        yield from (attrs.evolve(bare, refusals=bare.refusals.plus(refused)) for refused in refusals)


def _outcomes(facts: Facts, question: Question) -> list[Outcome]:
    """What the contract's table says: the answers that may come, and the rollout after each."""
    rule = _RULES.get(type(question))
    return rule(facts, question) if rule else [("acked", facts)]


def _put(facts: Facts, put: Put) -> Outcome:
    stored = facts.stored(put.call)
    if facts.status == "retired":
        return "retired", facts
    if facts.status == "frozen":
        return ("acked" if stored == put.variant else "frozen"), facts
    if facts.refused(put.call) or stored not in (None, put.variant):
        return "conflict", facts.with_mark(put.call, conflict=True)
    return "acked", attrs.evolve(facts, entries=facts.entries.plus((put.call, put.variant)))


def _begin(facts: Facts, begin: Begin) -> Outcome:
    if facts.status != "open":
        return facts.status, facts
    if facts.stored(begin.call) is not None or facts.refused(begin.call):
        return "acked", facts
    return "acked", attrs.evolve(facts, begun=facts.begun.plus(begin.call))


def _refuse(facts: Facts, refuse: Refuse) -> Outcome:
    same = (refuse.call, refuse.code) in facts.refusals.sure
    if facts.status == "retired":
        return "retired", facts
    if facts.status == "frozen":
        return ("acked" if same else "frozen"), facts
    if facts.stored(refuse.call) is not None:
        return "conflict", facts.with_mark(refuse.call, conflict=True)
    if facts.refused(refuse.call):
        return ("acked" if same else "conflict"), facts
    return "acked", attrs.evolve(facts, refusals=facts.refusals.plus((refuse.call, refuse.code)))


def _mark(facts: Facts, mark: Mark) -> Outcome:
    if mark.only_if_open and facts.status != "open":
        return "acked", facts
    if facts.status == "retired":
        return "retired", facts
    return "acked", facts.with_mark(mark.call)


def _read(facts: Facts, _: Peek | Scan) -> Outcome:
    """A snapshot is judged apart; here is only whether one is given."""
    return ("retired" if facts.status == "retired" else "acked"), facts


def _freeze(facts: Facts, _: Freeze) -> Outcome:
    return _read(facts, Peek()) if facts.status == "retired" else ("acked", attrs.evolve(facts, status="frozen"))


def _disguise(facts: Facts, _: Disguise) -> Outcome:
    return "acked", attrs.evolve(facts, foreign=True)


def _drop(facts: Facts, drop: Drop) -> list[Outcome]:
    """Whether the pair matches is open as long as a mark may or may not have been counted."""
    seal = facts.seal
    if seal is None or seal.snapshot_id != drop.pair[0]:
        return [(False, facts)]
    counted = seal.version + len(facts.marks.sure - seal.marks)
    may_match = counted <= drop.pair[1] <= counted + len(facts.marks.maybe - seal.marks)
    may_match = may_match or facts.foreign
    must_match = may_match and not facts.marks.maybe - seal.marks and not facts.foreign
    outcomes: list[Outcome] = [(True, facts.retired())] if may_match else []
    return outcomes if must_match else [*outcomes, (False, facts)]


def _remove(facts: Facts, remove: Remove) -> list[Outcome]:
    after = Facts() if remove.delete else facts.retired()
    surely = facts.status != "retired" and (facts.entries.sure or facts.begun.sure or facts.marks.sure)
    existed = [True] if surely else [True, False] if facts.touched else [False]
    return [(answer, after) for answer in existed]


def _removal_step(facts: Facts, step: RemovalStep) -> list[Outcome]:
    """A step by itself: only a fence is durable later than it is seen, so its rollout may stand either way."""
    if step.name == "fence":
        return [("acked", facts), ("acked", facts.retired())]
    if step.name == "remove_fence" and facts.status == "retired":
        return [("acked", facts), ("acked", Facts())]
    return [("acked", facts)]


def _one(rule: Callable[[Facts, Any], Outcome]) -> Callable[[Facts, Any], list[Outcome]]:
    """A rule with one outcome, as one with several."""
    return lambda facts, question: [rule(facts, question)]


_RULES: dict[type[Question], Callable[[Facts, Any], list[Outcome]]] = {
    Put: _one(_put),
    Begin: _one(_begin),
    Refuse: _one(_refuse),
    Mark: _one(_mark),
    Freeze: _one(_freeze),
    Peek: _one(_read),
    Scan: _one(_read),
    Disguise: _one(_disguise),
    Drop: _drop,
    Remove: _remove,
    RemovalStep: _removal_step,
}
"""What each question does; one that is not here changes nothing."""
