"""Random operations of two writers, with random faults and crashes, against the model."""

from __future__ import annotations

import errno
import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.faults.aftermath import Aftermath
from tests.faults.ledger import Ledger
from tests.faults.operations import Alone, Batch, Idle, Interrupted, Operation, Removal, Reopen
from tests.faults.performance import Point
from tests.faults.questions import ROOT, Answer, Begin, Drop, Freeze, Mark, Peek, Put, R, Recover, Refuse, S, Scan
from tests.faults.settings import FULL, SHARED, TIGHT
from tests.faults.world import World
from tokenstore.testing import Fault, PersistencePolicy
from tokenstore.testing.failing_disk import Call

EXAMPLES = int(os.environ.get("TOKENSTORE_MACHINE_EXAMPLES", "60"))
CALLS: tuple[Call, ...] = ("open", "stat", "read", "write", "truncate", "datasync", "sync", "replace", "unlink")
MORE_CALLS: tuple[Call, ...] = ("directory_sync", "create_temporary", "file_stat", "lock", "unlock", "close")

places = st.sampled_from([0, 1])
rollouts = st.sampled_from([R, R, R, S])
calls = st.sampled_from(["c1", "c2", "c3", "t1", "t2", "t3"])
puts = st.builds(Put, calls, st.sampled_from([0, 0, 0, 1]))
batches = st.builds(
    Batch, st.lists(puts | st.builds(Begin, calls), min_size=1, max_size=3).map(tuple), rollouts, places
)
questions = st.one_of(
    st.builds(Refuse, calls, st.sampled_from([None, "code"])),
    st.builds(Mark, st.sampled_from(["", "c1", "c2"]), st.booleans()),
    st.sampled_from([Freeze(), Peek(), Scan(), Recover(), Drop(), Drop(1)]),
)
singles = st.builds(Alone, questions, rollouts, places)
removals = st.builds(Removal, st.sampled_from([(R,), (S,), (R, S)]), st.booleans(), places)
policies = st.sampled_from(PersistencePolicy)


class JournalMachine(RuleBasedStateMachine):
    """Two processes on one disk; every answer is held against the ledger, and at the end the disk is."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World([SHARED, SHARED])
        self.ledger = Ledger()

    @initialize(first=st.sampled_from([SHARED, FULL, TIGHT]), second=st.sampled_from([SHARED, FULL, TIGHT]))
    def begin(self, first: Any, second: Any) -> None:
        """Choose how the processes use the store."""
        self.world = World([first, second])

    # ------------------------------------------------------------------------------------------ operations

    @rule(operation=batches)
    def put_and_begin(self, operation: Batch) -> None:
        """Store calls and intents."""
        self.perform(operation)

    @rule(operation=singles)
    def ask(self, operation: Alone) -> None:
        """Do anything else to one rollout."""
        self.perform(operation)

    @rule(operation=removals)
    def remove(self, operation: Removal) -> None:
        """Retire or delete."""
        self.perform(operation)

    @precondition(lambda self: self.ledger.pending)
    @rule()
    def ask_again(self) -> None:
        """Ask again what had no answer first."""
        self.perform(self.ledger.pending[0])

    @rule(place=places, rollout=rollouts)
    def idle(self, place: int, rollout: str) -> None:
        """Let an actor retire."""
        self.perform(Idle(rollout, place))

    @rule(place=places)
    def reopen(self, place: int) -> None:
        """End a process, and start another."""
        self.perform(Reopen(place))

    # ------------------------------------------------------------------------------------------ trouble

    @rule(
        place=places,
        call=st.sampled_from(CALLS + MORE_CALLS),
        at=st.integers(1, 4),
        code=st.sampled_from([errno.EIO, errno.ENOSPC]),
        repeat=st.booleans(),
    )
    def fail(self, place: int, call: Call, at: int, code: int, repeat: bool) -> None:
        """Let a call fail, once or until the disk heals."""
        self.world.fail(place, Fault(call=call, at=at, errno=code, repeat=repeat))

    @rule(place=places, at=st.integers(1, 3), short=st.integers(1, 300))
    def write_short(self, place: int, at: int, short: int) -> None:
        """Let a write be short."""
        self.world.fail(place, Fault(call="write", at=at, short=short))

    @rule()
    def heal(self) -> None:
        """Let nothing fail any more."""
        self.world.heal()

    @rule(operation=batches | singles | removals, at=st.integers(1, 10))
    def kill(self, operation: Any, at: int) -> None:
        """Kill a process in the middle of an operation."""
        self.perform(Interrupted(operation, at))

    @rule(operation=batches | singles | removals, at=st.integers(1, 10), policy=policies, seed=st.integers(0, 9))
    def cut(self, operation: Any, at: int, policy: PersistencePolicy, seed: int) -> None:
        """Cut the power in the middle of an operation."""
        self.perform(Interrupted(operation, at, policy, seed))

    @rule(policy=policies, seed=st.integers(0, 9))
    def cut_at_rest(self, policy: PersistencePolicy, seed: int) -> None:
        """Cut the power while nobody does anything."""
        before = self.world.disk.files(ROOT)
        self.world.cut_power(policy, seed)
        if self.world.disk.files(ROOT) != before:
            self.ledger = self.ledger.after_power_cut()

    # ------------------------------------------------------------------------------------------ the model

    def perform(self, operation: Operation) -> None:
        """Ask, and hold the answers against the ledger."""
        cuts = self.world.power_cuts
        bound = self.world.bind(operation)
        answers: list[Answer] = self.world.perform(bound)
        self.ledger = self.ledger.noted(bound, answers)
        if self.world.power_cuts > cuts:
            self.ledger = self.ledger.after_power_cut()

    def teardown(self) -> None:
        """Check what is left after a kill and after each kind of power cut."""
        point = Point(self.world.disk.clone(), self.ledger, 0, "the end")
        for policy in (None, *PersistencePolicy):
            disk, ledger = point.crash(policy, 0)
            Aftermath(disk.after_kill(), ledger, [R, S], [TIGHT, SHARED]).check()


JournalMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    derandomize="TOKENSTORE_MACHINE_EXAMPLES" not in os.environ,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=[HealthCheck.too_slow],
)
TestJournal = JournalMachine.TestCase
