"""Callers that are cancelled at any moment and in any way: nothing stalls, nothing leaks, every account is exact.

`TOKENSTORE_CANCELLATIONS=50000` runs so many operations on each event loop instead of 1,000.
"""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.cancelling import by_scope, cancelled_after, many_lives, natively
from tests.conftest import LOOPS
from tests.loops import Outcomes, nothing_leaks, opened, store_tasks, ticks, until
from tests.samples import entry
from tokenstore import StoreClosedError, StoreConfig, TokenCaptureStore

pytestmark = pytest.mark.anyio

OPERATIONS = int(os.environ.get("TOKENSTORE_CANCELLATIONS", "1000"))
CHUNK = 250
"""Operations of one test, at least, and twice as many where there is one way to cancel and not two."""
SEEDS = range(max(1, OPERATIONS // (4 * CHUNK)))
"""On each loop a seed has so many chunks: two ways to hold a store, two to cancel."""
FEW = range(max(1, OPERATIONS // 5_000))
"""Seeds of what takes longer than a chunk."""
LIMIT = 30.0
"""Seconds in which one test must come to its end."""
CONFIG = StoreConfig(idle_seconds=0.005, max_open_files=24, max_inflight_bytes=256 * 1024)
"""Actors that retire at once, few descriptors, and bytes that have to be waited for: as much happens as can."""


WAYS = [(loop, native) for loop in LOOPS for native in (False, True) if not native or loop.id != "trio"]
"""The loops, and whether callers are cancelled by scopes or natively by asyncio: trio knows only scopes."""


@pytest.fixture
def root(memory_path: Path) -> Path:
    """A directory in memory: thousands of operations are synced here."""
    return memory_path


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0].id}-{'native' if way[1] else 'scope'}")
def way(request: pytest.FixtureRequest) -> tuple[Any, bool]:
    """A loop and a way to cancel."""
    loop, native = request.param
    return loop.values[0], native


@pytest.fixture
def anyio_backend(way: tuple[Any, bool]) -> Any:
    """The loop of the way."""
    return way[0]


@pytest.fixture
def native(way: tuple[Any, bool]) -> bool:
    """Whether asyncio itself cancels."""
    return way[1]


@pytest.mark.parametrize("entered", [True, False], ids=["entered", "daemon"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_cancellation(root: Path, entered: bool, native: bool, seed: int, anyio_backend_name: str) -> None:
    """Whatever is cancelled: acked is there, the rest is whole or absent, retries are idempotent, versions exact."""
    operations = CHUNK if anyio_backend_name == "asyncio" else 2 * CHUNK
    with nothing_leaks(root), anyio.fail_after(LIMIT):
        async with opened(TokenCaptureStore(root, config=CONFIG), entered=entered) as store:
            begun = await many_lives(store, seed, operations, natively if native else by_scope)
            await until(lambda: store.statistics().actors == 0)
            in_flight = store.statistics().bytes_in_flight

    assert begun >= operations
    assert in_flight == 0
    assert store_tasks() == []


@pytest.mark.parametrize("seed", FEW)
async def test_cancelled_blocks(root: Path, native: bool, seed: int) -> None:
    """A task that is cancelled while it enters a store, works in it or leaves it ends, and has closed the store."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    acked: set[str] = set()

    async def serve(name: str) -> None:
        async def put(number: int) -> None:
            await store.put(entry(f"{name}-{number}"))
            acked.add(f"{name}-{number}")

        async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(put, number)

    with nothing_leaks(root), anyio.fail_after(LIMIT):
        for number in range(20):
            turns, times = int(chance.expovariate(1 / 60)), chance.randint(1, 3)
            await cancelled_after(turns, partial(serve, str(number)), native=native, times=times)
            assert store_tasks() == []
        async with TokenCaptureStore(root) as store:
            snapshot = await store.freeze("r")

    assert acked <= {each.model_call_id for each in snapshot.entries}
    assert not snapshot.incomplete


@pytest.mark.parametrize("entered", [True, False], ids=["entered", "daemon"])
@pytest.mark.parametrize("seed", FEW)
async def test_cancelled_close(root: Path, entered: bool, native: bool, seed: int) -> None:
    """A close that is cancelled with work in flight goes on; each put is durable or raised, and closing again waits."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    with nothing_leaks(root), anyio.fail_after(LIMIT):
        for number in range(10):
            outcomes, rollout_id = Outcomes(), f"r{number}"
            async with opened(TokenCaptureStore(root), entered=entered) as store, anyio.create_task_group() as tasks:
                for call in range(10):
                    value = entry(f"c{call}", rollout_id=rollout_id)
                    tasks.start_soon(outcomes.of, f"c{call}", store.put, value)
                await ticks(chance.randint(0, 60))
                await cancelled_after(chance.randint(0, 60), store.close, native=native)
                await store.close()
            async with TokenCaptureStore(root) as other:
                there = {each.model_call_id for each in (await other.peek(rollout_id)).entries}

            assert len(outcomes.results) + len(outcomes.errors) == 10
            assert {type(error) for error in outcomes.errors.values()} <= {StoreClosedError}
            assert outcomes.results.keys() <= there


@pytest.mark.parametrize("seed", FEW)
async def test_cancelled_readings(root: Path, native: bool, seed: int) -> None:
    """Listings and readings that are cancelled anywhere leave nothing open, and those to their end give all."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    calls = [f"c{number}" for number in range(30)]
    async with TokenCaptureStore(root) as store:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(store.put, entry(call, extra={"padding": "x" * 100_000}))
            for number in range(150):
                tasks.start_soon(store.put, entry(rollout_id=f"r{number}"))

        async def read() -> None:
            async for _ in store.entries("r"):
                await anyio.lowlevel.checkpoint()

        async def list_all() -> None:
            async for _ in store.rollouts():
                await anyio.lowlevel.checkpoint()

        with nothing_leaks(root / "r.tokens.jsonl" / "never"), anyio.fail_after(LIMIT):
            for _ in range(15):
                for reading in (read, list_all):
                    await cancelled_after(int(chance.expovariate(1 / 60)), reading, native=native)
        found = [each.model_call_id async for each in store.entries("r")]
        listed = [status.rollout_id async for status in store.rollouts()]

    assert sorted(found) == sorted(calls)
    assert len(listed) == 151
