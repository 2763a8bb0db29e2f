"""A harsher disk below a real kernel: names lost, tails of NULs, any block missing, a sync that fails and then lies."""

from __future__ import annotations

import errno
import importlib.util
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from tests.children import entry, opened, start, start_module
from tests.kernel import needs
from tokenstore import DurabilityError, TokenCaptureStore
from tokenstore.journal.requests import Begin
from tokenstore.testing import PersistencePolicy, first_difference

OTHERS = ("intents", "incomplete")
PATIENCE = 30.0
"""Seconds for a file system to come up."""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of a process of its own, which obeys extended attributes."""
    needs.fuse()
    if importlib.util.find_spec("mfusepy") is None:
        needs.missing("needs mfusepy: pip install mfusepy")
    place = tmp_path / "mounted"
    place.mkdir()
    with start_module("tests.kernel.filesystem", place) as child:
        end = time.monotonic() + PATIENCE
        while not place.is_mount():
            assert child.process.poll() is None, child.process.stderr
            assert time.monotonic() < end, "the file system did not come up"
            time.sleep(0.01)
        yield place
        subprocess.run(["fusermount3", "-u", "-z", place], check=True)
        child.process.wait(PATIENCE)


def tell(place: Path, order: str, value: str = " ") -> None:
    """Have the file system do something."""
    os.setxattr(place, f"user.{order}", value.encode())


def _cuts(place: Path, policy: PersistencePolicy, cuts: int, seed: int) -> tuple[int, int]:
    """Cut the power of a writer at random times, and hold what is left to what was acknowledged."""
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)  # noqa: S311 - replayable, not secret
    acked: set[str] = set()
    for life in range(cuts):
        with start("put_batches", place, f"l{life}n", 200, 4) as child:
            said = [child.line() for _ in range(chance.randrange(1, 30))]
            tell(place, "cut")
            said += child.last_words()[1]
        acked |= {line.split()[1] for line in said if line.startswith("acked")}
        tell(place, "restart", f"{policy.value} {chance.randrange(1000)}")
        there = _entries(place)
        assert acked - there.keys() == set()
    return len(acked), len(there)


def _entries(place: Path) -> dict[str, object]:
    """Read what is there; each entry must be the one that was put."""
    with opened(place) as store:
        there = {each.model_call_id: each for each in store.read_entries("r")}
    for call_id, each in there.items():
        assert first_difference(entry("r", call_id, number=int(call_id.split("n")[-1])), each) is None
    return dict(there)


@pytest.mark.kernel
def test_a_cut_loses_nothing_acked(mounted: Path) -> None:
    """Two power cuts that leave any of the names and blocks lose nothing of what was acknowledged."""
    acked, there = _cuts(mounted, PersistencePolicy.SCATTERED, 2, seed=1)

    assert there >= acked > 0


@pytest.mark.kernel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", PersistencePolicy)
def test_fifteen_cuts_lose_nothing_acked(policy: PersistencePolicy, mounted: Path) -> None:
    """The same fifteen times."""
    acked, there = _cuts(mounted, policy, 15, seed=2)

    print(f"{policy.value}: {acked} acked, {there} there")  # noqa: T201
    assert there >= acked > 15


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["jsonl", *OTHERS])
def test_a_sync_that_fails_once_and_then_lies_loses_nothing_acked(name: str, mounted: Path) -> None:
    """After a failed sync the same put, begin or mark writes its bytes again: no lie is taken for success."""
    with opened(mounted) as store:
        store.append(entry("r", "c1", number=1))
        uses: dict[str, Callable[[], object]] = {
            "jsonl": lambda: store.append(entry("r", "c2", number=2)),
            "intents": lambda: store._wait("r", lambda journal: journal.finish(journal.committing([Begin("c3")]))),
            "incomplete": lambda: store._wait("r", lambda journal: journal.mark("c4")),
        }
        tell(mounted, "fail", name)
        with pytest.raises(DurabilityError) as caught:
            uses[name]()
        uses[name]()
        tell(mounted, "cut")
    tell(mounted, "restart", "synced 0")

    with opened(mounted) as store:
        snapshot = store.freeze_now("r")

    expected = {"jsonl": (2, ()), "intents": (1, ("lost_call:c3",)), "incomplete": (1, ("marked:c4",))}
    assert caught.value.errno == errno.EIO
    assert (len(snapshot.entries), snapshot.incomplete_reasons) == expected[name]


@pytest.mark.kernel
@pytest.mark.anyio
async def test_a_failed_sync_among_many_is_told_to_its_own(mounted: Path) -> None:
    """Of two dozen syncs that the kernel makes at a time one fails: its put raises, and a repeated one is stored."""
    failed: list[str] = []

    async def put(rollout_id: str, call_id: str) -> None:
        try:
            await store.put(entry(rollout_id, call_id))
        except DurabilityError:
            failed.append(rollout_id)

    async def put_to_all(call_id: str) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(put, f"r{number}", call_id)

    async with TokenCaptureStore(mounted) as store:
        await put_to_all("c1")
        tell(mounted, "fail", "jsonl")
        await put_to_all("c2")
        (unlucky,) = failed
        await put(unlucky, "c2")
        tell(mounted, "cut")
    tell(mounted, "restart", "synced 0")
    async with TokenCaptureStore(mounted) as after:
        found = {f"r{number}": len((await after.freeze(f"r{number}")).entries) for number in range(24)}

    assert failed == [unlucky]
    assert found == {f"r{number}": 2 for number in range(24)}
