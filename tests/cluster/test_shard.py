"""A shard at work: batches, tickets, long answers, and the end of one that was superseded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cluster.given import shard_plan
from tests.samples import entry
from tokenstore import StoreClosedError, StoreConfig, TokenCaptureStore, TokenEntry
from tokenstore.cluster import shard as shards
from tokenstore.cluster import streams
from tokenstore.cluster.claim import Claim, SupersededError
from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.shard import MakeFence, Shard, fence_of, opened
from tokenstore.cluster.wire import (
    EntryReader,
    Failure,
    Frames,
    Later,
    Lost,
    Operation,
    Value,
    cut,
    decode_outcome,
    encode_operation,
    pack,
    unpack,
)
from tokenstore.codec import prepare
from tokenstore.errors import ClusterMismatchError, InvalidEntryError
from tokenstore.journal.disk import OsDisk

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(plan: ShardPlan, make_fence: MakeFence | None = None) -> AsyncIterator[Shard]:
    """Run a shard that ends by an error when it is superseded."""
    fence = make_fence or fence_of(plan, "here")
    async with opened(plan, fence, create=True, end=lambda: None) as shard:
        yield shard


def as_sent(argument: Any) -> Any:
    """An entry as clients send it; anything else as it is."""
    return prepare(argument) if isinstance(argument, TokenEntry) else argument


async def ask(shard: Shard, *operations: tuple[Any, ...]) -> list[Any]:
    """Have a batch done and give its outcomes."""
    blobs = [encode_operation(Operation(name, tuple(map(as_sent, arguments)))) for name, *arguments in operations]
    return [decode_outcome(blob) for blob in unpack(await shard.call(*cut(pack(blobs))))]


@contextmanager
def superseded() -> Iterator[None]:
    """Expect that the block ends because another process has claimed the shard."""
    with pytest.raises(BaseExceptionGroup) as caught:
        yield
    assert isinstance(first_of(caught.value), SupersededError)


def first_of(group: BaseException) -> BaseException:
    """Find what happened inside the groups of task groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def test_a_batch_is_done_side_by_side(tmp_path: Path) -> None:
    """Every operation of a batch has its own outcome, and a bad one leaves the others alone."""
    plan = shard_plan(tmp_path, config=StoreConfig(max_entry_bytes=10_000))
    async with running(plan) as shard:
        outcomes = await ask(
            shard,
            ("put", entry("c1")),
            ("put", entry("c2", prompt_token_ids=[7] * 10_000)),
            ("begin_call", "r", "c3"),
            ("retire", ["other"]),
        )
        status = shard.status(plan, "here")

    assert [outcomes[0], outcomes[2]] == [Value(None), Value(None)]
    assert isinstance(outcomes[1], Failure)
    assert isinstance(outcomes[1].error, InvalidEntryError)
    assert outcomes[3] == Value({"removed": [], "absent": ["other"]})
    assert (status.state, status.batches, status.operations) == ("up", 1, 4)
    assert status.statistics is not None
    assert status.statistics.puts == 1
    assert [one.model_call_id for one in TokenCaptureStore(tmp_path / "shard-00000").read_entries("r")] == ["c1"]


async def test_an_unreadable_operation_is_answered_alone(tmp_path: Path) -> None:
    """Bytes that are no operation are an error of theirs, and no operation of that name is one too."""
    async with running(shard_plan(tmp_path)) as shard:
        operations = [Operation("fly", ()), Operation("put", (prepare(entry()),))]
        blobs = [b"nonsense", *map(encode_operation, operations)]
        outcomes = [decode_outcome(blob) for blob in unpack(await shard.call(pack(blobs)))]

    assert [type(outcome) for outcome in outcomes] == [Failure, Failure, Value]


async def test_a_call_that_comes_too_late_is_told(tmp_path: Path) -> None:
    """A batch that reaches a shard which was closed meanwhile is answered, and nothing of it is done."""
    async with running(shard_plan(tmp_path)) as shard:
        pass

    [outcome] = await ask(shard, ("put", entry()))

    assert isinstance(outcome, Failure)
    assert isinstance(outcome.error, StoreClosedError)
    assert TokenCaptureStore(tmp_path / "shard-00000").read_entries("r") == []


