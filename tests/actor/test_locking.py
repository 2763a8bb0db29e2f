"""A lock that another process holds is waited for on the loop, and concerns nobody else."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

import tokenstore.actor as actor_module
from tests.loops import ROOT, Outcomes, calls_of, hold_lock, store_on, ticks, until
from tests.samples import entry
from tokenstore import LockTimeoutError
from tokenstore.journal.held import FREE_SECONDS
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio


async def test_a_held_lock_times_out() -> None:
    """A rollout whose lock stays held raises after the deadline, names the file, and has written nothing."""
    disk = SimulatedDisk()
    async with store_on(disk, lock_timeout=0.03) as store:
        await store.put(entry("acked"))
        holder, before = hold_lock(disk), disk.files(ROOT)
        errors = Outcomes()
        await errors.of("put", store.put, entry("c1"))
        await errors.of("freeze", store.freeze, "r")
        await errors.of("peek", store.peek, "r")
        after = disk.files(ROOT)
        holder.close()
        await store.put(entry("c1"))
        calls = await calls_of(store)

    assert {type(error) for error in errors.errors.values()} == {LockTimeoutError}
    assert all(str(ROOT / "r.tokens.lock") in str(error) for error in errors.errors.values())
    assert len(errors.errors) == 3
    assert after == before
    assert calls == ["acked", "c1"]


async def test_others_go_on() -> None:
    """More rollouts whose locks are held than there are threads keep no thread from the puts of another rollout."""
    disk = SimulatedDisk()
    holders = [hold_lock(disk, f"held-{number}") for number in range(24)]
    async with store_on(disk) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(store.put, entry(rollout_id=f"held-{number}"))
                tasks.start_soon(store.peek, f"held-{number}")
            await until(lambda: store.statistics().actors == 24)
            for number in range(20):
                await store.put(entry(f"c{number}"))
            puts_meanwhile = store.statistics().puts
            for holder in holders:
                holder.close()
        puts = store.statistics().puts

    assert puts_meanwhile == 20
    assert puts == 44


async def test_a_long_turn_ends_with_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor that has held its lock long enough, in batches back to back, leaves it free before the next one."""
    monkeypatch.setattr(actor_module, "TURN_SECONDS", 0.0)
    async with store_on(SimulatedDisk()) as store:
        await store.put(entry("c0"))
        started = anyio.current_time()
        for number in range(1, 9):
            await store.put(entry(f"c{number}"))
        took = anyio.current_time() - started

    assert took >= 8 * FREE_SECONDS


@pytest.mark.parametrize("operation", ["put", "freeze", "delete"])
async def test_cancelled_while_it_waits_for_the_lock_it_is_not_done(operation: str) -> None:
    """What nobody waits for any more is not done when the lock comes free: it could undo what was asked later."""
    disk = SimulatedDisk()
    async with store_on(disk) as store, store_on(disk) as other:
        await store.put(entry("acked"))
        holder = hold_lock(disk)
        ask: dict[str, Any] = {
            "put": partial(store.put, entry("late")),
            "freeze": partial(store.freeze, "r"),
            "delete": partial(store.delete, ["r"]),
        }
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as cancelled:
                cancelled.start_soon(ask[operation])
                await ticks(20)
                tasks.start_soon(store.peek, "r")
                await until(lambda: store.statistics().queued == 1)
                cancelled.cancel_scope.cancel()
            await until(lambda: store.statistics().queued == 0)  # given up, for who came next has been taken
            holder.close()
        await other.delete(["r"])
        await other.put(entry("new"))
        await store.put(entry("last"))
        calls = await calls_of(other)

    assert calls == ["new", "last"]


async def test_a_lock_that_comes_free_is_taken() -> None:
    """A put that waits for a lock goes on when it is given back."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        holder = hold_lock(disk)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, entry("waits"))
            await ticks(20)
            holder.close()
        calls = await calls_of(store)

    assert calls == ["waits"]
