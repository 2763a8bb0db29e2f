"""The store's own batches of removals: a crash at any step leaves fenced rollouts, never open ones with fewer facts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.faults.aftermath import Aftermath
from tests.faults.entries import entry
from tests.faults.keys import key_of
from tests.faults.ledger import Ledger, WrongError
from tests.faults.operations import Alone, Removal
from tests.faults.performance import Point
from tests.faults.questions import ROOT, Freeze, R, S
from tests.faults.scenarios import begin, put
from tests.faults.search import CRASHES
from tests.faults.settings import FULL, SHARED
from tokenstore import TokenCaptureStore
from tokenstore.config import StoreConfig
from tokenstore.removal import _Removal
from tokenstore.testing import PersistencePolicy, SimulatedDisk

pytestmark = pytest.mark.anyio


class Stage:
    """A store on a disk that is copied at every step, with two rollouts, one of them frozen."""

    def __init__(self, config: StoreConfig) -> None:
        self.disk = SimulatedDisk()
        self.config = config
        self.store = TokenCaptureStore(ROOT, config=config, _disk=self.disk)
        self.ledger = Ledger()
        self.copies: list[tuple[SimulatedDisk, str]] = []

    async def set_up(self) -> None:
        """Fill the rollouts, and start copying."""
        for rollout in (R, S):
            await self.store.begin_call(rollout, "c1")
            self.ledger = self.ledger.noted(begin("c1", on=rollout), ["acked"])
            for call in ("c1", "c2"):
                await self.store.put(entry(rollout, call))
                self.ledger = self.ledger.noted(put(call, on=rollout), ["acked"])
        self.ledger = self.ledger.noted(Alone(Freeze(), S), [await self.store.freeze(S)])
        self.disk.before_step = lambda label: self.copies.append((self.disk.clone(), label))

    def check(self, removal: Removal, crashes: Iterable[tuple[PersistencePolicy | None, int]] = CRASHES) -> int:
        """Crash at each step of the removal, in each of these ways, and count the states."""
        self.disk.before_step = None
        ledger = self.ledger.in_flight(removal)
        points = [Point(copy, ledger, step, label) for step, (copy, label) in enumerate(self.copies)]
        states = [point.crash(policy, seed) for point in points for policy, seed in crashes]
        distinct = {key_of(disk, known): (disk, known) for disk, known in states}
        for disk, known in distinct.values():
            Aftermath(disk.after_kill(), known, [R, S], [self.config] * 2).check()
        return len(states)


async def remove_on(stage: Stage, *, delete: bool) -> Removal:
    """Remove both rollouts."""
    async with stage.store as store:
        await stage.set_up()
        await (store.delete if delete else store.retire)([R, S])
    return Removal((R, S), delete)


@pytest.mark.parametrize("config", [SHARED, FULL], ids=["shared", "full"])
@pytest.mark.parametrize("delete", [False, True], ids=["retire", "delete"])
async def test_a_batch_survives_a_crash_at_any_step(delete: bool, config: StoreConfig) -> None:
    """After a crash in the middle of a batch each rollout is what it was, fenced, or gone, and a retry finishes it."""
    stage = Stage(config)
    removal = await remove_on(stage, delete=delete)

    assert stage.check(removal) > 100


async def test_a_batch_without_syncs_between_its_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the directory is not synced between the steps, the test before finds rollouts that have lost facts."""
    step = _Removal._step
    monkeypatch.setattr(_Removal, "_step", lambda self, operation, **_: step(self, operation, synced=False))
    stage = Stage(SHARED)
    removal = await remove_on(stage, delete=True)

    with pytest.raises(WrongError):
        stage.check(removal, [(PersistencePolicy.SCATTERED, seed) for seed in range(40)])
