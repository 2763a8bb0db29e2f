"""The actors of a cluster store: plain classes, whose async methods Ray calls.

A shard's actor runs the shard; its answers are bytes, errors among them, so that no error of ours is taken by Ray for
one of its own. The manifest's actor holds what the store is, and looks after the shards so that `status` can tell
since when one is away.
"""

from __future__ import annotations

import threading
from typing import Any

from anyio import to_thread

from tokenstore.cluster import on_ray
from tokenstore.cluster.config import ClusterPlan, ShardPlan
from tokenstore.cluster.hosted import Hosted
from tokenstore.cluster.values import ClusterStatus, ShardStatus
from tokenstore.cluster.watching import LOOK_SECONDS, Watch
from tokenstore.cluster.wire import Failure, Lost, Value, encode_outcome, pack, unpack

CLOSE_SECONDS = 30.0
"""To finish what was accepted when a store is taken down."""

NEVER_REPEATED = ("call_once", "status", "close")
"""Methods of a shard's actor that Ray must not repeat when it restarts."""


def manifest_of(store: str) -> str:
    """Name of the manifest's actor."""
    return f"{store}/manifest"


class ShardActor:
    """Runs one shard.

    Args:
        plan: The shard.
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._hosted = Hosted(plan, on_ray.here().address, on_ray.spawn)
        self._hosted.start()

    async def prepare(self, create: bool) -> bytes:
        """Open the shard, making its directory if that is wanted; the outcome is the word of its directory."""
        try:
            return encode_outcome(Value(await self._hosted.prepare(create=create)))
        except Exception as error:  # noqa: BLE001 - it is told to whoever deploys
            return encode_outcome(Failure(error))

    async def call(self, *pieces: bytes) -> bytes:
        """Do a batch of operations."""
        try:
            return await self._hosted.ask(lambda shard: shard.call(*pieces))
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked
            return pack([encode_outcome(Failure(error))] * len(unpack(b"".join(pieces))))

    async def call_once(self, *pieces: bytes) -> bytes:
        """The same; only what Ray does with it differs."""
        return await self.call(*pieces)

    async def wait(self, ticket: str) -> bytes:
        """Wait for the outcomes of what took longer."""
        try:
            return await self._hosted.ask(lambda shard: shard.wait(ticket))
        except Exception:  # noqa: BLE001 - the tickets of a shard that was closed are lost
            return pack([encode_outcome(Lost())])

    async def more(self, ticket: str, number: int) -> bytes:
        """Give a further part of a long answer."""
        try:
            return await self._hosted.ask(lambda shard: shard.more(ticket, number))
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked
            return encode_outcome(Failure(error))

    async def status(self) -> ShardStatus:
        """Tell how the shard is."""
        return self._hosted.status()

    async def close(self) -> None:
        """Finish what was accepted."""
        await self._hosted.close()


class ManifestActor:
    """Holds what a cluster store is.

    Args:
        plan: Every shard in its place.
    """

    def __init__(self, plan: ClusterPlan) -> None:
        self._plan = plan
        self._watch = Watch(plan.shards, _ask, on_ray.answers)
        self._looks = threading.Condition()
        self._begun = self._done = 0
        self._wanted = threading.Event()
        threading.Thread(target=self._look_after, name="manifest", daemon=True).start()

    async def plan(self) -> ClusterPlan:
        """Give every shard in its place."""
        return self._plan

    async def status(self) -> ClusterStatus:
        """Look at the shards, and tell how they are."""
        await to_thread.run_sync(self._look_now)
        return ClusterStatus(config=self._plan.config, shards=self._watch.known())

    def _look_now(self) -> None:
        """Wait for the end of a look that began after this call."""
        with self._looks:
            number = self._begun + 1
            self._wanted.set()
            self._looks.wait_for(lambda: self._done >= number)

    def _look_after(self) -> None:
        while True:
            self._wanted.clear()
            with self._looks:
                self._begun += 1
            self._watch.look()
            with self._looks:
                self._done = self._begun
                self._looks.notify_all()
            self._wanted.wait(LOOK_SECONDS)


def _ask(shard: ShardPlan) -> Any:
    """Ask a shard how it is; None if its actor is not there."""
    actor = on_ray.find(shard.actor)
    return None if actor is None else actor.status.remote()
