"""How a cluster store is, as `status` gives it."""

from __future__ import annotations

from typing import Literal

import attrs

from tokenstore.cluster.claim import Holder
from tokenstore.cluster.config import ClusterConfig
from tokenstore.records import StoreStatistics

ShardState = Literal["up", "opening", "waiting for the lock", "failed", "unavailable"]
"""Whether a shard takes calls, and if not why: `unavailable` is one that does not answer at all."""


@attrs.frozen(kw_only=True)
class ShardStatus:
    """How one shard is."""

    index: int
    """Which shard."""
    directory: str
    """Where its files are."""
    pinned_to: str = ""
    """The node that it belongs to; empty if it belongs to none."""
    state: ShardState = "unavailable"
    """Whether it takes calls."""
    node: str = ""
    """Address of the node that it runs on, empty if that is not known."""
    pid: int | None = None
    """Its process there."""
    holder: Holder | None = None
    """Its claim, if it floats."""
    problem: str = ""
    """Why it failed, in a sentence."""
    batches: int = 0
    """Calls that it has answered since it started."""
    operations: int = 0
    """Operations in them."""
    unavailable_since: float | None = None
    """Since when it does not answer, in seconds since the epoch, as far as the manifest has seen; None if it does."""
    statistics: StoreStatistics | None = None
    """Counters of its store since it started."""


@attrs.frozen(kw_only=True)
class ClusterStatus:
    """How a cluster store is."""

    config: ClusterConfig
    """What was asked for."""
    shards: tuple[ShardStatus, ...]
    """Every shard, by its index."""
