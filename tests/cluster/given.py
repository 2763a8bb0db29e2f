"""Plans of shards that tests are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tokenstore.cluster.config import ClusterConfig, ShardPlan, plan_of


def config(root: Path, **fields: Any) -> ClusterConfig:
    """Make the configuration of a store of three shards; other fields by name."""
    return ClusterConfig(**{"name": "runs", "root": root, "shards": 3, **fields})


def shard_plan(root: Path, index: int = 0, **fields: Any) -> ShardPlan:
    """Make the plan of one of three shards; other fields by name."""
    return attrs.evolve(plan_of(config(root), ["10.0.0.1"]).shards[index], **fields)
