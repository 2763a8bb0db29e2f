"""Many rollouts: 10,000 that are open at once, and a directory that holds 100,000."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import anyio

from benchmarks.contenders.ours import PER_FILE
from benchmarks.harness.baselines import line_of
from benchmarks.harness.children import in_child, open_descriptors, resident_bytes
from benchmarks.harness.load import check_stored
from benchmarks.harness.shapes import Shape, rollout_of, rollouts_of, work_out_of_sight
from benchmarks.harness.statistics import median
from benchmarks.harness.suite import OURS, Key, Run, Target, Values
from tokenstore import StoreConfig, TokenCaptureStore, TokenEntry

TITLE = "Scale: 10,000 open rollouts, 100,000 in the directory"
PLOTS = ("KB a rollout", "ms")
SHAPE = Shape(100, 20)
"""A small entry: what grows with the number of rollouts does not depend on it."""
OPEN, CALLS = 10_000, 10
WAVE = 500
"""Rollouts that put at once."""
OPEN_CASE = f"{OPEN:,} open rollouts of {CALLS} entries"
WAITING, RETIRED = f"{OURS}, actors waiting", f"{OURS}, idle for long"
IDLE_CASE = "first put after idling"
SHORT, LONG = 10, 500
"""Entries of the rollouts that are put to after idling."""
IDLE_SECONDS = 0.2
NEVER = 1e6
"""Seconds after which an actor retires, where none should."""
IN_DIRECTORY, FEW = 100_000, 100
OPENING = "opening and one put"
LISTING = "rollouts()"
LISTED = 5_000
"""Rollouts listed while memory is watched, which takes time; all their names are there."""


def targets() -> list[Target]:
    """What is not used costs nothing, or nearly."""
    put = partial(Key, IDLE_CASE, what="ms")
    found = [
        Target(text="descriptors", value=Key(OPEN_CASE, WAITING, "descriptors"), at_most=256),
        Target(text="KB a rollout, actors waiting", value=Key(OPEN_CASE, WAITING, "KB a rollout"), at_most=8.0),
        Target(text="KB a rollout, idle for long", value=Key(OPEN_CASE, RETIRED, "KB a rollout"), at_most=8.0),
    ]
    for entries, limit in ((SHORT, 2.0), (LONG, 5.0)):
        first, warm = put(f"{entries} entries, first"), put(f"{entries} entries, warm")
        found.append(
            Target(text=f"put after idling, {entries} entries, over warm", value=first, over=warm, at_most=limit)
        )
    many, few = (Key(OPENING, f"{count:,} rollouts there", "ms") for count in (IN_DIRECTORY, FEW))
    found.append(Target(text=f"opening with {IN_DIRECTORY:,} rollouts over {FEW}", value=many, over=few, at_most=2.0))
    many, few = (Key(LISTING, f"{count:,} rollouts there", "peak KB") for count in (IN_DIRECTORY, FEW))
    found.append(Target(text=f"rollouts(): peak with {IN_DIRECTORY:,} over {FEW}", value=many, over=few, at_most=1.2))
    return found


def measure(run: Run) -> Values:
    """Measure open rollouts in processes of their own, then idling, then a large directory."""
    values: Values = {}
    root, count = run.place(), run.size(OPEN, 50)
    for who, footprint in ((WAITING, waiting), (RETIRED, retired)):
        for what, value in in_child(footprint, root, count):
            values[Key(OPEN_CASE, who, what)] = value
    check_stored(PER_FILE, root, count * (CALLS + 1))
    for entries in (SHORT, LONG):
        found = anyio.run(_after_idling, run.place(), entries, run.size(20, 1), backend="asyncio")
        for who, seconds in zip(("first", "warm"), found, strict=True):
            values[Key(IDLE_CASE, f"{entries} entries, {who}", "ms")] = seconds * 1e3
    for count in (FEW, IN_DIRECTORY):
        values.update(_directory(run, count, run.size(count, 100)))
    return values


def waiting(root: Path, count: int) -> list[tuple[str, float]]:
    """Write that many rollouts, and give memory and descriptors while all their actors wait for more."""
    rollouts = rollouts_of(SHAPE, count, CALLS)
    return anyio.run(_footprint, root, rollouts, NEVER, backend="asyncio")


def retired(root: Path, count: int) -> list[tuple[str, float]]:
    """Put once more to each of the rollouts that are there, and give the same when their actors have gone."""
    rollouts = [rollout_of(SHAPE, f"rollout-{number:05d}", 1, first=CALLS) for number in range(count)]
    return anyio.run(_footprint, root, rollouts, IDLE_SECONDS, backend="asyncio")


async def _footprint(root: Path, rollouts: list[list[TokenEntry]], idle_seconds: float) -> list[tuple[str, float]]:
    await _put_waves(root.with_name("warm-up"), rollouts_of(SHAPE, 50, CALLS))  # imports, threads and their stacks
    before = resident_bytes()
    async with TokenCaptureStore(root, config=StoreConfig(idle_seconds=idle_seconds)) as store:
        descriptors = await _put_all(store, rollouts)
        if idle_seconds < NEVER:
            await _idle(store)
            descriptors = open_descriptors()
        kilobytes = (resident_bytes() - before) / len(rollouts) / 1e3
        return [("KB a rollout", kilobytes), ("descriptors", float(descriptors))]


async def _put_waves(root: Path, rollouts: Sequence[Sequence[TokenEntry]]) -> None:
    async with TokenCaptureStore(root) as store:
        await _put_all(store, rollouts)


async def _put_all(store: TokenCaptureStore, rollouts: Sequence[Sequence[TokenEntry]]) -> int:
    """Put to rollouts in waves, all entries of one at once, and give the most descriptors that were open."""
    most = 0
    for start in range(0, len(rollouts), WAVE):
        async with anyio.create_task_group() as tasks:
            for entries in rollouts[start : start + WAVE]:
                for entry in entries:
                    tasks.start_soon(store.put, entry)
            await anyio.sleep(0.05)  # in the middle of the wave
            most = max(most, open_descriptors())
    return max(most, open_descriptors())


async def _idle(store: TokenCaptureStore) -> None:
    """Wait until every actor has gone."""
    while store.statistics().actors:
        await anyio.sleep(0.05)


async def _after_idling(root: Path, entries: int, rollouts: int) -> tuple[float, float]:
    """Seconds of the first put to a rollout whose actor has gone, and of the next one."""
    first: list[float] = []
    warm: list[float] = []
    async with TokenCaptureStore(root, config=StoreConfig(idle_seconds=IDLE_SECONDS)) as store:
        known = [rollout_of(SHAPE, f"rollout-{number:03d}", entries + 3) for number in range(rollouts)]
        await _put_all(store, [calls[:entries] for calls in known])
        await _idle(store)
        with work_out_of_sight():
            for calls in known:
                first.append(await _seconds(store, calls[entries]))
                warm += [await _seconds(store, call) for call in calls[entries + 1 :]]
    check_stored(PER_FILE, root, sum(map(len, known)))
    return median(first), median(warm)


async def _seconds(store: TokenCaptureStore, entry: TokenEntry) -> float:
    started = perf_counter()
    await store.put(entry)
    return perf_counter() - started


def _directory(run: Run, nominal: int, count: int) -> Values:
    """Measure opening a directory of many rollouts, and listing it."""
    root, who = run.place(), f"{nominal:,} rollouts there"
    root.mkdir()
    line = line_of(rollout_of(SHAPE, "rollout", 1)[0])
    for number in range(count):
        (root / f"there-{number:06d}.tokens.jsonl").write_bytes(line)
    values: Values = {}
    times = [anyio.run(_open_and_put, root, number, backend="asyncio") for number in range(5)]
    values[Key(OPENING, who, "ms")] = median(times) * 1e3
    seconds, peak = anyio.run(_list, root, count + len(times), backend="asyncio")
    values[Key(LISTING, who, "ms")] = seconds * 1e3
    values[Key(LISTING, who, "peak KB")] = peak / 1e3
    return values


async def _open_and_put(root: Path, number: int) -> float:
    (entry,) = rollout_of(SHAPE, f"new-{number}", 1)
    started = perf_counter()
    async with TokenCaptureStore(root) as store:
        await store.put(entry)
        return perf_counter() - started


async def _list(root: Path, expected: int) -> tuple[float, float]:
    """Seconds of a listing, and the peak of memory in the first part of another one."""
    async with TokenCaptureStore(root) as store:
        started = perf_counter()
        found = 0
        async for _ in store.rollouts():
            found += 1
        seconds = perf_counter() - started
        if found != expected:
            raise RuntimeError(f"{found} of {expected} rollouts were listed")
        tracemalloc.start()
        listing = store.rollouts()
        for _ in range(min(found, LISTED)):
            await anext(listing)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return seconds, float(peak)
