"""Cases 21 and 29 to 35: loops, cancellation, other processes, full disks and few descriptors."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests import children
from tests.cases.given import ROOT, TOKENS, assert_same, entry, frozen, store_on
from tests.children import start
from tokenstore import DurabilityError, LockTimeoutError, StoreClosedError, StoreConfig, TokenCaptureStore
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk, first_difference

pytestmark = pytest.mark.anyio

TESTS = Path(__file__).parents[1]
MIB = 1024 * 1024


BACKENDS = pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
"""Of what takes a process of its own, trio runs with the long tests."""


def _check_bounded_memory(root: Path, backend: str, count: int, size: int, inflight: int) -> None:
    """Run a child that puts large entries all at once, and hold its memory to a bound that knows no count."""
    with start("big_entries", backend, root, count, size, inflight) as child:
        before, written, read, seen = map(int, child.finish())

    assert seen == count
    # A large entry is there as text, as encoded member, as line and as the bytes appended; reading holds two or three,
    # each as often, and what one thread has freed another may not get.
    assert written - before < 4 * inflight + 6 * size + 16 * MIB
    assert read - before < 4 * inflight + 12 * size + 16 * MIB


@BACKENDS
def test_case_21_large_entries_take_bounded_memory(backend: str, tmp_path: Path) -> None:
    """Forty entries of 1 MB at once take no more memory than a few of them, in put and while read one by one."""
    _check_bounded_memory(tmp_path, backend, 40, MIB, 2 * MIB)


@pytest.mark.kernel
@pytest.mark.timeout(300)
@BACKENDS
def test_case_21_fifty_entries_of_20_mb_take_bounded_memory(backend: str, tmp_path: Path) -> None:
    """The report's own size: a gigabyte of images, put at once, in a fraction of it."""
    _check_bounded_memory(tmp_path, backend, 50, 20 * MIB, 40 * MIB)


def test_case_29_every_async_test_runs_on_both_loops() -> None:
    """Every module with an async test gives it to anyio, whose fixture runs it on asyncio, uvloop and trio."""
    modules = {path.relative_to(TESTS): path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    asynchronous = {
        path: text for path, text in modules.items() if re.search(r"^ *async def test_", text, re.MULTILINE)
    }

    assert Path("cases/test_processes.py") in asynchronous
    assert [str(path) for path, text in asynchronous.items() if "pytest.mark.anyio" not in text] == []


async def test_case_29_the_loops_are_asyncio_and_trio(anyio_backend_name: str) -> None:
    """Each of these tests runs inside the event loop that its name says."""
    module = type(anyio.lowlevel.current_token().native_token).__module__

    assert module.split(".")[0] in {"asyncio": ("asyncio", "uvloop"), "trio": ("trio",)}[anyio_backend_name]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("native", [False, True], ids=["scope", "native"])
async def test_case_30_a_cancelled_put_is_whole_or_absent(
    native: bool, seed: int, tmp_path: Path, anyio_backend_name: str
) -> None:
    """Puts of megabytes cancelled at random points are each wholly there or not at all, and a retry is idempotent."""
    native = native and anyio_backend_name == "asyncio"
    chance = random.Random(seed)  # noqa: S311 - replayable, not secret
    given = [entry(number, output_items=[{"text": "B" * MIB}], token_item_index=0) for number in range(6)]
    async with TokenCaptureStore(tmp_path) as store:
        for each in given:
            put = _put_cancelled_natively if native else _put_cancelled
            await put(store, each, turns=int(chance.expovariate(1 / 30)))
        peeked = await store.peek("r")
        for each in given:
            await store.put(each)
            await store.put(each)
        snapshot = await store.freeze("r")

    by_call = {each.model_call_id: each for each in given}
    assert all(first_difference(by_call[each.model_call_id], each) is None for each in peeked.entries)
    assert sorted(each.model_call_id for each in snapshot.entries) == sorted(by_call)
    assert (snapshot.version, snapshot.incomplete) == (len(given) + 1, False)


async def _put_cancelled(store: TokenCaptureStore, given: Any, turns: int) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, given)
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def _put_cancelled_natively(store: TokenCaptureStore, given: Any, turns: int) -> None:
    task = asyncio.ensure_future(store.put(given))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_case_31_a_lock_held_elsewhere_delays_its_own_rollout_alone(tmp_path: Path) -> None:
    """While another process holds one rollout's lock and 64 puts wait for it, a put to another rollout goes through."""
    done: list[str] = []

    async def put(store: TokenCaptureStore, number: int) -> None:
        await store.put(entry(number))
        done.append("r")

    async with TokenCaptureStore(tmp_path) as store:
        with start("hold_lock", store.lock_path_for("r")) as holder:
            assert await anyio.to_thread.run_sync(holder.line) == "locked"
            async with anyio.create_task_group() as tasks:
                for number in range(64):
                    tasks.start_soon(put, store, number)
                for number in range(20):
                    await store.put(children.entry("other", f"c{number}"))
                assert done == []
                holder.say()
        snapshot = await store.freeze("r")

    assert (len(done), len(snapshot.entries)) == (64, 64)


async def test_case_31_many_blocked_rollouts_take_no_thread_from_the_others(tmp_path: Path) -> None:
    """More rollouts blocked by locks than there are worker threads do not keep another rollout waiting."""
    locked = [tmp_path / f"b{number}.tokens.lock" for number in range(40)]
    files = [path.open("a") for path in locked]
    for file in files:
        fcntl.flock(file, fcntl.LOCK_EX)

    async with TokenCaptureStore(tmp_path) as store, anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(store.put, children.entry(f"b{number}", "c"))
        for number in range(10):
            await store.put(children.entry("free", f"c{number}"))
        for file in files:
            file.close()

    assert len(TokenCaptureStore(tmp_path).read_entries("b39")) == 1


