"""Closing finishes or fails every queued message."""

from __future__ import annotations

import anyio
import pytest

from tests.loops import ROOT, HeldDisk, Outcomes, calls_of, queue, store_on, ticks
from tests.samples import entry
from tokenstore import StoreClosedError, TokenEntry
from tokenstore import actor as actors
from tokenstore.journal.journal import INDEX_AFTER
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio

STATE = "r.tokens.state.json"


def large(call_id: str) -> TokenEntry:
    """An entry above the size from which a retiring actor writes its index."""
    return entry(call_id, extra={"padding": "x" * INDEX_AFTER})


async def test_queued_messages_are_finished() -> None:
    """Closing with 100 queued puts leaves each of them either durable or raised."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("datasync")
        tasks.start_soon(outcomes.of, "first", store.put, entry("first"))
        await disk.reached()
        for number in range(100):
            await queue(tasks, store, outcomes.of, f"c{number}", store.put, entry(f"c{number}"))
        tasks.start_soon(store.close)
        await ticks(5)
        disk.free()
    async with store_on(disk) as other:
        calls = await calls_of(other)

    assert outcomes.results.keys() | outcomes.errors.keys() == {"first", *(f"c{number}" for number in range(100))}
    assert {type(error) for error in outcomes.errors.values()} <= {StoreClosedError}
    assert set(calls) == outcomes.results.keys()
    assert "c99" in outcomes.results


async def test_senders_outside_a_full_mailbox_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing while senders wait for a place leaves each of their puts either durable or raised."""
    monkeypatch.setattr(actors, "MAILBOX_SIZE", 3)
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_on(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("datasync")
        tasks.start_soon(outcomes.of, "first", store.put, entry("first"))
        await disk.reached()
        for number in range(10):
            await queue(tasks, store, outcomes.of, f"c{number}", store.put, entry(f"c{number}"))
        tasks.start_soon(store.close)
        await ticks(5)
        disk.free()
    async with store_on(disk) as other:
        calls = await calls_of(other)

    assert len(outcomes.results) + len(outcomes.errors) == 11
    assert calls == ["first", "c0", "c1", "c2"]
    assert set(calls) == outcomes.results.keys()


async def test_the_index_of_a_large_rollout_is_left() -> None:
    """Closing writes the index of a rollout with more than 64 KiB to index, and none of a small one."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        await store.put(large("c0"))
        await store.put(entry(rollout_id="small"))
    files = disk.files(ROOT)

    assert STATE in files
    assert "small.tokens.state.json" not in files
