"""Where shards go when a store is brought up, as far as that can be said without Ray."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.given import config, shard_plan
from tokenstore import StoreConfig
from tokenstore.cluster import connect, deploy, on_ray
from tokenstore.cluster.config import plan_of
from tokenstore.cluster.deploying import all_of, require_same, settled
from tokenstore.cluster.identity import identify, identities_below
from tokenstore.cluster.on_ray import Node, RayTransport
from tokenstore.errors import ClusterMismatchError, ShardUnavailableError
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


def test_a_place_that_is_not_there_is_not_deployed(tmp_path: Path) -> None:
    """A placing function that cannot be imported is refused before anything is made: directories would name it."""
    with pytest.raises(ValueError, match="'no_such_module:f', which cannot be imported"):
        deploy(config(tmp_path, place="no_such_module:f"))

    assert not list(tmp_path.iterdir())


class NoCluster:
    """Ray in a process that is part of no cluster."""

    def is_initialized(self) -> bool:
        """Whether it is part of one."""
        return False


def test_nobody_looks_for_a_shard_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever drops a store that was taken down leaves no thread behind that looks for it for ever."""
    monkeypatch.setitem(sys.modules, "ray", NoCluster())
    transport: RayTransport | None = RayTransport("gone")
    [looking] = [thread for thread in threading.enumerate() if thread.name == "find gone"]

    transport = None
    looking.join(30)

    assert transport is None
    assert not looking.is_alive()


def test_without_ray_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray, connecting says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tokenstore\[ray\]'"):
        connect("runs")


def test_a_label_of_several_nodes_is_refused(tmp_path: Path) -> None:
    """Ray would start a shard on any node that has its label, and next time on another: the nodes are named."""
    nodes = [*NODES, Node("id4", "10.0.0.4", {"rack": "r1"})]
    plan = plan_of(config(tmp_path, nodes=["rack=r2", "rack=r1"]), ADDRESSES)

    assert settled(plan, {}, NODES) == plan
    with pytest.raises(ValueError, match=r"holds rack=r1, which is 10\.0\.0\.1, 10\.0\.0\.4: one node"):
        settled(plan, {}, nodes)


def test_a_silent_node_stops_a_deployment() -> None:
    """A node that does not say what it has may have the directories; one that failed has said something."""
    said = {"10.0.0.1": {0: "w0"}, "10.0.0.2": OSError("no such module")}

    assert all_of("runs", ["10.0.0.1", "10.0.0.2"], said) == said
    with pytest.raises(ShardUnavailableError, match=r"10\.0\.0\.3 did not say") as caught:
        all_of("runs", ADDRESSES, said)
    assert not caught.value.outcome_unknown
