"""A shard's directory says whose it is, and nobody opens another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.given import shard_plan
from tests.samples import entry
from tokenstore import TokenCaptureStore
from tokenstore.cluster.identity import FILE, identify, identity_in
from tokenstore.codec import dumps, loads
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import Directory, OsDisk
from tokenstore.testing import PersistencePolicy, PowerCut, SimulatedDisk


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """An empty directory."""
    return OsDisk().open_root(tmp_path / "shard-00000")


def test_it_is_made_once(directory: Directory, tmp_path: Path) -> None:
    """The first deployment makes it, and later ones find the same."""
    plan = shard_plan(tmp_path)

    made = identify(directory, plan, create=True)

    assert identify(directory, plan, create=True) == identify(directory, plan, create=False) == made
    assert (made.store, made.index, made.count, made.format, len(made.word)) == ("runs", 0, 3, 1, 32)


@pytest.mark.parametrize(
    ("field", "plan"),
    [("store", {"store": "other"}), ("index", {"index": 1}), ("count", {"count": 4}), ("place", {"place": "m:f"})],
)
def test_another_shards_directory_is_refused(
    field: str, plan: dict[str, Any], directory: Directory, tmp_path: Path
) -> None:
    """A directory of another store, index, count or place is refused with what differs, and stays as it is."""
    identify(directory, shard_plan(tmp_path), create=True)
    before = (tmp_path / "shard-00000" / FILE).read_bytes()

    with pytest.raises(ClusterMismatchError) as caught:
        identify(directory, shard_plan(tmp_path, **plan), create=True)

    assert caught.value.field == field
    assert ("is the hash, expected m:f" in str(caught.value)) == (field == "place")
    assert (tmp_path / "shard-00000" / FILE).read_bytes() == before


def test_a_newer_format_is_refused(directory: Directory, tmp_path: Path) -> None:
    """A directory of a newer format is refused before anything else is looked at."""
    identify(directory, shard_plan(tmp_path), create=True)
    file = tmp_path / "shard-00000" / FILE
    file.write_bytes(dumps({**loads(file.read_bytes()), "format": 2, "store": "x"}))

    with pytest.raises(ClusterMismatchError, match="format is 2, expected 1"):
        identify(directory, shard_plan(tmp_path), create=False)


@pytest.mark.parametrize("text", [b"", b"\0\0\0", b"[]", b'{"store": "runs"}'])
def test_what_is_no_identity_is_refused(text: bytes, directory: Directory, tmp_path: Path) -> None:
    """A file that is torn or somebody else's is refused, and not written over."""
    file = tmp_path / "shard-00000" / FILE
    file.write_bytes(text)

    with pytest.raises(ClusterMismatchError, match="content is no identity"):
        identify(directory, shard_plan(tmp_path), create=True)

    assert file.read_bytes() == text


def test_an_empty_directory_is_not_taken_for_the_shards(directory: Directory, tmp_path: Path) -> None:
    """Unless it is being deployed, a directory that says nothing is refused: a lost disk looks like that."""
    with pytest.raises(ClusterMismatchError, match="mount its disk, or deploy with accept_empty"):
        identify(directory, shard_plan(tmp_path), create=False)

    assert list(directory.names()) == []


def test_a_directory_of_rollouts_is_not_taken(directory: Directory, tmp_path: Path) -> None:
    """A directory that holds rollouts and no identity is refused: they would be looked for in other shards."""
    TokenCaptureStore(tmp_path / "shard-00000").append(entry())

    with pytest.raises(ClusterMismatchError, match="content is rollouts of no shard"):
        identify(directory, shard_plan(tmp_path), create=True)


@pytest.mark.parametrize("policy", PersistencePolicy)
def test_a_power_cut_leaves_it_whole_or_absent(policy: PersistencePolicy, tmp_path: Path) -> None:
    """Cut at any step, the directory says nothing or everything, and the next deployment goes on."""
    plan = shard_plan(tmp_path)
    cuts = 0
    for step in range(2, 100):
        disk = SimulatedDisk(crash_at=step)
        made = None
        try:
            made = identify(disk.open_root(tmp_path), plan, create=True)
        except PowerCut:
            cuts += 1
        after = disk.after_crash(policy, seed=step).open_root(tmp_path)
        found = identity_in(after, plan)
        assert identify(after, plan, create=True) == (found or identity_in(after, plan))
        if made is not None:
            assert found == made
            break

    assert cuts > 3
