"""Removing many rollouts at once: few syncs of the directory, and each rollout its own outcome."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from tests.loops import HeldDisk, Outcomes, QueuedDisk, store_on, ticks, until
from tests.samples import entry
from tokenstore import DurabilityError, TokenCaptureRetiredError, TokenCaptureStore
from tokenstore.testing import Fault

pytestmark = pytest.mark.anyio

COUNT = 48


async def filled(store: TokenCaptureStore, count: int = COUNT) -> list[str]:
    """Put an entry into each of some rollouts."""
    rollout_ids = [f"r{number}" for number in range(count)]
    async with anyio.create_task_group() as tasks:
        for rollout_id in rollout_ids:
            tasks.start_soon(store.put, entry("c0", rollout_id=rollout_id))
    return rollout_ids


async def drop_all(store: TokenCaptureStore, rollout_ids: list[str], outcomes: Outcomes) -> None:
    """Freeze rollouts, then drop all of them at once."""
    snapshots = [await store.freeze(rollout_id) for rollout_id in rollout_ids]
    async with anyio.create_task_group() as tasks:
        for each in snapshots:
            drop = partial(store.drop, each.rollout_id, snapshot_id=each.snapshot_id, version=each.version)
            tasks.start_soon(outcomes.of, each.rollout_id, drop)


async def test_drops_at_once_share_syncs_of_the_directory() -> None:
    """Each drop syncs its own fence; the names of fences, and of what is gone, are synced for many together."""
    disk, outcomes = QueuedDisk(), Outcomes()
    async with store_on(disk) as store:
        rollout_ids = await filled(store)
        before = disk.calls["directory_sync"], disk.calls["sync"]
        await drop_all(store, rollout_ids, outcomes)
        directory, fences = disk.calls["directory_sync"] - before[0], disk.calls["sync"] - before[1]

    assert set(outcomes.results.values()) == {True}
    assert len(outcomes.results) == COUNT
    assert fences == 2 * COUNT  # the seal of each, and its fence
    assert directory - COUNT <= COUNT // 4  # one for each freeze


async def test_a_fence_that_fails_fails_its_own_drop() -> None:
    """If the sync of one fence fails, that drop raises and its rollout is as it was; the others are gone."""
    disk, outcomes = QueuedDisk(), Outcomes()
    async with store_on(disk) as store:
        rollout_ids = await filled(store)
        disk.fault = Fault(call="sync", at=COUNT + 5)  # after those of the seals
        await drop_all(store, rollout_ids, outcomes)
        (failed,) = outcomes.errors
        left = await store.freeze(failed)

    assert isinstance(outcomes.errors[failed], DurabilityError)
    assert len(outcomes.results) == COUNT - 1
    assert len(left.entries) == 1


async def test_a_batch_waits_for_a_place_in_a_full_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout whose mailbox is full is retired after what came before, together with the others."""
    monkeypatch.setattr("tokenstore.actor.MAILBOX_SIZE", 1)
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store, anyio.create_task_group() as tasks:
        rollout_ids = await filled(store, 3)
        disk.hold("datasync", "r1.tokens.jsonl")
        tasks.start_soon(outcomes.of, "put 1", store.put, entry("c1", rollout_id="r1"))
        await disk.reached()
        for number in (2, 3):
            tasks.start_soon(outcomes.of, f"put {number}", store.put, entry(f"c{number}", rollout_id="r1"))
        await until(lambda: store.statistics().queued == 2)
        tasks.start_soon(outcomes.of, "retire", store.retire, rollout_ids)
        await until(lambda: store.statistics().queued == 3)
        disk.free()

    assert outcomes.errors == {}
    assert outcomes.results["retire"] == {"removed": rollout_ids, "absent": []}


async def test_a_cancelled_batch_does_nothing_more() -> None:
    """What a cancelled batch has asked of an actor that was busy is never done."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store:
        rollout_ids = await filled(store, 3)
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync", "r1.tokens.jsonl")
            tasks.start_soon(outcomes.of, "put", store.put, entry("c1", rollout_id="r1"))
            await disk.reached()
            with anyio.move_on_after(60) as scope:
                async with anyio.create_task_group() as batch:
                    batch.start_soon(store.retire, rollout_ids)
                    await until(lambda: store.statistics().queued == 1)
                    scope.cancel()
            await ticks(10)  # the batch has a task of its own, which is cancelled after its caller
            disk.free()
        left = await store.peek("r1")

    assert len(left.entries) == 2


async def test_what_is_retired_needs_no_second_look_at_its_records() -> None:
    """Deleting what is retired removes fence and lock file, and the id starts empty."""
    disk = QueuedDisk()
    async with store_on(disk) as store:
        rollout_ids = await filled(store, 8)
        await store.retire(rollout_ids)
        with pytest.raises(TokenCaptureRetiredError):
            await store.peek("r0")
        unlinked = disk.calls["unlink"]
        payload = await store.delete(rollout_ids)
        unlinked = disk.calls["unlink"] - unlinked
        again = await store.peek("r0")

    assert payload == {"removed": [], "absent": rollout_ids}
    assert unlinked == 2 * len(rollout_ids)
    assert again.version == 0
