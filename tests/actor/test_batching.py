"""Group commit by draining: what waits together goes to the disk together, in order, each with its own answer."""

from __future__ import annotations

import math

import anyio
import pytest

from tests.loops import HeldDisk, Outcomes, calls_of, queue, store_on, ticks, until
from tests.samples import entry
from tokenstore import ConflictingEntryError, InvalidEntryError, TokenCaptureFrozenError, TokenEntry
from tokenstore import actor as actors
from tokenstore.mailbox import put_message
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio


def unserializable() -> TokenEntry:
    """An entry that is refused only in the worker, where elements are looked at."""
    return entry("bad", generation_token_ids=[1], generation_log_probs=[math.nan])


async def test_what_waits_becomes_one_batch() -> None:
    """Puts and begin_calls that wait while a batch is written go to the disk together, with one sync a file."""
    disk = HeldDisk()
    async with store_on(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("datasync")
        tasks.start_soon(store.put, entry("first"))
        await disk.reached()
        for number in range(20):
            await queue(tasks, store, store.put, entry(f"c{number}"))
            await queue(tasks, store, store.begin_call, "r", f"b{number}")
        before = disk.calls["datasync"]
        disk.free()
        await until(lambda: store.statistics().batches == 2)
        await until(lambda: not store.statistics().queued)
        batches, syncs = store.statistics().batches, disk.calls["datasync"] - before

    assert batches == 2
    assert syncs == 3


async def test_256_puts_need_at_most_ten_syncs() -> None:
    """256 concurrent puts into one rollout share their syncs."""
    async with store_on(SimulatedDisk()) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(256):
                tasks.start_soon(store.put, entry(f"c{number}"))
        syncs = store.statistics().fsyncs
        calls = await calls_of(store)

    assert syncs <= 10
    assert len(calls) == 256


async def test_callers_that_come_again_share_batches() -> None:
    """Clients that put one entry after the other meet in as many batches as each of them has entries."""
    async with store_on(SimulatedDisk()) as store:

        async def client(name: int) -> None:
            for number in range(10):
                await store.put(entry(f"{name}-{number}"))

        async with anyio.create_task_group() as tasks:
            for name in range(32):
                tasks.start_soon(client, name)
        batches = store.statistics().batches

    assert batches <= 20


async def test_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries stand in the file in the order in which their puts came, also of those who waited for a place."""
    monkeypatch.setattr(actors, "MAILBOX_SIZE", 50)
    disk, count = HeldDisk(), 120
    async with store_on(disk) as store:
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            for number in range(count):
                tasks.start_soon(store.put, entry(f"c{number}"))
                await ticks(2)
            queued = store.statistics().queued
            disk.free()
        calls = await calls_of(store)

    assert queued == count
    assert calls == ["first", *(f"c{number}" for number in range(count))]


async def test_a_bad_entry_is_answered_alone() -> None:
    """An entry that cannot be stored leaves its batch; the others of the batch are stored."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store:
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            await queue(tasks, store, outcomes.of, "before", store.put, entry("before"))
            await queue(tasks, store, outcomes.of, "bad", store.put, unserializable())
            await queue(tasks, store, outcomes.of, "conflict", store.put, entry("first", model="other"))
            await queue(tasks, store, outcomes.of, "after", store.put, entry("after"))
            disk.free()
        batches, calls = store.statistics().batches, await calls_of(store)

    assert isinstance(outcomes.errors.pop("bad"), InvalidEntryError)
    assert isinstance(outcomes.errors.pop("conflict"), ConflictingEntryError)
    assert outcomes.errors == {}
    assert calls == ["first", "before", "after"]
    assert batches == 2


async def test_anything_else_ends_a_run() -> None:
    """A freeze between two puts sees the one before it and refuses the one behind it."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("datasync")
        tasks.start_soon(store.put, entry("first"))
        await disk.reached()
        await queue(tasks, store, outcomes.of, "before", store.put, entry("before"))
        await queue(tasks, store, outcomes.of, "freeze", store.freeze, "r")
        await queue(tasks, store, outcomes.of, "after", store.put, entry("after"))
        disk.free()

    assert [each.model_call_id for each in outcomes.results["freeze"].entries] == ["first", "before"]
    assert isinstance(outcomes.errors["after"], TokenCaptureFrozenError)
    assert "before" in outcomes.results


async def test_a_batch_takes_its_share_of_the_bytes() -> None:
    """A batch stays within an eighth of the bytes in flight, and all are given back."""
    disk = HeldDisk()
    cost = put_message(entry("c0")).cost
    async with store_on(disk, max_inflight_bytes=8 * 3 * cost) as store:
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            for number in range(9):
                await queue(tasks, store, store.put, entry(f"c{number}"))
            disk.free()
        statistics = store.statistics()

    assert statistics.batches == 4
    assert statistics.bytes_in_flight == 0


async def test_an_entry_above_the_bound_goes_alone() -> None:
    """An entry that costs more than all bytes in flight is stored all the same."""
    async with store_on(SimulatedDisk(), max_inflight_bytes=300) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(store.put, entry(f"c{number}", prompt_token_ids=[1] * 1000))
        calls, statistics = await calls_of(store), store.statistics()

    assert len(calls) == 5
    assert statistics.batches == 5
    assert statistics.bytes_in_flight == 0
