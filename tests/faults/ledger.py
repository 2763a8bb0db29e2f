"""The accounting of a script: for each rollout, the ways in which it may stand, and what nobody got an answer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from tests.faults.facts import Facts, answered, unanswered
from tests.faults.judging import problem_of, sealed
from tests.faults.operations import Alone, Foreign, Interrupted, Operation, Removal, Stray
from tests.faults.questions import Answer, Asked, Freeze, Peek, Question, R, RemovalStep, S, Scan
from tokenstore.records import TokenCaptureSnapshot

Ways = frozenset[Facts]
_UNTOUCHED: Ways = frozenset({Facts()})


class WrongError(AssertionError):
    """The journal has broken a promise."""


@attrs.frozen
class Ledger:
    """What is known of all rollouts of a script; a value, so that each crash point keeps its own."""

    ways: Mapping[str, Ways] = attrs.field(factory=dict)
    pending: tuple[Operation, ...] = ()
    """Operations of which a question has no answer, in their order: to be asked again."""

    def of(self, rollout: str) -> Ways:
        """The ways in which a rollout may stand."""
        return self.ways.get(rollout, _UNTOUCHED)

    @property
    def key(self) -> tuple[object, ...]:
        """A ledger with an equal key is checked in the same way."""
        return self.of(R), self.of(S), self.pending

    @property
    def snapshot_ids(self) -> list[str]:
        """The ids of all freezes that were answered, in an order that does not depend on them."""
        seals = {(rollout, way.seal) for rollout, ways in self.ways.items() for way in ways if way.seal}
        return [seal.snapshot_id for _, seal in sorted(seals, key=lambda named: (named[0], named[1].version))]

    def noted(self, operation: Operation, answers: Sequence[Answer]) -> Ledger:
        """Take the answers to an operation into account.

        Raises:
            WrongError: An answer is not one that may be given.
        """
        ledger = self
        for (rollout, question), answer in zip(operation.asked, answers, strict=True):
            ledger = ledger._with(rollout, ledger._after(rollout, question, answer))
        return ledger._with_pending(operation, answers)

    def in_flight(self, operation: Operation) -> Ledger:
        """The ledger of a crash while an operation is going on."""
        ledger = self
        for rollout, question in operation.asked:
            ways = {way for before in ledger.of(rollout) for way in unanswered(before, question)}
            ledger = ledger._with(rollout, frozenset(ways))
        return ledger._with_pending(operation, ["unknown"] * len(operation.asked))

    def after_power_cut(self) -> Ledger:
        """The ledger when what was only possible may have become a hole."""
        torn = {rollout: frozenset(way.after_power_cut() for way in ways) for rollout, ways in self.ways.items()}
        return Ledger(torn, self.pending)

    def surely(self, status: str, rollout: str) -> bool:
        """Whether a rollout can stand in no other way."""
        return all(way.status == status for way in self.of(rollout))

    def _after(self, rollout: str, question: Question, answer: Answer) -> Ways:
        if isinstance(answer, TokenCaptureSnapshot):
            return self._after_snapshot(rollout, question, answer)
        before = self.of(rollout)
        ways = frozenset(after for way in before for after in answered(way, question, answer))
        if not ways:
            raise WrongError(f"{rollout}: {question} was answered {answer!r}, it stands as {_shown(before)}")
        # That somebody came too late is no acknowledgement: what he saw may yet be undone by a power cut.
        return before if answer in ("frozen", "retired") else ways

    def _after_snapshot(self, rollout: str, question: Question, snapshot: TokenCaptureSnapshot) -> Ways:
        before = self.of(rollout)
        if isinstance(question, Freeze):
            before = frozenset(
                attrs.evolve(way, status="frozen") if way.status == "open" else way for way in self.of(rollout)
            )
        problems = {way: problem_of(way, snapshot) for way in before}
        fitting = [way for way, problem in problems.items() if not problem]
        if not fitting:
            raise WrongError(f"{rollout}: {question} gave {snapshot}: {'; or '.join(sorted(problems.values()))}")
        if isinstance(question, Peek | Scan):
            return self.of(rollout)
        return frozenset(way if way.seal else sealed(way, snapshot) for way in fitting)

    def _with(self, rollout: str, ways: Ways) -> Ledger:
        if ways is self.ways.get(rollout):
            return self
        return Ledger({**self.ways, rollout: ways}, self.pending)

    def _with_pending(self, operation: Operation, answers: Sequence[Answer]) -> Ledger:
        """Remember what to ask again. A late delete would remove what came after it, so it is asked again at once."""
        plain = operation.operation if isinstance(operation, Interrupted) else operation
        if not self.pending and "unknown" not in answers:
            return self
        touched = {rollout for rollout, _ in plain.asked}
        pending = tuple(other for other in self.pending if other != plain and not _superseded(other, touched))
        if "unknown" in answers and not _never_again(plain):
            pending += (plain,)
        if isinstance(plain, Removal) and plain.delete and "unknown" not in answers:
            pending = tuple(other for other in pending if not touched & {rollout for rollout, _ in other.asked})
        return Ledger(self.ways, pending)


def _superseded(operation: Operation, touched: set[str]) -> bool:
    """Whether asking again would be wrong, because another operation on the rollout came after."""
    return isinstance(operation, Removal) and operation.delete and bool(touched & set(operation.on))


def _never_again(operation: Operation) -> bool:
    if isinstance(operation, Stray | Foreign):
        return True
    return isinstance(operation, Alone) and isinstance(operation.question, Peek | Scan | RemovalStep)


def _shown(ways: Iterable[Facts]) -> str:
    return " or ".join(sorted(map(repr, ways)))


def asked_of(operation: Operation, rollout: str) -> list[Question]:
    """What an operation asks of one rollout."""
    return [question for name, question in operation.asked if name == rollout]


__all__ = ["Asked", "Ledger", "Ways", "WrongError", "asked_of"]
