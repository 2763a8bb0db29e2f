"""What is checked on the disk that a crash has left, against the ledger of that moment.

1. Readers see what was acknowledged, whole, and change nothing.
2. Recovery ends, gives facts that the ledger allows, writes down what it found, and a second one changes nothing.
3. What had no answer is asked again: each answer is one that may be given.
4. Freezing gives everything that was acknowledged, masked where a call was lost; after another power cut, in another
   process, the same again.
5. No descriptor, lock or temporary file is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.keys import key_of
from tests.faults.ledger import Ledger, WrongError
from tests.faults.operations import Alone, Operation
from tests.faults.questions import ROOT, Answer, Freeze, Peek, Recover
from tests.faults.world import World
from tokenstore.config import StoreConfig
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.journal.statefile import parse_state
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import PersistencePolicy, SimulatedDisk


class Aftermath:
    """The life of a disk after a crash.

    Args:
        disk: What the crash has left; nothing is open on it.
        ledger: What is known.
        rollouts: The rollouts of the script.
        configs: How those who come use the store.
    """

    def __init__(
        self, disk: SimulatedDisk, ledger: Ledger, rollouts: Sequence[str], configs: Sequence[StoreConfig]
    ) -> None:
        self._world = World(configs, disk=disk, counted=False)
        self._ledger = ledger
        self._rollouts = rollouts
        self._found: dict[str, set[str]] = {}

    def check(self, seen: set[int] | None = None) -> None:
        """Go through it.

        Args:
            seen: Keys of the disks after recovery from which all the rest was gone through; this one is added.

        Raises:
            WrongError: A promise is broken.
        """
        temporary = self._temporary()
        self._look_without_touching()
        self._recover()
        key = key_of(self._world.disk, self._ledger)
        if seen is not None:
            if key in seen:
                return
            seen.add(key)
        self._recover_again()
        self._ask_again()
        self._freeze_twice()
        self._world.close()
        left = self._temporary() - temporary
        if left:
            raise WrongError(f"temporary files are left: {sorted(left)}")

    def _files(self) -> dict[str, bytes]:
        """All files but temporary ones, which only `repair` and a power cut touch, and what lies behind a seal."""
        files = {n: c for n, c in self._world.disk.files(ROOT).items() if not n.startswith(TEMPORARY_PREFIX)}
        for names in map(Names.of, self._rollouts):
            if names.tokens in files and b'"frozen":true' in files.get(names.state, b""):
                files[names.tokens] = files[names.tokens][: parse_state(files[names.state]).indexed_size]
        return files

    def _temporary(self) -> set[str]:
        return {name for name in self._world.disk.files(ROOT) if name.startswith(TEMPORARY_PREFIX)}

    def _perform(self, operation: Operation) -> list[Answer]:
        operation = self._world.bind(operation)
        answers = self._world.perform(operation)
        self._ledger = self._ledger.noted(operation, answers)
        return answers

    def _look_without_touching(self) -> None:
        before = self._files()
        for rollout in self._rollouts:
            self._found[rollout] = _damage(self._perform(Alone(Peek(), rollout))[0])
        if self._files() != before:
            raise WrongError(f"reading has changed {_changed(before, self._files())}")

    def _recover(self) -> None:
        for rollout in self._rollouts:
            self._perform(Alone(Recover(), rollout))
        before = self._files()
        _check_written(before, self._rollouts)
        self._check_damage_is_recorded(before)
        self._world.close()

    def _recover_again(self) -> None:
        before = self._files()
        for rollout in self._rollouts:
            self._perform(Alone(Recover(), rollout))
        if self._files() != before:
            raise WrongError(f"a second recovery has changed {_changed(before, self._files())}")

    def _ask_again(self) -> None:
        for operation in self._ledger.pending:
            self._perform(operation)

    def _freeze_twice(self) -> None:
        for rollout in self._rollouts:
            self._perform(Alone(Freeze(), rollout))
        before = self._files()
        _check_written(before, self._rollouts)
        self._check_removed(before)
        self._world.cut_power(PersistencePolicy.SYNCED)
        for rollout in self._rollouts:
            self._perform(Alone(Freeze(), rollout))
        if self._files() != before:
            raise WrongError(f"a power cut after the last freeze has changed {_changed(before, self._files())}")

    def _check_damage_is_recorded(self, files: dict[str, bytes]) -> None:
        """What a reader has found is in the state after recovery."""
        for rollout in self._rollouts:
            state = parse_state(files.get(Names.of(rollout).state, b"{}"))
            missing = self._found[rollout].difference(state.damage, state.verdict or ())
            if missing:
                raise WrongError(f"{rollout}: recovery has not recorded {sorted(missing)}")

    def _check_removed(self, files: dict[str, bytes]) -> None:
        """Any message but a removal finishes a removal that was interrupted."""
        for rollout in self._rollouts:
            left = [name for name in Names.of(rollout).records if name in files]
            if left and self._ledger.surely("retired", rollout):
                raise WrongError(f"{rollout} is retired, and {left} is still there")


def _damage(answer: Answer) -> set[str]:
    """What a snapshot says of its file, for open and frozen rollouts."""
    reasons = answer.incomplete_reasons if isinstance(answer, TokenCaptureSnapshot) else ()
    return {reason for reason in reasons if reason.startswith(("damaged:", "lost_base:"))}


def _check_written(files: dict[str, bytes], rollouts: Sequence[str]) -> None:
    """Look at the files of rollouts that were recovered: the state is whole, and the marker is not behind it."""
    for names in map(Names.of, rollouts):
        state = parse_state(files.get(names.state, b"{}"))
        if "state_lost" in state.damage:
            raise WrongError(f"{names.state} is torn")
        if state.retired:
            continue
        marker = files.get(names.marker, b"").decode(errors="replace").split("\n")
        missing = set(state.marked or ()).difference(marker)
        if missing:
            raise WrongError(f"{names.state} counts marks that {names.marker} lacks: {sorted(missing)}")


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
