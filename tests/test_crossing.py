"""From one loop or thread into a host's loop and back: nobody blocks a loop, and nobody is left waiting."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.loops import LOOPS, HeldDisk, Outcomes, calls_of, elsewhere, nothing_leaks, store_on, ticks, until
from tests.samples import entry
from tokenstore import InvalidEntryError, StoreClosedError, TokenCaptureStore
from tokenstore.crossing import Gate
from tokenstore.hosting import Host
from tokenstore.testing import Fault, PowerCut, SimulatedDisk

pytestmark = pytest.mark.anyio

FROM = pytest.mark.parametrize("loop", LOOPS)


def gate_of(store: TokenCaptureStore) -> Gate:
    """The way to the host in the daemon thread."""
    return store._home._host_thread().gate()


class TestCalling:
    """Results and errors come back to where they belong."""

    async def test_a_result_comes_back(self) -> None:
        """What a function gives in the host's loop reaches the caller, and it ran there and not here."""

        async def where(host: Host) -> tuple[bool, str]:
            return host.loop.is_running_here(), threading.current_thread().name

        store = store_on(SimulatedDisk())
        result = await gate_of(store).cross(where)
        await store.close()

        assert result == (True, "tokenstore")

    async def test_an_error_comes_back(self) -> None:
        """An error reaches the caller that it belongs to, as it is, and the host lives on."""
        store = store_on(SimulatedDisk())
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.of, "bad", store.put, entry("bad", generation_log_probs=[float("inf")] * 2))
            tasks.start_soon(outcomes.of, "good", store.put, entry("good"))
        await store.close()

        assert isinstance(outcomes.errors["bad"], InvalidEntryError)
        assert "good" in outcomes.results

    async def test_the_callers_loop_goes_on(self) -> None:
        """While a call waits for the other loop, this one runs other tasks."""
        disk = HeldDisk()
        store = store_on(disk)
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry())
            await disk.reached()
            await ticks(100)
            disk.free()
        await store.close()

        assert store.read_entries("r")
        await store.close()

    async def test_the_start_of_the_host_blocks_no_loop(self) -> None:
        """While the daemon thread is opening the directory, the caller's loop runs other tasks."""
        disk = HeldDisk()
        store = store_on(disk)
        async with anyio.create_task_group() as tasks:
            disk.hold("open_root")
            tasks.start_soon(store.put, entry())
            await disk.reached()
            await ticks(100)
            statistics = store.statistics()
            disk.free()
        calls = await calls_of(store)
        await store.close()

        assert statistics.actors == 0
        assert calls == ["c0"]

    @FROM
    async def test_many_callers_at_once(self, loop: str) -> None:
        """Puts from this loop, from another one and from plain threads meet in one host, and each is answered."""
        store = store_on(SimulatedDisk())

        async def puts(name: str) -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(store.put, entry(f"{name}-{number}"))

        def appends() -> None:
            for number in range(20):
                store.append(entry(f"thread-{number}"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(puts, "here")
            tasks.start_soon(elsewhere, loop, puts, "there")
            tasks.start_soon(anyio.to_thread.run_sync, appends)
        calls = await calls_of(store)
        hosts = len(store._home.hosts)
        await store.close()

        assert len(calls) == len(set(calls)) == 60
        assert hosts == 1


class TestCancelling:
    """A caller that goes takes along what was not begun."""

    async def test_cancelled_while_queued_it_is_never_written(self) -> None:
        """A put that is cancelled in this loop before the actor in the other took it leaves no byte."""
        disk, scope = HeldDisk(), anyio.CancelScope()
        store = store_on(disk)

        async def give_up() -> None:
            with scope:
                await store.put(entry("given-up"))

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            tasks.start_soon(give_up)
            await until(lambda: store.statistics().queued)
            scope.cancel()
            await until(lambda: scope.cancelled_caught)
            await gate_of(store).cross(nothing)  # what was sent to the host before has arrived there
            disk.free()
        calls = await calls_of(store)
        await store.close()

        assert calls == ["first"]

    async def test_cancelled_before_it_began_it_never_runs(self) -> None:
        """A call whose caller is gone before the host's loop comes to it is not begun."""
        store = store_on(SimulatedDisk())
        gate, began = gate_of(store), []
        stopped, free = threading.Event(), threading.Event()

        def stop() -> None:
            stopped.set()
            free.wait(20)

        async def begin(host: Host) -> None:
            began.append(host)

        gate.host.loop.call_soon(stop)
        await anyio.to_thread.run_sync(stopped.wait)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await gate.cross(begin)
        free.set()
        await gate.cross(nothing)
        await store.close()

        assert began == []

    async def test_cancelled_after_it_was_taken_it_is_written(self) -> None:
        """A put that is cancelled in this loop while the other writes it completes there."""
        disk, scope = HeldDisk(), anyio.CancelScope()
        store = store_on(disk)

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
        await store.close()

        assert calls == ["taken"]

    @FROM
    async def test_the_callers_loop_may_end(self, loop: str) -> None:
        """A loop that ends while a call of its waits leaves the host in order; what was taken is written."""
        disk = HeldDisk()
        store = store_on(disk)

        async def leave_early() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.put, entry("taken"))
                await disk.reached()
                tasks.cancel_scope.cancel()

        disk.hold("datasync")
        await elsewhere(loop, leave_early)
        disk.free()
        await store.put(entry("later"))
        calls = await calls_of(store)
        await store.close()

        assert calls == ["taken", "later"]


class TestEnding:
    """Whoever is inside when a host ends is told."""

    async def test_a_crash_is_not_taken_for_success(self) -> None:
        """When the host's loop is torn down in the middle of a put, its caller in another loop gets an error."""
        disk = SimulatedDisk()
        store = store_on(disk)
        await store.put(entry("acked"))
        disk.crash_at = disk.steps + 2

        thread = store._home._host_thread()
        with pytest.raises(StoreClosedError, match="unknown"):
            await store.put(entry("c1"))
        await thread.join()

    async def test_a_thread_does_not_take_a_crash_for_success(self) -> None:
        """The blocking twin raises when the host's loop is torn down in the middle of a put."""
        disk = SimulatedDisk()
        store = store_on(disk)
        store.append(entry("acked"))
        disk.crash_at = disk.steps + 2

        thread = store._home._host_thread()
        with pytest.raises(StoreClosedError, match="unknown"):
            await anyio.to_thread.run_sync(store.append, entry("c1"))
        await thread.join()

    async def test_what_kills_the_host_is_told_to_all(self, caplog: pytest.LogCaptureFixture) -> None:
        """When a call tears the host's loop down, it and all others inside get an error, and it is logged."""
        store = store_on(SimulatedDisk())
        thread, gate, outcomes = store._home._host_thread(), gate_of(store), Outcomes()

        async def wait(host: Host) -> None:
            assert host.loop.is_running_here()
            await anyio.sleep_forever()

        async def die(host: Host) -> None:
            raise PowerCut(f"with {host.actors} actors")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.of, "waits", gate.cross, wait)
            await gate.cross(nothing)
            tasks.start_soon(outcomes.of, "dies", gate.cross, die)
        await thread.join()
        await store.put(entry())
        await store.close()

        assert "thread died" in caplog.text
        assert {name: type(error) for name, error in outcomes.errors.items()} == dict.fromkeys(
            ["waits", "dies"], StoreClosedError
        )

    @pytest.mark.parametrize("blocking", [False, True])
    async def test_who_comes_while_it_dies_is_served_by_the_next(self, blocking: bool) -> None:
        """A call that comes while a host is dying waits for its end, and is done by the host that follows."""
        store = store_on(SimulatedDisk())
        dying, outcomes = store._home._host_thread(), Outcomes()
        gate, freed = gate_of(store), threading.Event()

        async def linger(host: Host) -> None:
            assert host.loop.is_running_here()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(freed.wait)

        async def die(host: Host) -> None:
            raise PowerCut(f"with {host.actors} actors")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.of, "lingers", gate.cross, linger)
            await gate.cross(nothing)
            await outcomes.of("dies", gate.cross, die)
            await until(lambda: gate.host._closing.rung)
            if blocking:
                tasks.start_soon(anyio.to_thread.run_sync, partial(store.append, entry()))
            else:
                tasks.start_soon(store.put, entry())
            await ticks(20)
            freed.set()
        calls = await calls_of(store)
        await store.close()

        assert calls == ["c0"]
        assert dying.is_over
        assert isinstance(outcomes.errors["dies"], StoreClosedError)

    def test_a_loop_that_was_thrown_away(self) -> None:
        """A store whose loop was closed from under it can be closed all the same."""
        store = store_on(SimulatedDisk())

        def throw_a_loop_away() -> None:
            loop = asyncio.new_event_loop()
            inside = loop.create_task(enter_and_wait(store))
            while not store._home.hosts:
                loop.run_until_complete(asyncio.sleep(0))
            loop.close()
            inside._log_destroy_pending = False  # type: ignore[attr-defined]  # as it is here, by intention

        # In a daemon thread: its worker threads are daemons then, and nobody ever tells these to end.
        thread = threading.Thread(target=throw_a_loop_away, daemon=True)
        thread.start()
        thread.join()
        anyio.run(store.close)

        with pytest.raises(StoreClosedError):
            store.append(entry())

    async def test_closing_finishes_calls_from_other_loops(self) -> None:
        """A put that another loop waits for is finished or raised when the store is closed."""
        disk, outcomes = HeldDisk(), Outcomes()
        store = store_on(disk)
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(outcomes.of, "taken", store.put, entry("taken"))
            await disk.reached()
            for number in range(100):
                tasks.start_soon(outcomes.of, f"c{number}", store.put, entry(f"c{number}"))
            await ticks(3)
            tasks.start_soon(store.close)
            await ticks(3)
            disk.free()
        calls = await calls_of(store)
        await store.close()

        assert set(calls) == outcomes.results.keys()
        assert "taken" in outcomes.results
        assert len(outcomes.results) + len(outcomes.errors) == 101
        assert {type(error) for error in outcomes.errors.values()} <= {StoreClosedError}

    async def test_nobody_comes_through_a_gate_that_is_shut(self) -> None:
        """A call through a gate whose host has ended raises at once, from a loop and from a thread."""
        store = store_on(SimulatedDisk())
        gate = gate_of(store)
        await store.close()

        with pytest.raises(StoreClosedError):
            await gate.cross(nothing)
        with pytest.raises(StoreClosedError):
            gate.wait(nothing)
        await gate.close()

    async def test_many_close_at_once(self) -> None:
        """Closing from several tasks and loops at once returns to each of them when all is done."""
        disk = HeldDisk()
        store = store_on(disk)
        ended: list[bool] = []

        async def close() -> None:
            await store.close()
            ended.append(disk.calls["close"] > 0)

        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry())
            await disk.reached()
            for loop in LOOPS:
                tasks.start_soon(elsewhere, loop, close)
            tasks.start_soon(close)
            await ticks(20)
            ended_early = list(ended)
            disk.free()

        assert ended_early == []
        assert ended == [True] * (len(LOOPS) + 1)

    async def test_a_cancelled_close_closes(self, tmp_path: Any) -> None:
        """A close whose caller is cancelled goes on without it."""
        with nothing_leaks(tmp_path):
            store = TokenCaptureStore(tmp_path)
            await store.put(entry())
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.close()

        assert len(store.read_entries("r")) == 1
        await store.close()


