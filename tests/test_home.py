"""Where a store's hosts are: entered or not, one loop or many, threads and twins, closed and used again."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.loops import (
    LOOPS,
    HeldDisk,
    Outcomes,
    calls_of,
    elsewhere,
    nothing_leaks,
    opened,
    run_in,
    store_on,
    store_tasks,
    ticks,
    until,
)
from tests.samples import entry
from tokenstore import StoreClosedError, TokenCaptureFrozenError, TokenCaptureRetiredError, TokenCaptureStore
from tokenstore.hosting import Host
from tokenstore.mailbox import put_message
from tokenstore.testing import Fault, SimulatedDisk

pytestmark = pytest.mark.anyio

FROM = pytest.mark.parametrize("loop", LOOPS)


def use_all_twins(store: TokenCaptureStore, name: str) -> None:
    """Use each of the blocking twins once, and look at what it gives."""
    rollout_id = f"twins-{name}"
    value = entry(rollout_id=rollout_id)
    store.append(value)
    assert store.read_entries(rollout_id) == [value]
    assert not store.is_incomplete(rollout_id)
    assert store.freeze_now(rollout_id).entries == (value,)
    assert store.retire_now([rollout_id]) == {"removed": [rollout_id], "absent": []}
    with pytest.raises(TokenCaptureRetiredError):
        store.append(value)
    assert store.read_entries(rollout_id) == []
    assert store.delete_now([rollout_id, "absent"]) == {"removed": [], "absent": [rollout_id, "absent"]}


async def use(store: TokenCaptureStore, rollout_id: str) -> None:
    """Use a store in all kinds of ways, and look at what it gives."""
    async with store.capture(rollout_id, "c0") as call:
        await call.put(entry(rollout_id=rollout_id))
    await store.refuse_call(rollout_id, model_call_id="c1", code="too long")
    assert [each.model_call_id async for each in store.entries(rollout_id)] == ["c0"]
    snapshot = await store.freeze(rollout_id)
    assert (len(snapshot.entries), len(snapshot.refusals), snapshot.incomplete) == (1, 1, False)
    assert rollout_id in [status.rollout_id async for status in store.rollouts()]
    assert await store.drop(rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    await store.delete([rollout_id])


class TestTwins:
    """The blocking twins, from wherever they are called."""

    def test_from_plain_threads(self, tmp_path: Path) -> None:
        """The twins work in a program without any loop, from several threads at once."""
        store = TokenCaptureStore(tmp_path)
        threads = [threading.Thread(target=use_all_twins, args=(store, str(number))) for number in range(4)]

        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        use_all_twins(store, "main")
        anyio.run(store.close)

        assert not any(thread.is_alive() for thread in threads)

    @pytest.mark.parametrize("entered", [True, False])
    async def test_inside_a_running_loop(self, entered: bool, tmp_path: Path) -> None:
        """The twins work on a thread that runs an event loop, which waits, also in the loop that entered the store."""
        store = TokenCaptureStore(tmp_path)
        if entered:
            async with store:
                await store.put(entry(rollout_id="twins-entered"))
                await store.delete(["twins-entered"])
                use_all_twins(store, "entered")
        else:
            use_all_twins(store, "loop")
            await store.close()

    async def test_beside_a_put_of_the_same_rollout(self, tmp_path: Path) -> None:
        """A twin that stops the loop in which puts of the same rollout are on their way does not deadlock with them."""
        async with TokenCaptureStore(tmp_path) as store:
            for number in range(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(store.put, entry(f"put-{number}"))
                    await ticks(number)
                    store.append(entry(f"append-{number}"))
            snapshot = await store.freeze("r")

        assert len(snapshot.entries) == 40
        assert (snapshot.version, snapshot.incomplete) == (41, False)


class TestOwnThreads:
    """A destructor may run on a store's own thread, which the store would wait for."""

    @pytest.mark.parametrize("entered", [True, False])
    @pytest.mark.parametrize("call", ["append", "put", "close"])
    async def test_on_a_worker(self, call: str, entered: bool) -> None:
        """Waiting for a store in one of its workers raises, does nothing, and does not harm the store."""
        outcomes = Outcomes()
        async with opened(store_on(SimulatedDisk()), entered=entered) as store:
            await store.put(entry())
            calls: dict[str, Callable[[], object]] = {
                "append": lambda: store.append(entry("never")),
                "put": lambda: anyio.run(store.put, entry("never")),
                "close": lambda: anyio.run(store.close),
            }
            await outcomes.of("reader", store.on_disk, lambda _: calls[call]())
            for host in store._home.hosts:
                if host.loop.is_running_here():
                    await outcomes.of("lane", host.threads.commit, calls[call])
            await store.put(entry("c1"))
            kept = await calls_of(store)

        assert kept == ["c0", "c1"]
        assert outcomes.errors.keys() == ({"reader", "lane"} if entered else {"reader"})
        for error in outcomes.errors.values():
            assert isinstance(error, StoreClosedError)
            assert "own thread" in str(error)

    async def test_on_the_hosts_thread(self) -> None:
        """Waiting for a store on the thread in which a host lives raises, whichever store it is."""
        store, other = store_on(SimulatedDisk()), store_on(SimulatedDisk())
        outcomes = Outcomes()

        async def wait(for_whom: TokenCaptureStore, host: Host) -> None:
            assert host.loop.is_running_here()
            for_whom.append(entry("never"))

        await outcomes.of("itself", store._home.run, partial(wait, store))
        await outcomes.of("another", store._home.run, partial(wait, other))
        await store.put(entry())
        kept = await calls_of(store)
        await store.close()

        assert kept == ["c0"]
        assert outcomes.errors.keys() == {"itself", "another"}
        assert {type(error) for error in outcomes.errors.values()} == {StoreClosedError}
        assert other._home.hosts == []

    async def test_a_borrowed_thread_is_given_back(self) -> None:
        """A worker thread of the loop that has worked for an entered store may call its twins afterwards."""
        async with store_on(SimulatedDisk()) as store:
            workers = {await store.on_disk(lambda _: threading.get_ident()) for _ in range(20)}
            async with anyio.create_task_group() as tasks:
                seen: set[int] = set()
                for number in range(20):
                    tasks.start_soon(anyio.to_thread.run_sync, append_and_note, store, f"c{number}", seen)
            kept = await calls_of(store)

        assert len(kept) == 20
        assert workers & seen