async def test_case_31_a_lock_that_is_never_given_back_is_a_clear_error(tmp_path: Path) -> None:
    """After the deadline the error names the lock file; nothing was changed and the same put works later."""
    store = TokenCaptureStore(tmp_path, config=StoreConfig(lock_timeout=0.05))
    path = store.lock_path_for("r")
    async with store:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(LockTimeoutError, match=path.name):
                await store.put(entry(1))
            assert [found.name for found in tmp_path.iterdir()] == [path.name]
        await store.put(entry(1))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1))


@pytest.mark.parametrize("entered", [True, False], ids=["entered", "daemon"])
async def test_case_32_closing_answers_every_queued_put(entered: bool, tmp_path: Path) -> None:
    """Closed with a hundred puts queued, each is durable or raised, and none is left without an answer."""
    outcomes: dict[int, str] = {}

    async def put(number: int) -> None:
        try:
            await store.put(entry(number))
            outcomes[number] = "durable"
        except StoreClosedError:
            outcomes[number] = "raised"

    store = TokenCaptureStore(tmp_path)
    if entered:
        await store.__aenter__()
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(put, number)
        await anyio.lowlevel.checkpoint()
        await store.close()
    if entered:
        await store.__aexit__(None, None, None)

    there = {each.model_call_id for each in TokenCaptureStore(tmp_path).read_entries("r")}
    assert len(outcomes) == 100
    assert {f"c{number}" for number, outcome in outcomes.items() if outcome == "durable"} <= there


@BACKENDS
def test_case_33_many_rollouts_work_with_few_descriptors(backend: str, memory_path: Path) -> None:
    """Five hundred rollouts in use at once all work in a process that may open 64 files."""
    with start("many_rollouts", backend, memory_path, 500, 64) as child:
        assert child.finish() == ["worked"]


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_case_34_a_file_system_without_locks_is_refused(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where flock does not work the store does not open, and says why."""

    def broken_flock(_fd: int, _operation: int) -> None:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    monkeypatch.setattr(fcntl, "flock", broken_flock)

    with pytest.raises(OSError, match="no working flock") as caught:
        TokenCaptureStore(tmp_path)

    assert caught.value.errno == getattr(errno, code)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS"])
async def test_case_34_a_lock_that_fails_later_is_an_error_too(code: str) -> None:
    """There is no mode without locks: where taking one fails later, the operation raises and writes nothing."""
    disk = SimulatedDisk()
    failing = FailingDisk(disk, Fault(call="lock", errno=getattr(errno, code), repeat=True))

    async with store_on(failing) as store:
        with pytest.raises(DurabilityError, match="lock"):
            await store.put(entry(1))
        left = set(disk.files(ROOT))
        failing.fault = None
        await store.put(entry(1))

    assert left == {"r.tokens.lock"}
    assert_same((await frozen(disk)).entries, entry(1))


def _check_two_writers(root: Path, count: int, kills: int, fills: int, seed: int) -> None:
    """Run two writers, kill one now and then, fill the disk of the other, and account for what was acknowledged."""
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)  # noqa: S311 - replayable, not secret
    acked: set[str] = set()
    path = root / TOKENS.name
    with start("put_many", root, "full", count) as filled:
        for life in range(kills + 1):
            with start("put_many", root, f"killed{life}-", count // (kills + 1)) as killed:
                for _ in range(fills):
                    _limit(filled.process.pid, path.stat().st_size + chance.randrange(600) if path.exists() else 600)
                    acked |= _acked(filled, chance.randrange(1, 4))
                    _limit(filled.process.pid, resource.RLIM_INFINITY)
                    acked |= _acked(filled, chance.randrange(1, 4))
                acked |= _acked(killed, chance.randrange(1, 1 + count // (kills + 1)))
                if life < kills:
                    killed.process.kill()
                acked |= {line.split()[1] for line in killed.last_words()[1] if line.startswith("acked")}
        acked |= {line.split()[1] for line in filled.finish() if line.startswith("acked")}

    snapshot = TokenCaptureStore(root).freeze_now("r")

    there = [each.model_call_id for each in snapshot.entries]
    assert acked - set(there) == set()
    assert len(there) == len(set(there))
    assert path.read_bytes().count(b"\n") == len(there)
    assert not snapshot.incomplete
    for each in snapshot.entries:
        number = int(each.model_call_id.removeprefix("full").split("-")[-1])
        assert first_difference(children.entry("r", each.model_call_id, number=number), each) is None


def _limit(pid: int, size: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _acked(child: children.Child, lines: int) -> set[str]:
    """Read some of what a child says, and give the calls that were acknowledged."""
    said = [child.line() for _ in range(lines)]
    return {line.split()[1] for line in said if line.startswith("acked")}


def test_case_35_two_writers_lose_nothing_acked(tmp_path: Path) -> None:
    """Of two processes that write one rollout, one killed, one with a full disk, nothing acked is lost or doubled."""
    _check_two_writers(tmp_path, 60, kills=2, fills=3, seed=35)


@pytest.mark.kernel
@pytest.mark.parametrize("seed", range(3))
def test_case_35_two_writers_of_a_thousand_entries(seed: int, tmp_path: Path) -> None:
    """The report's own size: a thousand entries each, ten kills, the disk full sixty times."""
    _check_two_writers(tmp_path, 1000, kills=10, fills=6, seed=seed)
