"""The table of scripts: every operation of the store in the company of those that it can disturb.

Small on purpose. What makes the search large is that each script is run with every trouble and a crash at every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs

from tests.faults.operations import Alone, Batch, Foreign, Idle, Interrupted, Operation, Removal, Reopen, Stray, Sync
from tests.faults.questions import Begin, Drop, Freeze, Mark, Peek, Put, R, Refuse, RemovalStep, S, Scan
from tests.faults.settings import FULL, SHARED, TIGHT, TOGETHER
from tokenstore.config import StoreConfig
from tokenstore.testing import PersistencePolicy


@attrs.frozen
class Scenario:
    """A script, and how its processes use the store."""

    script: tuple[Operation, ...]
    configs: tuple[StoreConfig, StoreConfig] = (SHARED, SHARED)

    @property
    def rollouts(self) -> list[str]:
        """The rollouts of which something is asked."""
        return sorted({rollout for operation in self.script for rollout, _ in operation.asked})


def scenario(*script: Operation, config: StoreConfig = SHARED, other: StoreConfig | None = None) -> Scenario:
    """Make a scenario whose second process is configured like the first, if it is not said otherwise."""
    return Scenario(script, (config, other or config))


def put(*calls: str | Put | Begin, on: str = R, by: int = 0) -> Batch:
    """A batch of puts, by the names of their calls."""
    return Batch(tuple(Put(call) if isinstance(call, str) else call for call in calls), on, by)


def begin(*calls: str, on: str = R, by: int = 0) -> Batch:
    """A batch of begin_calls."""
    return Batch(tuple(map(Begin, calls)), on, by)


def refuse(call: str, code: str | None = "code", *, by: int = 0) -> Alone:
    """A refusal."""
    return Alone(Refuse(call, code), R, by)


def mark(call: str = "", *, on: str = R, by: int = 0, only_if_open: bool = False) -> Alone:
    """A mark."""
    return Alone(Mark(call, only_if_open), on, by)


def freeze(on: str = R, *, by: int = 0) -> Alone:
    """A freeze."""
    return Alone(Freeze(), on, by)


def peek(on: str = R, *, by: int = 0) -> Alone:
    """A look."""
    return Alone(Peek(), on, by)


def scan(on: str = R, *, by: int = 0) -> Alone:
    """A reading of the entries one by one."""
    return Alone(Scan(), on, by)


def drop(on: str = R, *, by: int = 0, age: int = 0) -> Alone:
    """A drop of the last snapshot, or of an older one."""
    return Alone(Drop(age), on, by)


def retire(*on: str, by: int = 0) -> Removal:
    """A batch of retirements."""
    return Removal(on or (R,), by=by)


def delete(*on: str, by: int = 0) -> Removal:
    """A batch of deletions."""
    return Removal(on or (R,), delete=True, by=by)


def fence(by: int = 0) -> Alone:
    """The first step of a removal by itself."""
    return Alone(RemovalStep("fence"), R, by)


def remove_records(by: int = 0) -> Alone:
    """The second step."""
    return Alone(RemovalStep("remove_records"), R, by)


def remove_fence(by: int = 0) -> Alone:
    """The third step, of a deletion."""
    return Alone(RemovalStep("remove_fence"), R, by)


def remove_lock(by: int = 0) -> Alone:
    """The last step, of a deletion."""
    return Alone(RemovalStep("remove_lock"), R, by)


def killed(operation: Batch | Alone | Removal, at: int) -> Interrupted:
    """An operation whose process is killed at a step."""
    return Interrupted(operation, at)


def cut(operation: Batch | Alone | Removal, at: int, policy: PersistencePolicy, seed: int = 0) -> Interrupted:
    """An operation during which the power is cut."""
    return Interrupted(operation, at, policy, seed)


P = PersistencePolicy
OTHER = Put("c1", variant=1)
"""The first call with another content."""

SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        # -------------------------------------------------------------------------------- puts and begin_calls
        "put": scenario(put("c1"), put("c2"), put("c3")),
        "batches": scenario(put("c1", "c2", "c3"), put("c4", "c5"), put("c6")),
        "begin and put": scenario(begin("c1"), put("c1"), begin("c2", "c3"), put("c2", Begin("c4")), freeze()),
        "retries": scenario(
            begin("c1"), begin("c1"), put("c1"), put("c1"), begin("c1"), put("c1", "c2", "c1"), freeze(), put("c2")
        ),
        "a lost call": scenario(begin("c1", "c2"), put("c1"), freeze(), freeze(), put("c2")),
        "shared prompts": scenario(put("t1"), put("t2", "t3"), put("t4"), scan(), freeze()),
        "whole prompts": scenario(put("t1"), put("t2", "t3"), begin("c1"), freeze(), config=FULL),
        "put with syncs of the file system": scenario(
            put("c1", "c2"), begin("c3"), put("c3", Begin("c4")), put("c3", "c5"), freeze(), config=TOGETHER
        ),
        "two writers with different syncs": scenario(
            put("c1", "c2"), put("c3", by=1), put("c3", "c4"), put("c5", by=1), freeze(), config=TOGETHER, other=SHARED
        ),
        # -------------------------------------------------------------------------------- refusals, marks, conflicts
        "refuse": scenario(begin("c1"), refuse("c1"), refuse("c1"), refuse("c1", None), begin("c1"), freeze()),
        "refuse and put": scenario(
            refuse("c1", None), put("c1"), put("c2"), refuse("c2"), freeze(), refuse("c1", None)
        ),
        "mark": scenario(
            begin("c1"), mark("c1"), mark(), mark("c1"), put("c1"), mark("c2", only_if_open=True), freeze()
        ),
        "mark after freeze": scenario(put("c1"), freeze(), mark("c2"), mark("c3", only_if_open=True), freeze(), mark()),
        "conflict": scenario(put("c1"), put(OTHER), put("c2"), put(OTHER, "c3"), put("c1"), freeze()),
        "conflict in a batch": scenario(put("c1", OTHER, "c2", Put("c2", 1)), put(OTHER), freeze()),
        # -------------------------------------------------------------------------------- consuming
        "freeze": scenario(peek(), freeze(), freeze(), put("c1"), begin("c1"), mark("c1"), freeze()),
        "freeze full": scenario(put("c1", "c2"), freeze(), put("c1"), put("c3"), scan(), refuse("c4"), freeze()),
        "drop": scenario(begin("c1"), put("c1"), freeze(), drop(), drop(), put("c2"), freeze(), mark("c1")),
        "drop after a mark": scenario(put("c1"), freeze(), mark("c2"), drop(), freeze(), drop(age=1), drop(), drop()),
        "retire": scenario(put("c1"), begin("c2"), mark("c2"), retire(), put("c1"), retire(), freeze(), peek()),
        "retire frozen": scenario(put("c1"), freeze(), retire(), drop(), mark("c1"), retire()),
        "delete": scenario(put("c1", "c2"), delete(), delete(), freeze()),
        "delete and reuse": scenario(begin("c1"), put("c1"), delete(), put(OTHER), delete(), put("c2"), freeze()),
        "delete frozen": scenario(
            put("c1"), freeze(), mark("c1"), delete(), peek(), put(OTHER), freeze(), drop(), delete()
        ),
        "delete retired": scenario(put("c1"), retire(), delete(), begin("c1"), put("c1"), delete(), refuse("c1")),
        # -------------------------------------------------------------------------------- two rollouts
        "two rollouts": scenario(put("c1"), put("c1", on=S), put("c2", on=S), freeze(), put("c2"), freeze(S)),
        "two rollouts retired": scenario(
            put("c1"), put("c1", "c2", on=S), retire(R, S), freeze(S), delete(R, S), put("c1")
        ),
        "two rollouts deleted": scenario(
            put("c1"), freeze(), put("c1", on=S), delete(R, S), put(OTHER), put("c2", on=S)
        ),
        "one marked": scenario(put("c1"), put("c1", on=S), mark("c1"), put("c2", on=S), freeze(S), freeze(), drop(S)),
        # -------------------------------------------------------------------------------- two writers
        "two writers": scenario(
            put("c1"), put("c2", by=1), put("c3"), begin("c4", by=1), put("c4"), freeze(by=1), put("c5"), peek()
        ),
        "two writers retry": scenario(
            put("c1"), put("c1", by=1), put("c2", "c3", by=1), put("c3"), begin("c4"), begin("c4", by=1), freeze(by=1)
        ),
        "two writers conflict": scenario(
            put("c1"), put(OTHER, by=1), put("c2"), mark("c1"), mark("c3", by=1), freeze()
        ),
        "two writers refuse": scenario(
            begin("c1"), refuse("c1", by=1), refuse("c1"), put("c1"), put("c2", by=1), refuse("c2"), freeze(by=1)
        ),
        "two writers freeze": scenario(
            put("c1"), freeze(by=1), freeze(), mark("c2", by=1), freeze(), drop(by=1), drop()
        ),
        "two writers delete": scenario(
            put("c1"), put("c2", by=1), delete(by=1), put(OTHER, by=1), put("c3"), delete(), put("c1", by=1), freeze()
        ),
        "two writers share prompts": scenario(put("t1"), put("t2", by=1), put("t3"), put("t4", "t5", by=1), freeze()),
        "two kinds of writers": scenario(
            put("t1"), put("t2", by=1), put("t3"), put("t2"), put("t3", "c1", by=1), freeze(by=1), freeze(), other=FULL
        ),
        "a removal overtaken": scenario(
            put("c1"),
            fence(),
            Sync(),
            delete(by=1),
            put("c2", by=1),
            remove_records(),
            Sync(),
            remove_fence(),
            remove_lock(),
        ),
        "a removal overtaken by a freeze": scenario(
            put("c1"),
            fence(),
            Sync(),
            remove_records(),
            delete(by=1),
            put("c2", by=1),
            freeze(by=1),
            remove_fence(),
            freeze(),
        ),
        "a lock removed": scenario(
            put("c1"), put("c2", by=1), delete(), begin("c3", by=1), remove_lock(), put("c3", by=1), put("c4"), freeze()
        ),
        "a lock kept": scenario(put("c1"), fence(), delete(by=1), put("c2", by=1), Sync(), remove_lock()),
        # -------------------------------------------------------------------------------- the reference's states
        "the reference's marks": scenario(
            put("c1"), mark("c2"), mark(), Foreign(), put("c3"), mark("c4"), Foreign(), freeze(), config=FULL
        ),
        "the reference's freeze": scenario(
            begin("c1", "c2"), put("c1"), freeze(), Foreign(), freeze(), mark("c2"), freeze(), config=FULL
        ),
        "the reference's fence": scenario(
            put("c1"), freeze(), killed(drop(), 6), Foreign(), put("c1", by=1), drop(), config=FULL
        ),
        "an older reference": scenario(
            put("c1"), refuse("c2"), Foreign(older=True), put("c3", "c1"), refuse("c4"), Foreign(older=True), freeze()
        ),
        "an older reference's freeze": scenario(
            put("c1", "c2"), freeze(), Foreign(older=True), peek(), freeze(), mark("c3"), drop()
        ),
        # -------------------------------------------------------------------------------- coming and going
        "idle and reopen": scenario(put("c1"), Idle(), put("c2"), Reopen(), begin("c3"), Idle(), put("c1"), freeze()),
        "index": scenario(put("b1"), Idle(), put("c2"), Idle(), put("b3", by=1), Idle(by=1), put("b1"), freeze()),
        "index and facts": scenario(
            put("b1"), mark("c2"), put("c2"), Idle(), refuse("c3"), put("b1"), freeze(), drop()
        ),
        "handles given away": scenario(
            put("c1"),
            put("c1", on=S),
            begin("c2"),
            put("c2"),
            mark("c3", on=S),
            peek(S),
            put("c2"),
            freeze(S),
            config=TIGHT,
        ),
        "handles and another writer": scenario(
            put("c1"), put("c2", by=1), put("c3"), delete(by=1), put(OTHER, by=1), put("c4"), freeze(by=1), config=TIGHT
        ),
        "an inode comes back": scenario(
            put("c1"), delete(by=1), put("c2", by=1), begin("c1"), put("c1"), put(OTHER, by=1), freeze(), config=TIGHT
        ),
        "a base removed while idle": scenario(
            put("t1"), Idle(), delete(by=1), put("c9", by=1), put("t2"), put("t3"), freeze()
        ),
        "a base removed while handles were away": scenario(
            put("t1"), put("c1", on=S), delete(by=1), put("t1", by=1), put("t2", "t3"), freeze(by=1), config=TIGHT
        ),
        # -------------------------------------------------------------------------------- recovery itself
        "a line without its newline": scenario(put("c1"), Stray("c2", -1), put("c3", by=1), put("c2"), freeze()),
        "a fragment": scenario(put("c1"), begin("c2"), Stray("c2", 40), peek(), put("c3"), freeze(), peek(by=1)),
        "a line of nobody": scenario(Stray("c1"), Stray("c2", -1), peek(), put("c1"), begin("c2", by=1), freeze(by=1)),
        "behind the seal": scenario(
            put("c1"), freeze(), Stray("c2"), freeze(by=1), put("c2"), Stray("c3", 40), mark("c2"), drop()
        ),
        "a tail": scenario(killed(put("c1", "c2", "c3"), 4), put("c4", by=1), put("c2"), freeze()),
        "a torn tail": scenario(put("c1"), cut(put("c2", "c3"), 2, P.PREFIX, 1), put("c4"), put("c2"), freeze()),
        "a hole": scenario(
            put("t1"), cut(put("t2", "t3", "t4"), 2, P.SCATTERED, 3), peek(), put("c5"), put("t2"), freeze()
        ),
        "a hole of another": scenario(
            put("c1"),
            put("c2", by=1),
            cut(put("t1", "t2"), 2, P.SCATTERED, 2),
            mark("c9", by=1),
            put("t1"),
            freeze(by=1),
        ),
        "torn intents": scenario(begin("c1"), cut(begin("c2", "c3"), 2, P.NULS), put("c1"), begin("c2"), freeze()),
        "torn marks": scenario(put("c1"), cut(mark("c2"), 3, P.NULS), put("c2"), mark("c2"), freeze()),
        "a mark not counted": scenario(put("c1"), killed(mark("c2"), 4), put("c2", by=1), freeze(), mark("c2")),
        "a mark of a frozen rollout not counted": scenario(
            put("c1"), freeze(), killed(mark("c2"), 4), peek(by=1), drop(by=1), freeze(), drop()
        ),
        "a fence not finished": scenario(
            put("c1"), freeze(), killed(drop(), 6), put("c2", by=1), drop(by=1), freeze(), delete()
        ),
        "a deletion not finished": scenario(
            put("c1"), begin("c2"), killed(delete(), 9), peek(by=1), delete(by=1), put("c1")
        ),
    }
)
"""Every script by its name."""
