"""Many machines, on Ray: the same API, files and guarantees, spread over shards.

    deploy(ClusterConfig(name="runs", root="/data/captures", shards=8))
    async with connect("runs") as store: ...

A shard is the ordinary store over a directory of its own, held by a detached actor; a rollout belongs to one shard for
ever. Ray starts processes again and finds them; what may be written, and what is durable, the file system and the store
decide.

1. What was acknowledged is on the disk of its shard. Ray replicates nothing: with the disk of a pinned shard its
   rollouts are lost, and no others.
2. Any operation but `delete` is repeated by Ray and by the client until it is answered or its deadline has come; then
   `ShardUnavailableError` says whether the outcome is unknown. Nothing is done twice.
3. A floating shard has one writer, whatever Ray believes: the fence is in the file system (`claim`).
4. A rollout that was frozen is sealed; what a process that was given up still writes never enters a snapshot.
5. Without Ray each shard's directory opens with the plain store and its tools.

Read in this order: `config`, `placement`, `identity`, `claim`; `wire`, `streams`, `operations`, `shard` and `hosted`,
which are a shard; `channel`, `remote`, `client`, which ask one; then `on_ray`, the only module that imports Ray,
`actors`, `deploying`, `probing`; `nemo_gym`.
"""

from __future__ import annotations

from tokenstore.cluster.client import ClusterStore
from tokenstore.cluster.config import ClusterConfig, ClusterPlan, Placement, ShardPlan
from tokenstore.cluster.deploying import check_fs, connect, deploy, down, status
from tokenstore.cluster.values import ClusterStatus, ShardStatus

__all__ = [
    "ClusterConfig",
    "ClusterPlan",
    "ClusterStatus",
    "ClusterStore",
    "Placement",
    "ShardPlan",
    "ShardStatus",
    "check_fs",
    "connect",
    "deploy",
    "down",
    "status",
]
