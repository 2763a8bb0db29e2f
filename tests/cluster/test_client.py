"""A cluster store as its users hold it: where calls go, what removals tell, and direct writing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cluster.given import config, shard_plan
from tests.cluster.inprocess import cluster
from tests.cluster.test_channel import HeldTransport
from tests.samples import entry
from tokenstore import RemovalError, StoreClosedError, StoreStatistics, TokenCaptureStore, TokenSink, TokenSource
from tokenstore.cluster import streams
from tokenstore.cluster.channel import BrokenError, Channel, Done
from tokenstore.cluster.client import ClusterStore, ShardClient
from tokenstore.cluster.config import ClusterPlan, plan_of
from tokenstore.cluster.deploying import direct
from tokenstore.cluster.identity import identify
from tokenstore.cluster.placement import shard_of
from tokenstore.cluster.remote import IDS_ON_LOOP, RemoteShard
from tokenstore.cluster.totals import added_up
from tokenstore.cluster.wire import Failure
from tokenstore.distribution import Distribution
from tokenstore.errors import ClusterMismatchError, ShardUnavailableError
from tokenstore.journal.disk import OsDisk
from tokenstore.testing import first_difference

pytestmark = pytest.mark.anyio

IDS = [f"r{number}" for number in range(12)]


class Direct:
    """A link to shards that are all in directories of this process."""

    def __init__(self, root: Path) -> None:
        self.plan = plan_of(config(root), ["here"])
        self.resolved = 0

    def resolve(self) -> tuple[ClusterPlan, Sequence[ShardClient]]:
        """Find the shards."""
        self.resolved += 1
        stores = [TokenCaptureStore(shard.directory, config=shard.config) for shard in self.plan.shards]
        return self.plan, stores


@pytest.mark.parametrize("length", [IDS_ON_LOOP - 10, IDS_ON_LOOP + 10])
async def test_long_entries_arrive(tmp_path: Path, length: int) -> None:
    """An entry arrives value for value, whether it is encoded in the caller's loop or in a thread."""
    sent = entry(prompt_token_ids=list(range(length)))
    async with cluster(tmp_path) as there:
        await there.client().put(sent)
        snapshot = await there.client().freeze("r")

    assert first_difference(snapshot.entries[0], sent) is None


async def test_every_rollout_is_in_its_shard(tmp_path: Path) -> None:
    """A rollout is in the directory that its hash says, and there the plain store finds it."""
    async with cluster(tmp_path) as there:
        store = there.client()
        for rollout_id in IDS:
            await store.put(entry(rollout_id=rollout_id))
        listed = sorted([status.rollout_id async for status in store.rollouts()])

    assert listed == sorted(IDS)
    for rollout_id in IDS:
        plain = TokenCaptureStore(tmp_path / f"shard-0000{shard_of(rollout_id, 3)}")
        assert len(plain.read_entries(rollout_id)) == 1
    assert isinstance(store, TokenSink)
    assert isinstance(store, TokenSource)


async def test_removals_go_to_all_shards_and_keep_their_order(tmp_path: Path) -> None:
    """What was there and what was not is told in the order of the batch, over all shards."""
    async with cluster(tmp_path) as there:
        store = there.client()
        for rollout_id in IDS[::2]:
            await store.put(entry(rollout_id=rollout_id))
        payload = await store.retire(IDS)

    assert payload == {"removed": IDS[::2], "absent": IDS[1::2]}


async def test_a_shard_that_is_away_does_not_stop_a_removal(tmp_path: Path) -> None:
    """The ids of a shard that does not answer are told as not removed, the others are removed."""
    async with cluster(tmp_path) as there:
        away = RemoteShard(Channel("runs", 0, HeldTransport(), deadline=0.05))
        store = ClusterStore(Replaced(there, {0: away}))
        mine = [rollout_id for rollout_id in IDS if shard_of(rollout_id, 3) != 0]
        for rollout_id in mine:
            await store.put(entry(rollout_id=rollout_id))
        with pytest.raises(RemovalError) as caught:
            await store.retire(IDS)
        with pytest.raises(ShardUnavailableError, match="runs, shard 0"):
            await store.statistics()

    assert caught.value.payload == {"removed": mine, "absent": []}
    assert caught.value.causes.keys() == {rollout_id for rollout_id in IDS if rollout_id not in mine}
    assert {type(cause) for cause in caught.value.causes.values()} == {ShardUnavailableError}