def append_and_note(store: TokenCaptureStore, call_id: str, seen: set[int]) -> None:
    """Put from this thread, and note which one it is."""
    store.append(entry(call_id))
    seen.add(threading.get_ident())


class TestLoops:
    """One object, used from several loops."""

    @FROM
    async def test_used_from_another_loop(self, loop: str, tmp_path: Path) -> None:
        """A store that one loop entered works from another loop in another thread, and from both at once."""
        async with TokenCaptureStore(tmp_path) as store, anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(elsewhere, loop, use, store, f"there-{number}")
                tasks.start_soon(use, store, f"here-{number}")

    @FROM
    async def test_one_rollout_from_two_loops(self, loop: str, tmp_path: Path) -> None:
        """Puts of one rollout from the entered loop and from another are serialised, and the versions are exact."""

        async def puts(name: str) -> None:
            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(store.put, entry(f"{name}-{number}"))
                    tasks.start_soon(store.put, entry(f"both-{number}"))

        async with TokenCaptureStore(tmp_path) as store:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(elsewhere, loop, puts, "there")
                tasks.start_soon(puts, "here")
            snapshot = await store.freeze("r")
            hosts = len(store._home.hosts)

        assert len(snapshot.entries) == len({each.model_call_id for each in snapshot.entries}) == 90
        assert (snapshot.version, snapshot.incomplete) == (91, False)
        assert hosts == 2

    @FROM
    def test_two_runs_with_one_object(self, loop: str, tmp_path: Path) -> None:
        """A store that was never entered works in a second run of a loop, and between two."""
        store = TokenCaptureStore(tmp_path)

        run_in(loop, use, store, "first")
        store.append(entry(rollout_id="between"))
        run_in(loop, use, store, "second")
        run_in(loop, store.close)

        assert [path.name for path in tmp_path.iterdir() if "first" in path.name or "second" in path.name] == []

    def test_entered_and_never_left(self, tmp_path: Path) -> None:
        """A loop that ends while a task of it is inside the store closes it: later calls raise."""
        store = TokenCaptureStore(tmp_path)
        tasks: list[asyncio.Future[None]] = []

        async def main() -> None:
            tasks.append(asyncio.ensure_future(enter_and_wait(store)))
            while not store._home.hosts:  # noqa: ASYNC110 - it announces itself by no event
                await asyncio.sleep(0)
            await store.put(entry())

        with nothing_leaks(tmp_path):
            run_in("asyncio", main)

        assert tasks[0].cancelled()
        with pytest.raises(StoreClosedError):
            store.append(entry("c1"))


