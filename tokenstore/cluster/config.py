"""What a cluster store is: its name, its directories, how many shards, and where they may run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from tokenstore.config import StoreConfig

Placement = Literal["pinned", "floating"]
"""Whether a shard belongs to one node, whose disk it is on, or may run on any that mounts a shared file system."""

MAX_SHARDS = 4096
"""A shard is a process; who needs more of them wants larger ones."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def _name(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"ClusterConfig.name is {value!r}, 1 to 64 characters of A-Z a-z 0-9 _ - are allowed")


def absolute_root(value: str | os.PathLike[str]) -> str:
    """Give a root as a path that means the same in every process.

    Raises:
        ValueError: It is relative.
    """
    path = os.fspath(value)
    if not Path(path).is_absolute():
        raise ValueError(f"ClusterConfig.root is the relative path {path!r}, an absolute path is allowed")
    return path


def _shards(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SHARDS:
        raise ValueError(f"ClusterConfig.shards is {value!r}, an int from 1 to {MAX_SHARDS} is allowed")


def _placement(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if value not in ("pinned", "floating"):
        raise ValueError(f"ClusterConfig.placement is {value!r}, 'pinned' and 'floating' are allowed")


def _nodes(value: Sequence[Any]) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError("ClusterConfig.nodes is one string, a list of them is allowed")
    for node in value:
        if not isinstance(node, str) or not all(part.strip() for part in node.split("=", 1)):
            raise ValueError(f"ClusterConfig.nodes holds {node!r}, an address or a label as key=value is allowed")
    return tuple(value)


def _place(_: object, __: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or (value and not all(value.partition(":"))):
        raise ValueError(f"ClusterConfig.place is {value!r}, 'module:function' is allowed, or nothing for the hash")


@attrs.frozen(kw_only=True)
class ClusterConfig:
    """What a cluster store is; fixed for its life, but for `nodes`.

    Raises:
        ValueError: A value is not allowed; the message names the field and what is.
    """

    name: str = attrs.field(validator=_name)
    """Names the store in the Ray cluster, and in its directories."""
    root: str = attrs.field(converter=absolute_root)
    """Directory below which every shard has its own, absolute: on each node's own disk, or on a shared file system."""
    shards: int = attrs.field(validator=_shards)
    """How many shards there are, for ever: another count would look for rollouts in the wrong place."""
    placement: Placement = attrs.field(default="pinned", validator=_placement)
    """`"pinned"`: each shard belongs to a node and waits for it. `"floating"`: it may start on another node, behind a
    fence; the root must then be on a shared file system with working locks."""
    nodes: tuple[str, ...] = attrs.field(default=(), converter=_nodes)
    """Nodes of pinned shards in turn, each an address or a Ray node label as `key=value`; without any, all nodes."""
    place: str = attrs.field(default="", validator=_place)
    """A function `module:name` of (rollout id, shards) that gives the shard's index; a hash of the id if empty."""
    store: StoreConfig = attrs.field(factory=StoreConfig, validator=attrs.validators.instance_of(StoreConfig))
    """How each shard's store behaves."""

    def __attrs_post_init__(self) -> None:
        if self.nodes and self.placement == "floating":
            raise ValueError("ClusterConfig.nodes is for pinned shards, floating ones run on any node; leave it out")


@attrs.frozen(kw_only=True)
class ShardPlan:
    """One shard of a cluster store, as whoever runs it or looks for it needs it."""

    store: str
    """Name of the cluster store."""
    index: int
    """Which shard, from 0 on."""
    count: int
    """How many shards there are."""
    directory: str
    """Where its files are."""
    placement: Placement
    """Whether it belongs to a node."""
    node: str
    """That node, an address or `key=value`; empty if it belongs to none."""
    place: str = ""
    """What places rollouts, as in the configuration."""
    config: StoreConfig = attrs.field(factory=StoreConfig)
    """How its store behaves."""

    @property
    def actor(self) -> str:
        """Name of its actor."""
        return f"{self.store}/shard-{self.index:05d}"


@attrs.frozen(kw_only=True)
class ClusterPlan:
    """A cluster store with every shard in its place: what the manifest holds."""

    config: ClusterConfig
    """What was asked for."""
    shards: tuple[ShardPlan, ...]
    """Every shard, by its index."""


def plan_of(config: ClusterConfig, nodes: Sequence[str]) -> ClusterPlan:
    """Give every shard its directory, and if it is pinned its node.

    Args:
        config: What is asked for.
        nodes: Addresses of the nodes there are, for a configuration that names none.

    Raises:
        ValueError: Shards are pinned and there is no node.
    """
    pinned = config.placement == "pinned"
    places = config.nodes or tuple(sorted(nodes))
    if pinned and not places:
        raise ValueError("there is no node to pin the shards to")
    shards = [
        ShardPlan(
            store=config.name,
            index=index,
            count=config.shards,
            directory=str(Path(config.root) / f"shard-{index:05d}"),
            placement=config.placement,
            node=places[index % len(places)] if pinned else "",
            place=config.place,
            config=config.store,
        )
        for index in range(config.shards)
    ]
    return ClusterPlan(config=config, shards=tuple(shards))
