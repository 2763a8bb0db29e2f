"""The store's own removals, many at once: a crash at any step leaves rollouts that are fenced, not open with less.

With syncs in flight one thread takes the sections of many rollouts to the disk, as it does where the kernel can sync
for it; without, each is finished in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import anyio
import pytest

from tests.faults.aftermath import Aftermath
from tests.faults.entries import entry
from tests.faults.keys import key_of
from tests.faults.ledger import Ledger, WrongError
from tests.faults.operations import Alone, Operation, Removal
from tests.faults.performance import Point
from tests.faults.questions import ROOT, Drop, Freeze, R, S
from tests.faults.scenarios import begin, put
from tests.faults.search import CRASHES
from tests.faults.settings import FULL, SHARED
from tests.loops import QueuedDisk
from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.config import StoreConfig
from tokenstore.journal.root import Root
from tokenstore.removal import _Removal
from tokenstore.testing import PersistencePolicy, SimulatedDisk

pytestmark = pytest.mark.anyio


class Stage:
    """A store on a disk that is copied at every step, with two rollouts, one or both of them frozen."""

    def __init__(self, config: StoreConfig, *, in_flight: bool = False) -> None:
        self.disk = SimulatedDisk()
        self.config = config
        disk = QueuedDisk(self.disk) if in_flight else self.disk
        self.store = TokenCaptureStore(ROOT, config=config, _disk=disk)
        self.ledger = Ledger()
        self.copies: list[tuple[SimulatedDisk, str]] = []

    async def set_up(self, *frozen: str) -> list[TokenCaptureSnapshot]:
        """Fill the rollouts, freeze those, and start copying."""
        for rollout in (R, S):
            await self.store.begin_call(rollout, "c1")
            self.ledger = self.ledger.noted(begin("c1", on=rollout), ["acked"])
            for call in ("c1", "c2"):
                await self.store.put(entry(rollout, call))
                self.ledger = self.ledger.noted(put(call, on=rollout), ["acked"])
        snapshots = [await self.store.freeze(rollout) for rollout in frozen]
        for rollout, snapshot in zip(frozen, snapshots, strict=True):
            self.ledger = self.ledger.noted(Alone(Freeze(), rollout), [snapshot])
        self.disk.before_step = lambda label: self.copies.append((self.disk.clone(), label))
        return snapshots

    def check(self, *operations: Operation, crashes: Iterable[tuple[PersistencePolicy | None, int]] = CRASHES) -> int:
        """Crash at each step of the operations, in each of these ways, and count the states."""
        self.disk.before_step = None
        ledger = self.ledger
        for operation in operations:
            ledger = ledger.in_flight(operation)
        points = [Point(copy, ledger, step, label) for step, (copy, label) in enumerate(self.copies)]
        states = [point.crash(policy, seed) for point in points for policy, seed in crashes]
        distinct = {key_of(disk, known): (disk, known) for disk, known in states}
        recovered: set[int] = set()
        for disk, known in distinct.values():
            Aftermath(disk.after_kill(), known, [R, S], [self.config] * 2).check(recovered)
        return len(states)


async def remove_on(stage: Stage, *, delete: bool) -> Removal:
    """Remove both rollouts."""
    async with stage.store as store:
        await stage.set_up(S)
        await (store.delete if delete else store.retire)([R, S])
    return Removal((R, S), delete)


@pytest.fixture(params=[False, True], ids=["a thread each", "in flight"])
def in_flight(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether two sections are enough to go to the disk together."""
    monkeypatch.setattr("tokenstore.hosting.MANY", 0)
    return bool(request.param)


@pytest.mark.parametrize("config", [SHARED, FULL], ids=["shared", "full"])
@pytest.mark.parametrize("delete", [False, True], ids=["retire", "delete"])
async def test_a_batch_survives_a_crash_at_any_step(delete: bool, config: StoreConfig, in_flight: bool) -> None:
    """After a crash in the middle of a batch each rollout is what it was, fenced, or gone, and a retry finishes it."""
    stage = Stage(config, in_flight=in_flight)
    removal = await remove_on(stage, delete=delete)

    assert stage.check(removal) > 100


async def test_drops_at_once_survive_a_crash_at_any_step(in_flight: bool) -> None:
    """After a crash in the middle of two drops each rollout is whole, or fenced, and the same drop finishes it."""
    stage = Stage(SHARED, in_flight=in_flight)
    async with stage.store as store:
        pairs = {each.rollout_id: (each.snapshot_id, each.version) for each in await stage.set_up(R, S)}
        async with anyio.create_task_group() as tasks:
            for rollout, (snapshot_id, version) in pairs.items():
                tasks.start_soon(partial(store.drop, rollout, snapshot_id=snapshot_id, version=version))

    assert stage.check(*[Alone(Drop(pair=pair), rollout) for rollout, pair in pairs.items()]) > 100


@pytest.mark.parametrize("what", ["fence", "names"])
async def test_a_drop_that_waits_for_nothing_is_found(
    what: str, monkeypatch: pytest.MonkeyPatch, in_flight: bool
) -> None:
    """If a drop goes on before its fence is durable, with its name, the test before finds facts that are gone."""
    monkeypatch.setattr(Root, {"fence": "syncing_file", "names": "syncing"}[what], lambda *_: iter(()))
    stage = Stage(SHARED, in_flight=in_flight)
    async with stage.store as store:
        (snapshot,) = await stage.set_up(R)
        await store.drop(R, snapshot_id=snapshot.snapshot_id, version=snapshot.version)

    with pytest.raises(WrongError):
        stage.check(Alone(Drop(pair=(snapshot.snapshot_id, snapshot.version)), R))


async def test_a_batch_without_syncs_between_its_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory is not synced between the steps, the test before finds rollouts that have lost facts."""
    step = _Removal._step
    monkeypatch.setattr(_Removal, "_step", lambda self, ids, section, **_: step(self, ids, section, synced=False))
    stage = Stage(SHARED)
    removal = await remove_on(stage, delete=True)

    with pytest.raises(WrongError):
        stage.check(removal, crashes=[(PersistencePolicy.SCATTERED, seed) for seed in range(40)])
