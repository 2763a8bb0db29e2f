"""A shard in a task of its own: opening, waiting, failing, and ending its process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.abc
import pytest

from tests.cluster.given import shard_plan
from tests.samples import entry
from tokenstore import StoreClosedError, TokenCaptureStore
from tokenstore.cluster import hosted as module
from tokenstore.cluster.claim import Claim
from tokenstore.cluster.hosted import Hosted
from tokenstore.cluster.shard import Shard
from tokenstore.cluster.wire import Operation, cut, encode_operation, pack
from tokenstore.codec import prepare
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import OsDisk

pytestmark = pytest.mark.anyio


@pytest.fixture
async def tasks() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Where shards live."""
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


async def put(shard: Shard) -> bytes:
    """Put an entry."""
    return await shard.call(*cut(pack([encode_operation(Operation("put", (prepare(entry()),)))])))


async def test_it_is_open_for_whoever_asks(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    """Calls are done once it is open, and its store is an ordinary one."""
    hosted = Hosted(shard_plan(tmp_path), "here", tasks.start_soon)
    word = await hosted.prepare(create=True)
    again = await hosted.prepare(create=False)

    await hosted.ask(put)
    status = hosted.status()
    await hosted.close()

    assert word == again
    assert (status.state, status.node, status.operations) == ("up", "here", 1)
    assert len(TokenCaptureStore(tmp_path / "shard-00000").read_entries("r")) == 1


async def test_without_its_directory_it_says_so(
    tasks: anyio.abc.TaskGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that cannot be opened tells every caller why, and tries again when it is asked later."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    hosted = Hosted(shard_plan(tmp_path), "here", tasks.start_soon)
    hosted.start()
    with pytest.raises(ClusterMismatchError, match="accept_empty"):
        await hosted.ask(put)
    failed = hosted.status()

    await hosted.prepare(create=True)
    await hosted.ask(put)
    await hosted.close()

    assert (failed.state, "accept_empty" in failed.problem) == ("failed", True)


async def test_it_waits_for_the_one_before_it(tasks: anyio.abc.TaskGroup, tmp_path: Path) -> None:
    """While another process holds the shard's lock its state says so, callers wait, and then are answered."""
    plan = shard_plan(tmp_path, placement="floating")
    first = Hosted(plan, "here", tasks.start_soon)
    await first.prepare(create=True)
    await first.close()
    other = Claim(OsDisk().open_root(Path(plan.directory)), "there")
    other.take()
    assert other.try_lock()
    hosted = Hosted(plan, "here", tasks.start_soon)
    hosted.start()
    while hosted.status().state != "waiting for the lock":  # noqa: ASYNC110 - there is no event for it
        await anyio.sleep(0.01)

    async with anyio.create_task_group() as callers:
        callers.start_soon(hosted.ask, put)
        await anyio.wait_all_tasks_blocked()
        other.release()

    status = hosted.status()
    await hosted.close()
    assert (status.state, status.operations) == ("up", 1)
    assert status.holder is not None
    assert status.holder.epoch == 3


async def test_superseded_it_ends_its_process(
    tasks: anyio.abc.TaskGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose shard another one has claimed ends, without being called."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 1e9)
    plan = shard_plan(tmp_path, placement="floating")
    ended = anyio.Event()
    hosted = Hosted(plan, "here", tasks.start_soon, end=ended.set)
    await hosted.prepare(create=True)

    Claim(OsDisk().open_root(Path(plan.directory)), "there").take()

    with anyio.fail_after(10.0):
        await ended.wait()
        await hosted.close()
    with pytest.raises(StoreClosedError):
        await hosted.ask(put)


async def test_a_closed_one_is_closed(
    tasks: anyio.abc.TaskGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After closing, callers are told, and none of them opens it again; closing again is a no-op."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.0)
    hosted = Hosted(shard_plan(tmp_path), "here", tasks.start_soon)
    await hosted.prepare(create=True)
    await hosted.close()
    await hosted.close()

    with pytest.raises(StoreClosedError):
        await hosted.ask(put)