async def test_what_goes_on_when_it_is_closed_is_finished(tmp_path: Path) -> None:
    """Closing waits for operations that were accepted, here for a lock; what comes meanwhile is told."""
    plan = shard_plan(tmp_path)
    outcomes: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def put(call: str) -> None:
            outcomes.extend(await ask(shard, ("put", entry(call))))

        async def let_go() -> None:
            await anyio.wait_all_tasks_blocked()
            await put("late")
            lock.unlock()

        async with running(plan) as shard:
            await put("c1")
            lock = OsDisk().open_root(Path(plan.directory)).open("r.tokens.lock", "create")
            assert lock.lock(exclusive=True)
            with anyio.move_on_after(0.01):
                await put("c2")
            tasks.start_soon(let_go)

    first, late = outcomes
    assert (first, type(late.error)) == (Value(None), StoreClosedError)
    stored = TokenCaptureStore(tmp_path / "shard-00000").read_entries("r")
    assert [one.model_call_id for one in stored] == ["c1", "c2"]


async def test_a_held_lock_delays_nobody_else(tmp_path: Path) -> None:
    """While another process holds a rollout's lock, the others of the batch are answered, and it gets a ticket."""
    plan = shard_plan(tmp_path)
    async with running(plan) as shard:
        await ask(shard, ("put", entry("c1")))
        lock = OsDisk().open_root(Path(plan.directory)).open("r.tokens.lock", "create")
        assert lock.lock(exclusive=True)
        held, other = await ask(shard, ("put", entry("c2")), ("put", entry("c1", rollout_id="s")))
        outcomes: list[Any] = []

        async def wait() -> None:
            outcomes.extend(map(decode_outcome, unpack(await shard.wait(held.ticket))))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            before = list(outcomes)
            lock.unlock()

        [again] = map(decode_outcome, unpack(await shard.wait(held.ticket)))

    assert isinstance(held, Later)
    assert (other, before, outcomes) == (Value(None), [], [Value(None)])
    assert again == Lost()


