"""Reading one by one what is fetched in slices, and readings that are left half-way."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from tests.loops import HeldDisk, descriptors, nothing_leaks, store_on, ticks
from tests.samples import entry
from tokenstore import TokenCaptureStore
from tokenstore.slices import Slices
from tokenstore.store import LISTING_SLICE
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def sliced(*slices: list[T] | Exception) -> Callable[[], Awaitable[list[T]]]:
    """Fetch prepared slices one after the other, or raise; then empty ones."""
    rest = list(slices)

    async def read() -> list[T]:
        part = rest.pop(0) if rest else []
        if isinstance(part, Exception):
            raise part
        return part

    return read


async def all_of(items: AsyncIterator[T]) -> list[T]:
    """Read to the end."""
    return [item async for item in items]


async def test_items_come_one_by_one() -> None:
    """Slices of any size give their items in order, until one is empty."""
    assert await all_of(Slices(sliced([1], [2, 3, 4], [5]))) == [1, 2, 3, 4, 5]
    assert await all_of(Slices(sliced())) == []


async def test_the_end_stays_the_end() -> None:
    """After its end a reading gives nothing more, and fetches nothing."""
    reading = Slices(sliced([1], [], [2]))
    assert await all_of(reading) == [1]

    assert await all_of(reading) == []


async def test_nothing_is_fetched_before_it_is_wanted() -> None:
    """A reading fetches its first slice with its first item."""
    reading: Slices[int] = Slices(sliced(ValueError("fetched")))

    with pytest.raises(ValueError, match="fetched"):
        await anext(reading)


async def test_a_reading_that_was_broken_off_does_not_end() -> None:
    """After an error a reading raises: it must not look like one that came to its end."""
    reading = Slices(sliced([1], ValueError("lost"), [2]))
    assert await anext(reading) == 1
    with pytest.raises(ValueError, match="lost"):
        await anext(reading)

    with pytest.raises(RuntimeError, match="begin a new one"):
        await anext(reading)


async def test_two_readers_of_one_reading() -> None:
    """A second task that reads while a slice is being fetched is told so, and does not disturb the first."""
    fetch = anyio.Event()

    async def read() -> list[int]:
        await fetch.wait()
        return [1]

    reading = Slices(read)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reading.__anext__)
        await ticks(3)
        with pytest.raises(RuntimeError, match="another task"):
            await anext(reading)
        fetch.set()


async def test_it_may_be_closed() -> None:
    """Those who close what they iterate may do so."""
    async with aclosing(Slices(sliced([1, 2, 3]))) as reading:
        first = await anext(reading)
    rest = await all_of(reading)

    assert (first, rest) == (1, [])


class TestStore:
    """Readings of a store."""

    @pytest.mark.parametrize("entered", [True, False])
    async def test_left_half_way(self, entered: bool, tmp_path: Path) -> None:
        """A reading that is left half-way and collected closes what it had open, and no loop complains."""
        with nothing_leaks(tmp_path):
            store = TokenCaptureStore(tmp_path)
            if entered:
                await store.__aenter__()
            async with anyio.create_task_group() as tasks:
                for number in range(LISTING_SLICE + 2):
                    tasks.start_soon(store.put, entry("c0", rollout_id=f"r{number}"))
            gc.collect()
            before = len(descriptors())
            for _ in range(3):
                async for _status in store.rollouts():
                    break
                async for _entry in store.entries("r0"):
                    break
            gc.collect()
            await ticks(5)
            after = len(descriptors())
            await (store.__aexit__(None, None, None) if entered else store.close())

        assert after <= before  # fewer where actors have become idle meanwhile

    async def test_cancelled_in_a_slice(self) -> None:
        """A reading that is cancelled while a slice is read cannot go on; a new one gives all."""
        disk = HeldDisk()
        async with store_on(disk) as store:
            for number in range(3):
                await store.put(entry(f"c{number}"))
            reading = store.entries("r")
            async with anyio.create_task_group() as tasks:
                disk.hold("read")
                tasks.start_soon(all_of, reading)
                await disk.reached()
                tasks.cancel_scope.cancel()
                disk.free()
            with pytest.raises(RuntimeError, match="begin a new one"):
                await all_of(reading)
            calls = [each.model_call_id for each in await all_of(store.entries("r"))]

        assert calls == ["c0", "c1", "c2"]

    async def test_two_readings_at_once(self) -> None:
        """Readings of one rollout do not disturb each other."""
        async with store_on(SimulatedDisk()) as store:
            for number in range(5):
                await store.put(entry(f"c{number}"))
            one, other = store.entries("r"), store.entries("r")
            calls = [((await anext(one)).model_call_id, (await anext(other)).model_call_id) for _ in range(5)]

        assert calls == [(f"c{number}", f"c{number}") for number in range(5)]
