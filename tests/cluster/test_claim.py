"""The fence of a floating shard: of several processes the last to claim it writes, and no other."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tokenstore.cluster.claim import FILE, Claim, SupersededError, acquire, holder_in
from tokenstore.journal.disk import Directory, OsDisk
from tokenstore.testing import PersistencePolicy, PowerCut, SimulatedDisk


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """A shard's directory, as any number of processes may open it."""
    return OsDisk().open_root(tmp_path)


@pytest.mark.anyio
async def test_the_first_has_it(directory: Directory) -> None:
    """A shard that nobody has claimed is had at once, and the claim says by whom."""
    claim = Claim(directory, "10.0.0.1")

    await acquire(claim)

    assert claim.holds()
    assert claim.holder == holder_in(directory)
    assert (claim.holder.epoch, claim.holder.node) == (1, "10.0.0.1") if claim.holder else False


@pytest.mark.anyio
async def test_the_later_one_waits_until_the_first_has_gone(directory: Directory) -> None:
    """Who claims later takes the right to write at once, and writes when the lock is free."""
    first, second = Claim(directory, "a"), Claim(directory, "b")
    await acquire(first)
    waits, has_it = anyio.Event(), anyio.Event()

    async def take() -> None:
        await acquire(second, waits.set)
        has_it.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await waits.wait()
        assert (first.holds(), second.holds(), has_it.is_set()) == (False, True, False)
        first.release()
        await has_it.wait()

    assert second.holder is not None
    assert second.holder.epoch == 2


@pytest.mark.anyio
async def test_of_two_that_wait_the_later_one_wins(directory: Directory) -> None:
    """Who waits for the lock and is overtaken gives up, and never has both the lock and the right."""
    first, second, third = (Claim(directory, node) for node in "abc")
    await acquire(first)
    waits = anyio.Event()
    lost: list[bool] = []

    async def take() -> None:
        try:
            await acquire(second, waits.set)
        except SupersededError:
            lost.append(True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await waits.wait()
        third.take()

    first.release()
    assert (lost, third.try_lock(), third.holds(), second.holds()) == ([True], True, True, False)


def test_overtaken_between_lock_and_look(directory: Directory) -> None:
    """Who gets the lock after another's claim lets it go again."""
    first, second = Claim(directory, "a"), Claim(directory, "b")
    first.take()
    second.take()

    with pytest.raises(SupersededError):
        first.try_lock()

    assert second.try_lock()


@pytest.mark.parametrize(
    "text", [b"", b"\0\0\0\0", b"{}", b"[1]", b'{"epoch":null,"node":"","pid":1,"since":0,"word":"w"}']
)
def test_a_claim_that_is_none_counts_for_nobody(text: bytes, directory: Directory, tmp_path: Path) -> None:
    """A torn claim is nobody's: who held it loses it, and the next one makes another."""
    claim = Claim(directory, "a")
    claim.take()
    (tmp_path / FILE).write_bytes(text)

    assert not claim.holds()
    assert holder_in(directory) is None
    again = Claim(directory, "b")
    again.take()
    assert again.holds()


@pytest.mark.parametrize("policy", PersistencePolicy)
def test_a_power_cut_leaves_one_claim_or_the_other(policy: PersistencePolicy, tmp_path: Path) -> None:
    """Cut at any step of a second claim, the first or the second stands, whole; the next epoch is higher than both."""
    cuts = 0
    for step in range(1, 100):
        disk = SimulatedDisk()
        root = disk.open_root(tmp_path)
        first, second = Claim(root, "a"), Claim(root, "b")
        first.take()
        disk.crash_at = disk.steps + step
        done = False
        try:
            second.take()
            done = True
        except PowerCut:
            cuts += 1
        after = disk.after_crash(policy, seed=step).open_root(tmp_path)
        found = holder_in(after)
        assert found == second.holder if done else found in (first.holder, second.holder)
        third = Claim(after, "c")
        third.take()
        assert third.holder is not None
        assert third.holder.epoch >= (3 if done else 2)
        if done:
            break

    assert cuts > 3
