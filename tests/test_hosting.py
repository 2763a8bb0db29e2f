"""Where actors live: what runs in a loop, and that nothing runs in a store without work."""

from __future__ import annotations

import gc
import weakref
from contextvars import ContextVar

import anyio
import anyio.abc
import pytest

from tests.loops import HeldDisk, Outcomes, hosting, store_on, store_tasks, ticks, until
from tests.samples import entry
from tokenstore import StoreClosedError, TokenCaptureStore
from tokenstore.journal.journal import Journal
from tokenstore.mailbox import Message, Solo, put_message
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio

HOST = "tokenstore.crossing.Gate.run"
ACTOR = "tokenstore.actor.Actor.run"
SWEEPER = "tokenstore.hosting.Host._sweep"
LANE = "tokenstore.threads.Threads._lane"


class Asking:
    """What a caller's request holds in its context."""


REQUEST: ContextVar[Asking] = ContextVar("REQUEST")


async def test_a_store_without_work_runs_nothing() -> None:
    """A store that was entered and never used has no task but the one that waits for its end, and makes no call."""
    disk = HeldDisk()
    async with store_on(disk):
        calls = disk.calls.total()
        await ticks(50)

        assert store_tasks() == [HOST]
        assert disk.calls.total() == calls


async def test_a_store_that_was_never_used_has_no_thread() -> None:
    """Neither making a store nor entering it starts its daemon thread."""
    store = store_on(SimulatedDisk())
    async with store:
        await store.put(entry())

        assert [host.loop.is_running_here() for host in store._home.hosts] == [True]


async def test_each_rollout_has_one_actor() -> None:
    """Messages to one rollout go to one actor, those to another to another, and one sweeper serves both."""
    async with store_on(SimulatedDisk()) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                for rollout_id in ("a", "b"):
                    tasks.start_soon(store.put, entry(f"c{number}", rollout_id=rollout_id))

        assert [name for name in store_tasks() if name != LANE] == [ACTOR, ACTOR, HOST, SWEEPER]
        assert store.statistics().actors == 2


async def test_no_task_keeps_what_a_caller_has_in_its_context() -> None:
    """Actors, lanes and the sweeper live on, and what the contexts of those hold who woke them is let go."""
    asking: list[weakref.ref[Asking]] = []

    async def request(store: TokenCaptureStore, number: int) -> None:
        own = Asking()
        asking.append(weakref.ref(own))
        REQUEST.set(own)
        await store.put(entry(rollout_id=f"r{number}"))
        await store.retire([f"r{number}"])
        await store.put(entry(rollout_id=f"s{number}"))

    async with store_on(SimulatedDisk()) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(request, store, number)
        await ticks(5)
        gc.collect()
        alive = [each for each in asking if each() is not None]
        names = set(store_tasks())

    assert alive == []
    assert names >= {ACTOR, LANE, SWEEPER}


async def test_the_sweeper_ends_with_the_last_actor() -> None:
    """When the last actor has retired, nothing runs any more; the next message starts both again."""
    async with store_on(SimulatedDisk(), idle_seconds=0.02) as store:
        for number in range(3):
            await store.put(entry(f"c{number}"))
            await until(lambda: store_tasks() == [HOST])
        await store.put(entry("last"))

        assert store_tasks() == [ACTOR, HOST, SWEEPER, LANE]


async def test_a_used_actor_does_not_retire() -> None:
    """The sweeper leaves an actor alone that had a message within the idle time."""
    async with hosting(idle_seconds=0.1) as host:
        await host.ask("busy", put_message(entry(rollout_id="busy")))
        busy = host._actors["busy"]
        await host.ask("idle", put_message(entry(rollout_id="idle")))
        while "idle" in host._actors:
            await host.ask("busy", Message(Solo(Journal.is_incomplete, reads=True)))

        assert host._actors == {"busy": busy}


async def test_an_actor_that_ends_is_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    """The sweeper survives that actors come and go in one tick, and the next actor has one again."""
    async with hosting(idle_seconds=0.02) as host:
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                await host.ask("r", Message(Solo(lambda _: 1 // 0)))
        await host.ask("r", put_message(entry()))
        await until(lambda: not host.actors)

    assert caplog.text.count("ZeroDivisionError") == 5


async def test_closing_serves_what_is_queued() -> None:
    """A host that closes finishes the messages of all its actors, and refuses those that come later."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with anyio.create_task_group() as tasks, hosting(disk) as host:
        disk.hold("datasync")
        tasks.start_soon(outcomes.of, "taken", host.ask, "a", put_message(entry(rollout_id="a")))
        await disk.reached()
        tasks.start_soon(outcomes.of, "queued", host.ask, "a", put_message(entry("c1", rollout_id="a")))
        await until(lambda: host.queued)
        host.begin_close()
        await outcomes.of("late", host.ask, "a", put_message(entry("c2", rollout_id="a")))
        await outcomes.of("elsewhere", host.ask, "b", put_message(entry(rollout_id="b")))
        disk.free()

    assert outcomes.results.keys() == {"taken", "queued"}
    assert {name: type(error) for name, error in outcomes.errors.items()} == dict.fromkeys(
        ["late", "elsewhere"], StoreClosedError
    )
    assert not store_tasks()


async def test_a_host_that_closes_starts_nothing() -> None:
    """No task can be started beside the actors of a host that closes."""
    async with hosting() as host:
        host.begin_close()

        async def never() -> None:
            raise AssertionError

        with pytest.raises(StoreClosedError):
            host.start_soon(never)


async def test_its_end_gives_the_directory_away() -> None:
    """The descriptor of the directory is closed only when the last actor has ended."""
    disk = HeldDisk()
    async with hosting(disk) as host, anyio.create_task_group() as tasks:
        disk.hold("datasync")
        tasks.start_soon(host.ask, "r", put_message(entry()))
        await disk.reached()
        host.begin_close()
        await ticks(20)
        names_meanwhile = list(host.root.directory.names())
        disk.free()

    assert "r.tokens.jsonl" in names_meanwhile
    with pytest.raises(OSError, match="Bad file descriptor"):
        list(host.root.directory.names())


async def test_statistics_count_all_hosts() -> None:
    """Actors, queues and latencies of the daemon thread's host are counted with those of the entered loop."""
    async with store_on(SimulatedDisk()) as store:
        await store.put(entry())
        store.append(entry("c1", rollout_id="other"))
        statistics = store.statistics()

    assert statistics.actors == 2
    assert statistics.puts == 2
    assert statistics.queued == 0
    assert len([host for host in store._home.hosts if host.latencies]) == 2


async def test_lanes_end_with_their_host() -> None:
    """A host ends although lanes were told to stay, as they are by an actor whose start a Ctrl-C broke off."""
    with anyio.fail_after(20):
        async with hosting() as host:
            host.threads.keep()
            done = await host.threads.commit(divmod, 7, 2)

    assert done == (3, 1)
