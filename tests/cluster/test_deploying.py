"""Where shards go when a store is brought up, as far as that can be said without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.given import config, shard_plan
from tokenstore import StoreConfig
from tokenstore.cluster import connect, on_ray
from tokenstore.cluster.config import plan_of
from tokenstore.cluster.deploying import identities_below, require_same, settled
from tokenstore.cluster.identity import identify
from tokenstore.cluster.on_ray import Node
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import OsDisk

NODES = [Node(f"id{number}", f"10.0.0.{number}", {"rack": f"r{number}"}) for number in (1, 2, 3)]
ADDRESSES = [node.address for node in NODES]


def test_shards_go_back_to_their_directories(tmp_path: Path) -> None:
    """A pinned shard whose directory is on another node than its turn would give goes there, not to an empty disk."""
    plan = plan_of(config(tmp_path), ADDRESSES)

    found = settled(plan, {0: {"10.0.0.3": "w0"}, 1: {"10.0.0.2": "w1"}}, NODES)

    assert [shard.node for shard in found.shards] == ["10.0.0.3", "10.0.0.2", "10.0.0.3"]


def test_a_directory_that_all_nodes_see_stays_in_turn(tmp_path: Path) -> None:
    """On a shared file system every node sees every directory, which moves no shard."""
    plan = plan_of(config(tmp_path), ADDRESSES)

    found = settled(plan, {index: dict.fromkeys(ADDRESSES, f"w{index}") for index in range(3)}, NODES)

    assert found == plan


def test_two_directories_of_one_shard_are_refused(tmp_path: Path) -> None:
    """Two different directories of one shard are an error: only somebody who looks can say which one counts."""
    plan = plan_of(config(tmp_path), ADDRESSES)

    with pytest.raises(ClusterMismatchError, match=r"its place is \['10\.0\.0\.1', '10\.0\.0\.2'\]"):
        settled(plan, {0: {"10.0.0.1": "w0", "10.0.0.2": "other"}}, NODES)


@pytest.mark.parametrize("named", ["10.0.0.1", "rack=r1"])
def test_a_directory_elsewhere_than_named_is_refused(named: str, tmp_path: Path) -> None:
    """Where the configuration names nodes and the directory is on another one, nothing is moved and nothing made."""
    plan = plan_of(config(tmp_path, nodes=[named]), ADDRESSES)

    assert settled(plan, {0: {"10.0.0.1": "w0"}}, NODES) == plan
    with pytest.raises(ClusterMismatchError, match="expected " + named):
        settled(plan, {0: {"10.0.0.2": "w0"}}, NODES)


def test_directories_are_found_by_what_they_say(tmp_path: Path) -> None:
    """Only directories of the store count, and what cannot be read is left to whoever opens it."""
    for index in (0, 2):
        plan = shard_plan(tmp_path, index)
        identify(OsDisk().open_root(Path(plan.directory)), plan, create=True)
    other = shard_plan(tmp_path / "other", 1, store="other")
    identify(OsDisk().open_root(Path(other.directory)), other, create=True)
    (tmp_path / "shard-00007").mkdir()
    (tmp_path / "shard-00007" / "shard.json").write_text("{")

    found = identities_below(str(tmp_path), "runs")

    assert found.keys() == {0, 2}
    assert len(set(found.values())) == 2
    assert identities_below(str(tmp_path / "nowhere"), "runs") == {}


@pytest.mark.parametrize(
    ("field", "value"), [("shards", 4), ("placement", "floating"), ("store", StoreConfig(prompt_storage="full"))]
)
def test_another_store_of_that_name_is_refused(field: str, value: Any, tmp_path: Path) -> None:
    """A store that is up is not changed by deploying another of its name; the field that differs is named."""
    there = config(tmp_path)
    require_same(config(tmp_path), there)

    with pytest.raises(ClusterMismatchError) as caught:
        require_same(config(tmp_path, **{field: value}), there)

    assert caught.value.field == field


def test_nodes_are_told_by_address_or_label() -> None:
    """A node is meant by its address, or by a label that it has."""
    assert [node.fits("10.0.0.2") for node in NODES] == [False, True, False]
    assert [node.fits("rack=r3") for node in NODES] == [False, False, True]
    assert on_ray.placed("10.0.0.2") == {"resources": {"node:10.0.0.2": on_ray.SHARE}}
    assert on_ray.placed("rack=r3") == {"label_selector": {"rack": "r3"}}
    assert on_ray.placed("") == {}


def test_without_ray_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray, connecting says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tokenstore\[ray\]'"):
        connect("runs")
