"""Getting rid of 1,000 rollouts: retire and drop leave a fence, delete takes that too.

What the store must do at least is to write one fence for each rollout durably; or, for delete, to unlink its files.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import anyio

from benchmarks.contenders import Contender, ours
from benchmarks.harness.baselines import in_threads
from benchmarks.harness.load import side_by_side
from benchmarks.harness.shapes import SMALL, rollouts_of, work_out_of_sight
from benchmarks.harness.suite import DISK, OURS, Key, Run, Target, Values
from tokenstore import TokenCaptureStore

TITLE = "Removal: 1,000 rollouts"
PLOTS = ("ms",)
COUNT = 1000
RETIRE, DROP, DELETE = "retire, one batch", "1,000 drops at once", "delete what is retired"
DELETE_OPEN = "delete what is open"
FENCE = (
    b'{"entry_digests":{},"frozen":true,"incomplete":false,"indexed_size":0,"refusals":[],"retired":true,"version":2}\n'
)
"""As long as a fence is."""
THREADS = (8, 16, 32)
"""Numbers of threads tried for fences that need not wait for each other."""
IN_THREADS = f"{DISK}, best of threads"


def targets() -> list[Target]:
    """Little more than what must be written, and shared syncs."""
    ms = partial(Key, what="ms")
    return [
        Target(
            text=f"{case}: over one fsynced fence file each", value=ms(case, OURS), over=ms(case, DISK), at_most=limit
        )
        for case, limit in ((RETIRE, 1.5), (DROP, 1.5))
    ] + [Target(text=f"{DELETE}: over unlinking", value=ms(DELETE, OURS), over=ms(DELETE, DISK), at_most=2.0)]


def measure(run: Run) -> Values:
    """Measure each way of removing beside what it must do at least."""
    count = run.size(COUNT, 30)
    steps: list[Callable[[], Values]] = [
        partial(_fences, run, count),
        partial(_unlinking, run, count),
        *[partial(_store, run.place(), name, count) for name in ours.CONFIGS],
        *[partial(_contender, run.place(), other, other.remove, count) for other in run.contenders if other.remove],
    ]
    values: Values = {}
    for step in run.turn(steps):
        values.update(step())
    return values


def _fences(run: Run, count: int) -> Values:
    """Write a synced file for each rollout: one after the other, and the best that threads do."""
    one = _write_fences(run.place(), count, 1)
    best = min(_write_fences(run.place(), count, threads) for threads in run.size(THREADS, (8,)))
    return {Key(case, who, "ms"): ms for case in (RETIRE, DROP) for who, ms in ((DISK, one), (IN_THREADS, best))}


def _write_fences(folder: Path, count: int, threads: int) -> float:
    folder.mkdir()

    def own_share(number: int) -> None:
        for rollout in range(number, count, threads):
            _write_fence(folder / str(rollout))

    return in_threads(threads, own_share, count).seconds * 1e3


def _write_fence(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    os.write(descriptor, FENCE)
    os.fsync(descriptor)
    os.close(descriptor)


def _unlinking(run: Run, count: int) -> Values:
    """Unlink the two files that a retired rollout has, then sync the directory."""
    folder = run.place()
    folder.mkdir()
    paths = [folder / f"{number}.{kind}" for number in range(count) for kind in ("state", "lock")]
    for path in paths:
        _write_fence(path)
    started = perf_counter()
    for path in paths:
        path.unlink()
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return {Key(DELETE, DISK, "ms"): (perf_counter() - started) * 1e3}


def _store(root: Path, name: str, count: int) -> Values:
    values = anyio.run(_measure_store, root, name, count, backend="asyncio")
    if any(root.glob("*.jsonl")):
        raise RuntimeError(f"{name} has not removed everything")
    return values


async def _measure_store(root: Path, name: str, count: int) -> Values:
    """Retire, drop and delete rollouts of one entry each with a store that has written them."""
    rollouts = rollouts_of(SMALL, 3 * count, 1)
    ids = [entries[0].rollout_id for entries in rollouts]
    retired, dropped, opened = ids[:count], ids[count : 2 * count], ids[2 * count :]
    values: Values = {}
    async with TokenCaptureStore(root, config=ours.CONFIGS[name]) as store:
        await side_by_side(store, rollouts)
        drops = [await _prepared_drop(store, rollout_id) for rollout_id in dropped]
        for case, work in (
            (RETIRE, partial(_retire, store, retired)),
            (DROP, partial(_all_at_once, drops)),
            (DELETE, partial(_delete, store, retired)),
            (DELETE_OPEN, partial(_delete, store, opened)),
        ):
            with work_out_of_sight():
                started = perf_counter()
                removed = await work()
            values[Key(case, name, "ms")] = (perf_counter() - started) * 1e3
            if case != DELETE and removed != count:
                raise RuntimeError(f"{case}: {removed} of {count} rollouts were removed")
    return values


async def _prepared_drop(store: TokenCaptureStore, rollout_id: str) -> Callable[[], Awaitable[bool]]:
    snapshot = await store.freeze(rollout_id)
    return partial(store.drop, rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)


async def _retire(store: TokenCaptureStore, rollout_ids: Sequence[str]) -> int:
    return len((await store.retire(rollout_ids))["removed"])


async def _delete(store: TokenCaptureStore, rollout_ids: Sequence[str]) -> int:
    return len((await store.delete(rollout_ids))["removed"])


async def _all_at_once(drops: Sequence[Callable[[], Awaitable[bool]]]) -> int:
    done: list[bool] = []

    async def one(drop: Callable[[], Awaitable[bool]]) -> None:
        done.append(await drop())

    async with anyio.create_task_group() as tasks:
        for drop in drops:
            tasks.start_soon(one, drop)
    return sum(done)


def _contender(
    place: Path, contender: Contender, remove: Callable[[Path, Sequence[str]], object], count: int
) -> Values:
    """Remove rollouts in the way of somebody else, which leaves no fence unless it is the reference."""
    rollouts = rollouts_of(SMALL, count, 1)

    async def fill() -> None:
        async with contender.open(place) as sink:
            await side_by_side(sink, [[contender.convert(entry) for entry in entries] for entries in rollouts])

    anyio.run(fill, backend="asyncio")
    started = perf_counter()
    remove(place, [entries[0].rollout_id for entries in rollouts])
    ms = (perf_counter() - started) * 1e3
    if contender.stored(place):
        raise RuntimeError(f"{contender.name} has not removed everything")
    return {Key("what others do to remove them", contender.name, "ms"): ms}
