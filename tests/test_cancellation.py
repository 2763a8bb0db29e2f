"""Callers that are cancelled at any moment and in any way: nothing stalls, nothing leaks, every account is exact.

`TOKENSTORE_CANCELLATIONS=50000` runs so many operations on each event loop instead of 2,000.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.cancelling import Canceller, by_scope, cancelled_after, many_lives, natively
from tests.loops import Outcomes, nothing_leaks, opened, store_tasks, ticks, until
from tests.samples import entry
from tokenstore import StoreClosedError, StoreConfig, TokenCaptureStore

pytestmark = pytest.mark.anyio

OPERATIONS = int(os.environ.get("TOKENSTORE_CANCELLATIONS", "2000"))
CHUNK = 500
"""Operations of one test, at least; a backend has four of them for each seed."""
SEEDS = range(max(1, OPERATIONS // (4 * CHUNK)))
LIMIT = 30.0
"""Seconds in which one test must come to its end."""
CONFIG = StoreConfig(idle_seconds=0.005, max_open_files=24, max_inflight_bytes=256 * 1024)
"""Actors that retire at once, few descriptors, and bytes that have to be waited for: as much happens as can."""


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory in memory, if the machine has one: thousands of operations are synced here."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of its own is made there
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(params=["scope", "native"])
def cancel(request: pytest.FixtureRequest, anyio_backend_name: str) -> Canceller:
    """How callers are cancelled; trio knows only scopes."""
    return natively if request.param == "native" and anyio_backend_name == "asyncio" else by_scope


@pytest.fixture(params=["scope", "native"])
def native(request: pytest.FixtureRequest, anyio_backend_name: str) -> bool:
    """Whether asyncio itself cancels; trio knows only scopes."""
    return request.param == "native" and anyio_backend_name == "asyncio"


@pytest.mark.parametrize("entered", [True, False], ids=["entered", "daemon"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_cancellation(root: Path, entered: bool, cancel: Canceller, seed: int) -> None:
    """Whatever is cancelled: acked is there, the rest is whole or absent, retries are idempotent, versions exact."""
    with nothing_leaks(root), anyio.fail_after(LIMIT):
        async with opened(TokenCaptureStore(root, config=CONFIG), entered=entered) as store:
            begun = await many_lives(store, seed, CHUNK, cancel)
            await until(lambda: store.statistics().actors == 0)
            in_flight = store.statistics().bytes_in_flight

    assert begun >= CHUNK
    assert in_flight == 0
    assert store_tasks() == []


@pytest.mark.parametrize("seed", range(2))
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
        for number in range(40):
            turns, times = int(chance.expovariate(1 / 60)), chance.randint(1, 3)
            await cancelled_after(turns, partial(serve, str(number)), native=native, times=times)
            assert store_tasks() == []
        async with TokenCaptureStore(root) as store:
            snapshot = await store.freeze("r")

    assert acked <= {each.model_call_id for each in snapshot.entries}
    assert not snapshot.incomplete


@pytest.mark.parametrize("entered", [True, False], ids=["entered", "daemon"])
@pytest.mark.parametrize("seed", range(2))
async def test_cancelled_close(root: Path, entered: bool, native: bool, seed: int) -> None:
    """A close that is cancelled with work in flight goes on; each put is durable or raised, and closing again waits."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    with nothing_leaks(root), anyio.fail_after(LIMIT):
        for number in range(20):
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


@pytest.mark.parametrize("seed", range(1))
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
            for _ in range(30):
                for reading in (read, list_all):
                    await cancelled_after(int(chance.expovariate(1 / 60)), reading, native=native)
        found = [each.model_call_id async for each in store.entries("r")]
        listed = [status.rollout_id async for status in store.rollouts()]

    assert sorted(found) == sorted(calls)
    assert len(listed) == 151
