"""NVIDIA NeMo Gym with a cluster store behind it.

    token_id_capture:
      enabled: true
      sink: tokenstore.cluster.nemo_gym:ClusterTokenSink
      sink_kwargs: {name: runs}
      rebuild_response: false
      allow_unresolved_continuations: true

What `tokenstore.integrations.nemo_gym` says holds here too. The store is looked for at the first call, so a sink may be
made before its process is part of the Ray cluster, and before the store is up.
"""

from __future__ import annotations

from functools import partial

from tokenstore.cluster.client import DEADLINE, ClusterStore
from tokenstore.cluster.deploying import connect
from tokenstore.integrations.nemo_gym import GymClient, GymSink, GymSource


class _InCluster(GymClient[ClusterStore]):
    """A client of a cluster store."""

    def __init__(self, name: str, deadline: float = DEADLINE, address: str | None = None) -> None:
        self.name = name
        super().__init__(partial(connect, name, deadline=deadline, address=address))


class ClusterTokenSink(_InCluster, GymSink[ClusterStore]):
    """Where a NeMo Gym server records its model calls; durable when a method has returned.

    Args:
        name: The cluster store.
        deadline: Seconds after which a call raises `ShardUnavailableError`.
        address: Of the Ray cluster; that of `RAY_ADDRESS`, or the one of this machine, if it is not given.

    Raises:
        ModuleNotFoundError: Ray is not installed; the message says how to add it.
    """


class ClusterTokenSource(_InCluster, GymSource[ClusterStore]):
    """Where a trainer, or a trajectory builder of NeMo Gym, takes finished rollouts from. Arguments as of the sink."""
