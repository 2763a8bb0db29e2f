"""Idle actors retire, and nobody's message is lost by it."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tests.loops import ROOT, HeldDisk, hosting, store_on, ticks, until
from tests.samples import entry
from tokenstore import TokenEntry
from tokenstore.codec import decode_line
from tokenstore.journal.journal import INDEX_AFTER, Journal
from tokenstore.mailbox import Message, Solo, put_message
from tokenstore.testing import SimulatedDisk, agent_rollout

pytestmark = pytest.mark.anyio

LINES = "r.tokens.jsonl"
STATE = "r.tokens.state.json"


def large(call_id: str) -> TokenEntry:
    """An entry above the size from which a retiring actor writes its index."""
    return entry(call_id, extra={"padding": "x" * INDEX_AFTER})


async def test_a_small_rollout_retires_without_a_write() -> None:
    """An idle actor with little to index ends and leaves no state file."""
    disk = SimulatedDisk()
    async with store_on(disk, idle_seconds=0.02) as store:
        await store.put(entry())
        await until(lambda: store.statistics().actors == 0)
        files = disk.files(ROOT)

    assert STATE not in files


async def test_a_large_rollout_retires_with_its_index() -> None:
    """An idle actor with more than 64 KiB to index writes the state, so that nobody reads those lines again."""
    disk = SimulatedDisk()
    async with store_on(disk, idle_seconds=0.02) as store:
        await store.put(large("c0"))
        before = disk.files(ROOT)
        await until(lambda: store.statistics().actors == 0)
        after = disk.files(ROOT)

    assert STATE not in before
    assert f'"indexed_size":{len(after[LINES])}'.encode() in after[STATE].replace(b" ", b"")


@pytest.mark.parametrize("max_open_files", [160, 1])
async def test_an_agent_that_pauses_goes_on_sharing_prompts(max_open_files: int) -> None:
    """A turn after a pause names the call before it, though the actor had gone, and its descriptors before."""
    disk = SimulatedDisk()
    turns = agent_rollout("r", turns=4, first_prompt=400)
    async with store_on(disk, idle_seconds=0.02, max_open_files=max_open_files) as store:
        for turn in turns:
            await store.put(turn)
            await store.put(entry(turn.model_call_id, rollout_id="other"))
            await until(lambda: store.statistics().actors == 0)
        whole = list((await store.peek("r")).entries)
    lines = [decode_line(line, "r") for line in disk.read_file(ROOT / LINES).splitlines()]

    assert [line.base is not None for line in lines] == [False, True, True, True]
    assert whole == turns


async def test_prompts_of_a_rollout_that_another_process_made_anew_are_not_shared() -> None:
    """What was cached before a pause is forgotten if the file is not as it was left."""
    disk = SimulatedDisk()
    first, second, third = agent_rollout("r", turns=3, first_prompt=400)
    async with store_on(disk, idle_seconds=0.02) as store, store_on(disk) as other:
        await store.put(first)
        await store.put(second)
        await until(lambda: store.statistics().actors == 0)
        await other.delete(["r"])
        await other.put(first)
        await store.put(third)
        snapshot = await store.freeze("r")

    assert list(snapshot.entries) == [first, third]
    assert not snapshot.incomplete


async def test_retiring_gives_the_descriptors_back() -> None:
    """An actor that has retired keeps nothing open."""
    async with store_on(SimulatedDisk(), idle_seconds=0.02) as store:
        await store.put(entry())
        before = store.statistics().open_files
        await until(lambda: store.statistics().actors == 0)
        after = store.statistics().open_files

    assert before > 0
    assert after == 0


async def test_a_message_during_retirement_keeps_the_actor() -> None:
    """A put that comes while the actor offers its index is served by the same actor."""
    disk = HeldDisk()
    async with hosting(disk) as host, anyio.create_task_group() as tasks:
        await host.ask("r", put_message(large("c0")))
        actor = host._actors["r"]
        disk.hold("create_temporary")
        tasks.start_soon(host.ask, "r", Message(Solo(Journal.offer_index, retires=True)))
        await disk.reached()
        tasks.start_soon(host.ask, "r", put_message(entry("c1")))
        await until(lambda: host.queued)
        disk.free()
        snapshot = await host.ask("r", Message(Solo(Journal.peek)))

        assert host._actors["r"] is actor
    assert [each.model_call_id for each in snapshot.entries] == ["c0", "c1"]


async def test_a_message_at_any_moment_of_retirement_is_answered() -> None:
    """Wherever a retiring actor stands when a put comes, the put is stored."""
    async with hosting() as host:
        for wait in range(60):
            await host.ask("r", put_message(entry(f"warm-{wait}")))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.ask, "r", Message(Solo(Journal.offer_index, retires=True)))
                await ticks(wait)
                with anyio.fail_after(10):
                    await host.ask("r", put_message(entry(f"c{wait}")))
        snapshot = await host.ask("r", Message(Solo(Journal.peek)))

    assert len(snapshot.entries) == 120


async def test_many_senders_and_retirements() -> None:
    """However often an actor retires between its messages, each message is answered and done once."""
    async with hosting() as host:

        async def retire_for_ever() -> None:
            while True:
                actor = host._actors.get("r")
                if actor is not None and not actor.mailbox.queued:
                    actor.mailbox.try_deliver(Message(Solo(Journal.offer_index, retires=True)))
                await anyio.lowlevel.checkpoint()

        async def client(name: int) -> None:
            for number in range(20):
                await host.ask("r", put_message(entry(f"{name}-{number}")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retire_for_ever)
            async with anyio.create_task_group() as clients:
                for name in range(10):
                    clients.start_soon(client, name)
            tasks.cancel_scope.cancel()
        snapshot = await host.ask("r", Message(Solo(Journal.freeze)))

    assert len(snapshot.entries) == 200
    assert snapshot.version == 201