async def test_whatever_fails_in_a_shard_does_not_stop_a_removal(tmp_path: Path) -> None:
    """An error that is none of ours is the cause of the ids of that shard, and the other shards' are removed."""
    async with cluster(tmp_path) as there:
        failing = HeldTransport()
        store = ClusterStore(Replaced(there, {0: RemoteShard(Channel("runs", 0, failing, deadline=30.0))}))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail_next, failing, MemoryError("full"))
            with pytest.raises(RemovalError) as caught:
                await store.delete(IDS)

    assert {type(cause) for cause in caught.value.causes.values()} == {MemoryError}
    assert len(caught.value.causes) + len(caught.value.payload["absent"]) == len(IDS)


async def fail_next(transport: HeldTransport, error: Exception) -> None:
    """Answer the next call with an error."""
    while not transport.calls:
        await anyio.wait_all_tasks_blocked()
    transport.calls.popleft().answer(Failure(error))


class Replaced:
    """A link with some of its shards replaced."""

    def __init__(self, link: Any, others: dict[int, ShardClient]) -> None:
        self._link = link
        self._others = others

    def resolve(self) -> tuple[ClusterPlan, Sequence[ShardClient]]:
        """Find the shards."""
        plan, shards = self._link.resolve()
        return plan, [self._others.get(index, shard) for index, shard in enumerate(shards)]


@pytest.mark.parametrize("entered", [False, True])
async def test_direct_shards_are_plain_stores(entered: bool, tmp_path: Path) -> None:
    """Where the directories are on this node, the store writes them itself, entered or not, and closes them."""
    link = Direct(tmp_path)
    store = ClusterStore(link)
    if entered:
        await store.__aenter__()
    for rollout_id in IDS:
        await store.begin_call(rollout_id, "c0")
        await store.put(entry("c0", rollout_id=rollout_id))
    snapshot = await store.freeze("r1")
    listed = sorted([status.rollout_id async for status in store.rollouts()])
    counted = (await store.statistics()).puts
    await (store.__aexit__() if entered else store.close())

    assert (len(snapshot.entries), snapshot.incomplete, listed, counted) == (1, False, sorted(IDS), len(IDS))
    assert link.resolved == 1
    if entered:
        with pytest.raises(StoreClosedError):
            await store.put(entry())


async def test_a_call_is_guarded(tmp_path: Path) -> None:
    """`capture` masks an open rollout whose call was lost, over a channel as in the store, and no frozen one."""
    async with cluster(tmp_path) as there:
        store = there.client()
        async with store.capture("r0", "c0") as call:
            await call.put(entry("c0", rollout_id="r0"))
        with pytest.raises(ZeroDivisionError):
            async with store.capture("r1", "c0"):
                raise ZeroDivisionError
        async with store.capture("r2", "c0"):
            await store.freeze("r2")
        found = [(await store.freeze(rollout_id)).incomplete_reasons for rollout_id in ("r0", "r1", "r2")]

    assert found == [(), ("marked:c0", "lost_call:c0"), ("lost_call:c0",)]


async def test_a_snapshot_is_begun_anew_when_its_shard_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that ends while a snapshot is read costs the reader nothing: it gets the same snapshot."""
    monkeypatch.setattr(streams, "PART_BYTES", 500)
    async with cluster(tmp_path, shards=1) as there:
        store = there.client()
        for number in range(6):
            await store.put(entry(f"c{number}", prompt_token_ids=[number] * 300))
        first = await store.freeze("r")
        there.hosted[0].ends_at_parts = {2, 5, 7}
        again = await store.freeze("r")

    assert there.hosted[0].starts == 4
    assert again == first


@pytest.mark.parametrize("away", [False, True])
async def test_a_freeze_that_began_is_not_told_as_not_done(
    away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first part of a snapshot came the rollout is frozen, and no error says that nothing was done."""
    monkeypatch.setattr(streams, "PART_BYTES", 500)
    async with cluster(tmp_path, shards=1) as there:
        store = there.client()
        await store.put(entry(prompt_token_ids=list(range(3000))))
        [shard], [transport] = await store._all(), there.transports
        assert isinstance(shard, RemoteShard)
        shard._channel.deadline = 0.2

        def more(_: str, __: int, done: Done) -> None:
            transport.ready = not away
            if away:
                done(BrokenError("gone"))

        monkeypatch.setattr(transport, "more", more)
        with pytest.raises(ShardUnavailableError) as freezing:
            await store.freeze("r")

    assert freezing.value.outcome_unknown


