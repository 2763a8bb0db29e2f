"""What becomes of a message whose caller is cancelled: queued, it is never done; taken, it is completed."""

from __future__ import annotations

import anyio
import pytest

from tests.loops import HeldDisk, calls_of, hosting, queue, store_on, ticks, until
from tests.samples import entry
from tokenstore.journal.journal import Journal
from tokenstore.mailbox import Message, Solo, put_message

pytestmark = pytest.mark.anyio


async def test_cancelled_while_queued_it_is_never_written() -> None:
    """A put that is cancelled before the actor took it leaves no byte."""
    disk, scope = HeldDisk(), anyio.CancelScope()
    async with store_on(disk) as store:

        async def give_up() -> None:
            with scope:
                await store.put(entry("given-up"))

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            await queue(tasks, store, give_up)
            await queue(tasks, store, store.put, entry("last"))
            scope.cancel()
            await ticks(5)
            disk.free()
        calls = await calls_of(store)

    assert calls == ["first", "last"]


async def test_cancelled_at_the_head_it_is_never_written() -> None:
    """A put that is the next to be taken when it is cancelled leaves no byte either."""
    disk, scope = HeldDisk(), anyio.CancelScope()
    async with store_on(disk) as store:

        async def give_up() -> None:
            with scope:
                await store.put(entry("given-up"))

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            await queue(tasks, store, give_up)
            scope.cancel()
            await ticks(5)
            disk.free()
        calls = await calls_of(store)

    assert calls == ["first"]


async def test_cancelled_while_it_waits_for_its_bytes_it_is_never_written() -> None:
    """A put that is cancelled while the host has no bytes for it leaves no byte, and its bytes are free."""
    disk, scope = HeldDisk(), anyio.CancelScope()
    async with hosting(disk, max_inflight_bytes=300) as host:

        async def give_up() -> None:
            with scope:
                await host.ask("other", put_message(entry("given-up", rollout_id="other")))

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(host.ask, "r", put_message(entry("first")))
            await disk.reached()
            tasks.start_soon(give_up)
            await until(lambda: host.budget.waiting)
            scope.cancel()
            await until(lambda: scope.cancelled_caught)
            disk.free()
        given_up = await host.ask("other", Message(Solo(Journal.peek)))

        assert host.budget.taken == 0
    assert given_up.entries == ()


async def test_cancelled_after_it_was_taken_it_is_written() -> None:
    """A put that is cancelled while it is being written completes, and again it is a no-op."""
    disk, scope = HeldDisk(), anyio.CancelScope()
    async with store_on(disk) as store:

        async def give_up() -> None:
            with scope:
                await store.put(entry("taken"))

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(give_up)
            await disk.reached()
            scope.cancel()
            await until(lambda: scope.cancelled_caught)
            disk.free()
        calls = await calls_of(store)
        await store.put(entry("taken"))
        snapshot = await store.freeze("r")

    assert calls == ["taken"]
    assert snapshot.version == 2
