"""A lock that another process holds is waited for on the loop, and concerns nobody else."""

from __future__ import annotations

import anyio
import pytest

from tests.loops import ROOT, Outcomes, calls_of, store_on, ticks, until
from tests.samples import entry
from tokenstore import LockTimeoutError
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio


class Holder:
    """Another process that holds a rollout's lock."""

    def __init__(self, disk: SimulatedDisk, rollout_id: str = "r") -> None:
        self._file = disk.open_root(ROOT).open(f"{rollout_id}.tokens.lock", "create")
        assert self._file.lock(exclusive=True)

    def let_go(self) -> None:
        """Give the lock back."""
        self._file.unlock()
        self._file.close()


async def test_a_held_lock_times_out() -> None:
    """A rollout whose lock stays held raises after the deadline, names the file, and has written nothing."""
    disk = SimulatedDisk()
    async with store_on(disk, lock_timeout=0.03) as store:
        await store.put(entry("acked"))
        holder, before = Holder(disk), disk.files(ROOT)
        errors = Outcomes()
        await errors.of("put", store.put, entry("c1"))
        await errors.of("freeze", store.freeze, "r")
        await errors.of("peek", store.peek, "r")
        after = disk.files(ROOT)
        holder.let_go()
        await store.put(entry("c1"))
        calls = await calls_of(store)

    assert {type(error) for error in errors.errors.values()} == {LockTimeoutError}
    assert all(str(ROOT / "r.tokens.lock") in str(error) for error in errors.errors.values())
    assert len(errors.errors) == 3
    assert after == before
    assert calls == ["acked", "c1"]


async def test_others_go_on() -> None:
    """64 puts and 64 readers of rollouts whose locks are held keep no thread from the puts of another rollout."""
    disk = SimulatedDisk()
    holders = [Holder(disk, f"held-{number}") for number in range(64)]
    async with store_on(disk) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(store.put, entry(rollout_id=f"held-{number}"))
                tasks.start_soon(store.peek, f"held-{number}")
            await until(lambda: store.statistics().actors == 64)
            for number in range(20):
                await store.put(entry(f"c{number}"))
            puts_meanwhile = store.statistics().puts
            for holder in holders:
                holder.let_go()
        puts = store.statistics().puts

    assert puts_meanwhile == 20
    assert puts == 84


async def test_a_lock_that_comes_free_is_taken() -> None:
    """A put that waits for a lock goes on when it is given back."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        holder = Holder(disk)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, entry("waits"))
            await ticks(20)
            holder.let_go()
        calls = await calls_of(store)

    assert calls == ["waits"]