class TestEntering:
    """`async with`, once."""

    async def test_calls_run_in_this_loop(self) -> None:
        """Inside, calls from this loop start no thread of the store."""
        async with store_on(SimulatedDisk()) as store:
            await use(store, "r")
            here = [host.loop.is_running_here() for host in store._home.hosts]

        assert here == [True]

    async def test_afterwards_it_is_closed(self) -> None:
        """After `async with` every call raises, and closing again is a no-op."""
        async with store_on(SimulatedDisk()) as store:
            await store.put(entry())
        outcomes = Outcomes()

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: store.put(entry()),
            "freeze": lambda: store.freeze("r"),
            "retire": lambda: store.retire(["r"]),
            "entries": lambda: anext(store.entries("r")),
            "rollouts": lambda: anext(store.rollouts()),
            "enter": store.__aenter__,
            "append": lambda: anyio.to_thread.run_sync(store.append, entry()),
            "retire_now": lambda: anyio.to_thread.run_sync(store.retire_now, ["r"]),
        }
        for name, call in calls.items():
            await outcomes.of(name, call)
        await store.close()

        assert outcomes.errors.keys() == calls.keys()
        assert {type(error) for error in outcomes.errors.values()} == {StoreClosedError}

    async def test_closed_inside(self) -> None:
        """A store may be closed inside its block; leaving the block is then a no-op."""
        async with store_on(SimulatedDisk()) as store:
            await store.put(entry())
            await store.close()
            with pytest.raises(StoreClosedError):
                await store.put(entry("c1"))

        assert not store_tasks()

    @FROM
    async def test_closed_from_elsewhere(self, loop: str) -> None:
        """A store that one loop entered may be closed from another, which returns when all is finished."""
        disk = HeldDisk()
        outcomes = Outcomes()
        async with store_on(disk) as store, anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(outcomes.of, "put", store.put, entry())
            await disk.reached()
            tasks.start_soon(outcomes.of, "close", elsewhere, loop, store.close)
            await ticks(20)
            before = dict(outcomes.results)
            disk.free()

        assert before == {}
        assert outcomes.results.keys() == {"put", "close"}

    async def test_entering_twice(self) -> None:
        """A second `async with` raises, whether the first is inside, on its way in or over, and does not harm it."""
        store = store_on(SimulatedDisk())
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcomes.of, "beside", ticks_then_enter, store)
            async with store:
                await outcomes.of("inside", store.__aenter__)
                await store.put(entry())
            await outcomes.of("after", store.__aenter__)

        assert {type(error) for error in outcomes.errors.values()} == {StoreClosedError}
        assert outcomes.errors.keys() == {"beside", "inside", "after"}

    async def test_what_the_body_raises_passes(self) -> None:
        """An error of the body leaves the block as it is, and the store is closed."""
        store = store_on(SimulatedDisk())

        with pytest.raises(TokenCaptureFrozenError) as caught:  # noqa: PT012 - the block is what is tested
            async with store:
                await store.freeze("r")
                await store.put(entry())

        assert type(caught.value) is TokenCaptureFrozenError
        with pytest.raises(StoreClosedError):
            await store.put(entry())

    async def test_groups_of_the_body_pass(self) -> None:
        """An exception group of the body leaves the block as it is too."""
        group = ExceptionGroup("mine", [ValueError("one"), KeyError("two")])

        with pytest.raises(ExceptionGroup) as caught:
            async with store_on(SimulatedDisk()):
                raise group

        assert caught.value is group

    async def test_what_keeps_it_from_opening_is_raised(self) -> None:
        """An error while entering leaves nothing entered: it passes as it is, and entering again works."""
        disk = HeldDisk()
        store = store_on(disk)
        disk.fault = Fault(call="open_root", errno=errno.EMFILE)

        with pytest.raises(OSError, match="Too many open files") as caught:
            await store.__aenter__()
        async with store:
            await store.put(entry())

        assert type(caught.value) is OSError

    async def test_cancelled_while_entering(self) -> None:
        """A caller that is cancelled while the directory is being opened gets away, and may enter again."""
        disk = HeldDisk()
        store = store_on(disk)
        async with anyio.create_task_group() as tasks:
            disk.hold("open_root")
            tasks.start_soon(enter_and_wait, store)
            await disk.reached()
            tasks.cancel_scope.cancel()
            disk.free()
        assert not store_tasks()

        again = store if not store._home._closed else store_on(disk)
        async with again:
            await again.put(entry())

    async def test_cancelled_inside(self) -> None:
        """A block that is cancelled finishes what was accepted, and the cancellation passes."""
        disk = HeldDisk()
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            scope = anyio.CancelScope()
            store = store_on(disk)

            async def serve() -> None:
                with scope:
                    async with store:
                        await anyio.sleep_forever()

            tasks.start_soon(serve)
            while not store._home.hosts:
                await ticks(1)
            disk.hold("datasync")
            tasks.start_soon(outcomes.of, "put", store.put, entry())
            await disk.reached()
            scope.cancel()
            await ticks(20)
            disk.free()

        assert scope.cancelled_caught
        assert "put" in outcomes.results
        assert not store_tasks()