async def test_a_long_answer_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot comes in parts of bounded size, of which the last one may be asked for again, and no older one."""
    monkeypatch.setattr(streams, "PART_BYTES", 1000)
    calls = [entry(f"c{number}", prompt_token_ids=[number] * 300) for number in range(9)]
    async with running(shard_plan(tmp_path)) as shard:
        for call in calls:
            await ask(shard, ("put", call))
        [first] = await ask(shard, ("freeze", "r"))
        part, number, sizes = first.value, 0, [len(first.value.data)]
        frames = Frames()
        found = frames.feed(part.data)
        ticket = part.ticket
        while part.ticket:
            number += 1
            part = decode_outcome(await shard.more(ticket, number)).value  # type: ignore[union-attr]
            if part.ticket:
                assert decode_outcome(await shard.more(ticket, number)).value == part  # type: ignore[union-attr]
                assert decode_outcome(await shard.more(ticket, number - 5)) == Lost()
            found += frames.feed(part.data)
            sizes.append(len(part.data))
        gone = decode_outcome(await shard.more(ticket, number))

    reader = EntryReader()
    assert [reader.item(frame).prompt_token_ids for frame in found] == [call.prompt_token_ids for call in calls]
    assert first.value.head["count"] == 9
    assert len(sizes) > 5
    assert max(sizes) <= 1000
    assert gone == Lost()


async def test_a_part_asked_for_twice_at_once_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked twice at the same time, as when Ray repeats a call, both get the same part, and nothing is left out."""
    monkeypatch.setattr(streams, "PART_BYTES", 500)
    async with running(shard_plan(tmp_path)) as shard:
        await ask(shard, *(("put", entry(f"c{number}", prompt_token_ids=[number] * 300)) for number in range(6)))
        [first] = await ask(shard, ("freeze", "r"))
        both: list[bytes] = []

        async def more() -> None:
            both.append(await shard.more(first.value.ticket, 1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(more)
            tasks.start_soon(more)

    assert both[0] == both[1]
    assert isinstance(decode_outcome(both[0]), Value)


async def test_too_many_long_answers_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that nobody reads on are bounded in number; the newest ones can be read."""
    monkeypatch.setattr(streams, "PART_BYTES", 100)
    monkeypatch.setattr(streams, "MAX_STREAMS", 3)
    async with running(shard_plan(tmp_path)) as shard:
        await ask(shard, ("put", entry(prompt_token_ids=[7] * 500)))
        tickets = [(await ask(shard, ("peek", "r")))[0].value.ticket for _ in range(6)]
        kept = [decode_outcome(await shard.more(ticket, 1)) != Lost() for ticket in tickets]

    assert kept[0] is False
    assert kept[-1] is True
    assert sum(kept) <= 3


async def test_a_reading_that_fails_tells_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of a long answer goes to whoever reads it."""
    monkeypatch.setattr(streams, "PART_BYTES", 100)
    async with running(shard_plan(tmp_path)) as shard:
        await ask(shard, *(("put", entry(f"c{number}", prompt_token_ids=[7] * 500)) for number in range(20)))
        [first] = await ask(shard, ("entries", "r"))
        await ask(shard, ("retire", ["r"]))
        outcomes = [decode_outcome(await shard.more(first.value.ticket, number)) for number in range(1, 800)]

    failures = [outcome.error for outcome in outcomes if isinstance(outcome, Failure)]
    assert failures
    assert "retired" in str(failures[0])


async def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    """A shard whose directory is gone does not start with an empty one."""
    plan = shard_plan(tmp_path)

    with pytest.raises(ClusterMismatchError, match="accept_empty"):
        async with opened(plan, fence_of(plan, "here")):
            pass

    assert not Path(plan.directory).exists()


async def claimed_by_another(plan: ShardPlan) -> Claim:
    """Claim a shard as another process would."""
    other = Claim(OsDisk().open_root(Path(plan.directory)), "there")
    other.take()
    return other


@pytest.mark.parametrize("operations", [[("put", entry("c2"))], [("freeze", "r")], [("delete", ["r"])]])
async def test_who_was_superseded_begins_nothing(operations: Sequence[Any], tmp_path: Path) -> None:
    """After another process has claimed the shard nothing is begun, and the process ends."""
    plan = shard_plan(tmp_path, placement="floating")
    ends: list[int] = []
    with superseded():
        async with opened(plan, fence_of(plan, "here"), create=True, end=lambda: ends.append(1)) as shard:
            await ask(shard, ("put", entry("c1")))
            await claimed_by_another(plan)
            await ask(shard, *operations)

    assert ends
    store = TokenCaptureStore(plan.directory)
    assert [one.model_call_id for one in store.read_entries("r")] == ["c1"]
    assert not store.freeze_now("r").incomplete


async def test_who_was_superseded_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun before another process claimed the shard, and done after, is not acknowledged."""
    monkeypatch.setattr(shards, "PATIENCE", 30.0)
    plan = shard_plan(tmp_path, placement="floating")
    acknowledged: list[Any] = []
    with superseded():
        async with opened(plan, fence_of(plan, "here"), create=True, end=lambda: None) as shard:
            await ask(shard, ("put", entry("c1")))
            lock = OsDisk().open_root(Path(plan.directory)).open("r.tokens.lock", "create")
            assert lock.lock(exclusive=True)
            async with anyio.create_task_group() as tasks:

                async def late() -> None:
                    acknowledged.append(await ask(shard, ("put", entry("c2"))))

                tasks.start_soon(late)
                await anyio.wait_all_tasks_blocked()
                await claimed_by_another(plan)
                lock.unlock()

    assert acknowledged == []


async def test_who_is_never_called_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that nobody calls sees by itself that another has claimed it, and lets its lock go."""
    monkeypatch.setattr(shards, "WATCH_SECONDS", 0.01)
    plan = shard_plan(tmp_path, placement="floating")
    with superseded():
        async with opened(plan, fence_of(plan, "here"), create=True, end=lambda: None):
            other = await claimed_by_another(plan)
            await anyio.sleep_forever()

    assert other.try_lock()


async def test_a_pinned_shard_has_no_fence(tmp_path: Path) -> None:
    """A pinned shard claims nothing: local locks keep its writers apart."""
    plan = shard_plan(tmp_path)
    async with running(plan) as shard:
        await claimed_by_another(plan)
        outcomes = await ask(shard, ("put", entry("c1")))

    assert outcomes == [Value(None)]
