"""The configuration refuses what is not allowed, and every shard gets its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.given import config
from tokenstore.cluster.config import ClusterConfig, plan_of


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "", "ClusterConfig.name"),
        ("name", "a/b", "ClusterConfig.name"),
        ("name", 7, "ClusterConfig.name"),
        ("root", "captures", "ClusterConfig.root is the relative path"),
        ("shards", 0, "ClusterConfig.shards"),
        ("shards", 4097, "ClusterConfig.shards"),
        ("shards", True, "ClusterConfig.shards"),
        ("shards", 2.0, "ClusterConfig.shards"),
        ("placement", "spread", "ClusterConfig.placement"),
        ("nodes", [""], "ClusterConfig.nodes holds ''"),
        ("nodes", ["10.0.0.1", 7], "ClusterConfig.nodes holds 7"),
        ("nodes", ["disk="], "ClusterConfig.nodes holds 'disk='"),
        ("place", 7, "ClusterConfig.place is 7"),
        ("place", "by_length", "'module:function' is allowed"),
    ],
)
def test_wrong_values_are_named(field: str, value: Any, said: str, tmp_path: Path) -> None:
    """A value that is not allowed is an error that names the field."""
    with pytest.raises(ValueError, match=said):
        ClusterConfig(**{"name": "runs", "root": tmp_path, "shards": 3, field: value})


def test_nodes_are_no_single_string(tmp_path: Path) -> None:
    """One string in place of a list of nodes would be taken for its letters, and is refused."""
    with pytest.raises(TypeError, match=r"ClusterConfig\.nodes"):
        config(tmp_path, nodes="10.0.0.1")


def test_floating_shards_take_no_nodes(tmp_path: Path) -> None:
    """Nodes for floating shards, which would not be kept to, are refused."""
    with pytest.raises(ValueError, match=r"ClusterConfig\.nodes is for pinned shards"):
        config(tmp_path, placement="floating", nodes=["10.0.0.1"])


def test_pinned_shards_go_round(tmp_path: Path) -> None:
    """Pinned shards take the nodes in turn, those of the configuration or all there are, by address."""
    named = plan_of(config(tmp_path, shards=3, nodes=["rack=a", "10.0.0.9"]), ["10.0.0.1"])
    all_of_them = plan_of(config(tmp_path, shards=3), ["10.0.0.2", "10.0.0.1"])

    assert [shard.node for shard in named.shards] == ["rack=a", "10.0.0.9", "rack=a"]
    assert [shard.node for shard in all_of_them.shards] == ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert [shard.directory for shard in named.shards] == [str(tmp_path / f"shard-0000{index}") for index in range(3)]
    assert len({shard.actor for shard in named.shards}) == 3


def test_floating_shards_belong_to_no_node(tmp_path: Path) -> None:
    """A floating shard has no node; a pinned one without any node is an error."""
    floating = plan_of(config(tmp_path, placement="floating"), ["10.0.0.1"])

    assert {shard.node for shard in floating.shards} == {""}
    with pytest.raises(ValueError, match="no node to pin"):
        plan_of(config(tmp_path), [])