class TestNeverEntered:
    """As in the seed: used without `async with`."""

    async def test_it_starts_again(self, tmp_path: Path) -> None:
        """Closing ends the thread and gives all descriptors back; the next call starts it again."""
        store = TokenCaptureStore(tmp_path)
        for number in range(3):
            with nothing_leaks(tmp_path):
                await store.put(entry(f"c{number}"))
                await store.close()

        assert len(store.read_entries("r")) == 3
        await store.close()

    async def test_nobody_knows_it_any_more(self, tmp_path: Path) -> None:
        """Stores that are dropped without being closed end their threads and give all descriptors back."""
        with nothing_leaks(tmp_path):
            for number in range(3):
                store = TokenCaptureStore(tmp_path)
                await store.put(entry(f"c{number}"))
                store.append(entry(f"t{number}"))
                del store

        assert (tmp_path / "r.tokens.jsonl").read_bytes().count(b"\n") == 6

    async def test_a_reading_knows_it(self) -> None:
        """A listing goes on although nobody else knows its store any more."""
        store = store_on(SimulatedDisk())
        for number in range(200):
            await store.put(entry(rollout_id=f"r{number}"))
        listing = store.rollouts()
        await anext(listing)
        home = store._home
        del store
        gc.collect()

        assert len([status async for status in listing]) == 199
        await home.close()

    async def test_dropped_in_a_child_of_a_fork(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A child that drops its parent's store leaves the parent's thread alone."""
        store, parent = store_on(SimulatedDisk()), os.getpid()
        await store.put(entry())
        thread = store._home._host_thread()

        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: parent + 1)
            del store
            gc.collect()
        was_over = thread.is_over
        thread.begin_close()
        await thread.join()

        assert not was_over

    async def test_closing_is_idempotent(self) -> None:
        """Closing a store that was never used, or twice, is a no-op."""
        store = store_on(SimulatedDisk())
        await store.close()
        await store.put(entry())
        await store.close()
        await store.close()

        assert await calls_of(store) == ["c0"]
        await store.close()

    async def test_used_while_it_closes(self) -> None:
        """A put that comes while the store closes raises or is stored by the next host; it never waits for ever."""
        disk = HeldDisk()
        store = store_on(disk)
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(outcomes.of, "taken", store.put, entry("taken"))
            await disk.reached()
            tasks.start_soon(store.close)
            await ticks(5)
            tasks.start_soon(outcomes.of, "meanwhile", store.put, entry("c1", rollout_id="other"))
            await ticks(5)
            disk.free()
        await store.close()

        assert outcomes.results.keys() == {"taken", "meanwhile"}

    async def test_who_is_late_is_told_to_call_again(self) -> None:
        """A call that meets a host that is closing is told to call again, and the next one works."""
        disk = HeldDisk()
        store = store_on(disk)
        outcomes = Outcomes()
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("taken"))
            await disk.reached()
            gate = store._home._host_thread().gate()
            tasks.start_soon(store.close)
            await until(lambda: gate.host._closing.rung)
            await outcomes.of("late", gate.cross, lambda host: host.ask("r", put_message(entry("late"))))
            disk.free()
        await store.put(entry("next"))
        kept = await calls_of(store)
        await store.close()

        assert kept == ["taken", "next"]
        assert "call again if it was never entered" in str(outcomes.errors["late"])

    async def test_a_reading_does_not_go_on_in_the_next_host(self) -> None:
        """A listing that was begun before the store was closed raises afterwards, and reads nothing else."""
        store = store_on(SimulatedDisk())
        for number in range(200):
            store.append(entry(rollout_id=f"r{number}"))
        listing = store.rollouts()
        await anext(listing)
        await store.close()

        with pytest.raises(StoreClosedError):
            _ = [status async for status in listing]
        await store.close()


async def enter_and_wait(store: TokenCaptureStore) -> None:
    """Enter a store, and stay."""
    async with store:
        await anyio.sleep_forever()


async def ticks_then_enter(store: TokenCaptureStore) -> None:
    """Enter a store a little later."""
    await ticks(1)
    await store.__aenter__()


def test_a_child_of_a_fork_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that the store was not made in every use raises and says what to do."""
    store = TokenCaptureStore(tmp_path)
    parent = os.getpid()

    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: parent + 1)
        for call in (
            lambda: store.append(entry()),
            lambda: anyio.run(store.put, entry()),
            lambda: anyio.run(store.retire, ["r"]),
            lambda: anyio.run(store.close),
            lambda: anyio.run(store.__aenter__),
        ):
            with pytest.raises(StoreClosedError, match="build one of your own"):
                call()
    store.append(entry())
    anyio.run(store.close)

    assert len(list(tmp_path.iterdir())) == 2