async def test_a_mark_is_never_refused_because_of_its_call(tmp_path: Path) -> None:
    """A call id that cannot even travel is marked as blank: the rollout is masked all the same."""
    async with cluster(tmp_path) as there:
        store = there.client()
        await store.mark_incomplete("r", lambda: 0)  # type: ignore[arg-type]
        snapshot = await store.freeze("r")

    assert snapshot.incomplete_reasons == ("marked:",)


async def test_a_reading_that_lost_its_shard_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are read one by one cannot be gone on with after their shard restarted, and the error says it."""
    monkeypatch.setattr(streams, "PART_BYTES", 500)
    async with cluster(tmp_path, shards=1) as there:
        store = there.client()
        for number in range(6):
            await store.put(entry(f"c{number}", prompt_token_ids=[number] * 300))
        whole = [one.model_call_id async for one in store.entries("r")]
        reading = store.entries("r")
        await anext(reading)
        await there.hosted[0].end()
        with pytest.raises(ShardUnavailableError, match="begin the reading again"):
            async for _ in reading:
                pass

    assert whole == [f"c{number}" for number in range(6)]


async def test_a_child_of_a_fork_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that was forked from the one that found the shards every use raises at once and says what to do."""
    async with cluster(tmp_path) as there:
        store = there.client()
        await store.put(entry())
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            for call in (store.put(entry("c1")), store.peek("r"), store.retire(["r"]), store.statistics()):
                with pytest.raises(StoreClosedError, match="by spawn, and connect in it"):
                    await call

        assert len((await store.peek("r")).entries) == 1


async def test_statistics_add_up(tmp_path: Path) -> None:
    """The statistics of a cluster are the sums over its shards; of percentiles the worst counts."""
    async with cluster(tmp_path) as there:
        store = there.client()
        for rollout_id in IDS:
            await store.put(entry(rollout_id=rollout_id))
        found = await store.statistics()

    assert found.puts == len(IDS)
    assert found.put_seconds.count == len(IDS)
    assert 0 < found.put_p50 <= found.put_p99


def test_adding_up() -> None:
    """Counters and reasons are added, bounds that nobody else has are kept, nothing gives nothing."""
    measured = Distribution(bounds=(1.0,), counts=(2, 1), total=4.0)
    one = StoreStatistics(puts=2, put_p99=0.5, masked={"marked": 1}, put_seconds=measured)
    other = StoreStatistics(puts=3, put_p99=0.25, masked={"marked": 2, "flagged": 1}, put_seconds=measured)

    both = added_up([one, other, StoreStatistics()])

    assert (both.puts, both.put_p99, both.masked) == (5, 0.5, {"marked": 3, "flagged": 1})
    assert both.put_seconds == Distribution(bounds=(1.0,), counts=(4, 2), total=8.0)
    assert added_up([]).puts == 0


def test_a_direct_shard_is_the_shards_own(tmp_path: Path) -> None:
    """A directory is written directly if it says that it is the shard's, and another shard's is refused."""
    plan = shard_plan(tmp_path)
    assert direct(plan) is None
    directory = OsDisk().open_root(Path(plan.directory))
    assert direct(plan) is None
    identify(directory, plan, create=True)

    found = direct(plan)

    assert direct(shard_plan(tmp_path / ("x" * 300))) is None  # whose path cannot be looked at
    assert found is not None
    assert str(found.root) == plan.directory
    with pytest.raises(ClusterMismatchError):
        direct(shard_plan(tmp_path, count=5))
