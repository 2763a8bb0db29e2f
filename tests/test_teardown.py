"""Loops that end with work in flight: asyncio cancels every task then, actors too, and waits for no thread."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.loops import ROOT, HeldDisk, Outcomes, nothing_leaks, run_in
from tests.samples import entry
from tokenstore import StoreClosedError, StoreConfig, TokenCaptureStore
from tokenstore.journal.disk import OsDisk
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Put
from tokenstore.journal.root import Root
from tokenstore.testing import Fault, SimulatedDisk
from tokenstore.testing.failing_disk import Call

LINES = "r.tokens.jsonl"
ASYNCIO = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


class LoggedDisk(HeldDisk):
    """A disk of this machine that stops where it is told and notes its calls in order."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.log: list[str] = []

    def due(self, call: Call, name: str) -> Fault | None:
        """Note a call when it is made, after standing still."""
        fault = super().due(call, name)
        self.log.append(f"{call} {name}")
        return fault


def free_later(disk: HeldDisk) -> None:
    """Let a disk go on when the loop that is ending has had time to do what it must not."""
    timer = threading.Timer(0.1, disk.free)
    timer.daemon = True
    timer.start()


@ASYNCIO
@pytest.mark.parametrize("call", ["lock", "write", "datasync"])
def test_a_loop_that_ends_waits_for_its_threads(loop: str, call: Call, tmp_path: Path) -> None:
    """No descriptor is closed, and none can be reused, while a thread is still in its critical section."""
    disk = LoggedDisk()

    async def main() -> None:
        store = TokenCaptureStore(tmp_path, _disk=disk)
        await store.__aenter__()
        await store.put(entry("acked"))
        disk.hold(call, LINES if call != "lock" else "")
        loose.append(asyncio.ensure_future(store.put(entry("in-flight"))))
        await disk.reached()
        disk.log.clear()
        free_later(disk)

    loose: list[asyncio.Future[None]] = []
    with nothing_leaks(tmp_path):
        run_in(loop, main)
        closed_at = disk.log.index(f"close {LINES}")
        other = TokenCaptureStore(tmp_path)
        calls = [each.model_call_id for each in other.read_entries("r")]
        anyio.run(other.close)

    assert loose[0].cancelled()
    assert not [each for each in disk.log[closed_at:] if not each.startswith(("close", "unlock"))]
    assert calls == ["acked", "in-flight"]


@ASYNCIO
@pytest.mark.parametrize("seed", range(4))
def test_every_task_is_cancelled_at_once(loop: str, seed: int, tmp_path: Path) -> None:
    """When everything in a loop is cancelled natively, the actors too, no waiter is left and nothing acked is lost."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    outcomes = Outcomes()

    async def stubborn(store: TokenCaptureStore, name: str) -> None:
        try:
            await store.put(entry(name))
            outcomes.results[name] = None
        except asyncio.CancelledError:
            await outcomes.of(f"{name}-again", store.put, entry(f"{name}-again"))

    async def serve(store: TokenCaptureStore) -> None:
        async with store:
            await asyncio.sleep(60)

    async def main() -> None:
        store = TokenCaptureStore(tmp_path)
        server = asyncio.ensure_future(serve(store))
        while not store._home.hosts:  # noqa: ASYNC110 - it announces itself by no event
            await asyncio.sleep(0)
        clients = [asyncio.ensure_future(stubborn(store, f"c{number}")) for number in range(20)]
        for _ in range(chance.randint(0, 80)):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*clients, server, return_exceptions=True), 20)
        with pytest.raises(StoreClosedError):
            await store.put(entry("late"))

    with nothing_leaks(tmp_path):
        run_in(loop, main)
        other = TokenCaptureStore(tmp_path)
        calls = {each.model_call_id for each in other.read_entries("r")}
        anyio.run(other.close)

    assert outcomes.results.keys() <= calls
    assert {type(error) for error in outcomes.errors.values()} <= {StoreClosedError}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_a_body_that_dies(loop: str, tmp_path: Path) -> None:
    """A block that is left by an exit of the program closes its store, and the exit passes as it is."""

    async def main() -> None:
        async with TokenCaptureStore(tmp_path) as store:
            await store.put(entry())
            raise SystemExit(3)

    with nothing_leaks(tmp_path), pytest.raises(SystemExit) as caught:
        run_in(loop, main)

    assert caught.value.code == 3


@ASYNCIO
def test_cancelled_again_and_again(loop: str, tmp_path: Path) -> None:
    """A task that is cancelled over and over while it leaves its store waits all the same until the store is closed."""
    disk = HeldDisk(OsDisk())
    outcomes = Outcomes()

    async def serve(store: TokenCaptureStore) -> None:
        async with store:
            await asyncio.sleep(60)

    async def main() -> None:
        store = TokenCaptureStore(tmp_path, _disk=disk)
        server = asyncio.ensure_future(serve(store))
        while not store._home.hosts:  # noqa: ASYNC110 - it announces itself by no event
            await asyncio.sleep(0)
        disk.hold("datasync")
        put = asyncio.ensure_future(outcomes.of("put", store.put, entry()))
        await disk.reached()
        for _ in range(10):
            server.cancel()
            await asyncio.sleep(0)
        ended_early = server.done()
        disk.free()
        with pytest.raises(asyncio.CancelledError):
            await server
        await put
        assert not ended_early
        assert not [host for host in store._home.hosts if host.actors]

    with nothing_leaks(tmp_path):
        run_in(loop, main)

    assert "put" in outcomes.results


def test_a_section_that_begins_too_late_does_nothing() -> None:
    """A thread that comes to a journal whose actor has ended touches no file."""
    disk = SimulatedDisk()
    journal = Journal(Root(disk.open_root(ROOT), StoreConfig()), "r")
    journal.close()

    late: list[Callable[[], object]] = [journal.freeze, journal.peek, partial(journal.finish, journal.fencing())]
    late.append(partial(journal.finish, journal.committing([Put(entry())])))
    for section in late:
        with pytest.raises(StoreClosedError):
            section()

    assert disk.files(ROOT) == {}