class TestStarting:
    """The daemon thread comes up, or says why not."""

    @pytest.mark.parametrize("call", [lambda store: store.put(entry()), lambda store: store.retire(["r"])])
    async def test_what_keeps_it_from_starting_is_raised(
        self, call: Callable[[TokenCaptureStore], Awaitable[object]]
    ) -> None:
        """An error while opening the directory reaches the first caller; the next call tries again."""
        disk = HeldDisk()
        store = store_on(disk)
        disk.fault = Fault(call="open_root", errno=errno.EMFILE)

        with pytest.raises(OSError, match="Too many open files"):
            await call(store)
        await call(store)
        await store.close()

    async def test_a_thread_is_told_too(self) -> None:
        """The blocking twins raise what keeps the host from starting, and try again; closing does not raise."""
        disk = HeldDisk()
        store = store_on(disk)
        disk.fault = Fault(call="open_root", errno=errno.EMFILE)

        with pytest.raises(OSError, match="Too many open files"):
            store.append(entry())
        statistics = store.statistics()
        await store.close()
        store.append(entry())
        await store.close()

        assert statistics.actors == 0


async def enter_and_wait(store: TokenCaptureStore) -> None:
    """Enter a store, and stay."""
    async with store:
        await anyio.sleep_forever()


async def nothing(host: Host) -> None:
    """A function for a host's loop that does nothing there."""
    assert host.loop.is_running_here()
