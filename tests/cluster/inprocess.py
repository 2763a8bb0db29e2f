"""Cluster stores without Ray: shards in the test's own event loop, and a transport that can fail as Ray's can.

A call is pieces of bytes in and bytes out, as on the way through Ray. What may happen to one is decided by `Weather`:
the answer comes; the shard ends before the call is begun, or after it was done but before the answer; the call is done
twice, as when Ray repeats it. Whoever has ended is started again by the transport, as Ray does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Literal

import anyio
import anyio.abc

from tokenstore.cluster.channel import BrokenError, Channel, Done
from tokenstore.cluster.client import ClusterStore, ShardClient
from tokenstore.cluster.config import ClusterConfig, ClusterPlan, ShardPlan, plan_of
from tokenstore.cluster.remote import RemoteShard
from tokenstore.cluster.shard import Shard, fence_of, opened

Event = Literal["answer", "ends before", "ends after", "twice", "broken"]
"""What happens to a call."""


def fair() -> Iterator[Event]:
    """Weather in which every call is answered."""
    while True:
        yield "answer"


class HostedHere:
    """One shard in the running loop, which can end and start again.

    Args:
        plan: The shard.
        tasks: Where it lives.
    """

    def __init__(self, plan: ShardPlan, tasks: anyio.abc.TaskGroup) -> None:
        self.plan = plan
        self.starts = 0
        self.ends_at_parts: set[int] = set()
        """Parts of long answers before each of which it ends, once."""
        self._tasks = tasks
        self._life: anyio.CancelScope | None = None
        self._shard: Shard | None = None
        self._ended = anyio.Event()
        self._turn = anyio.Lock()

    async def shard(self) -> Shard:
        """Give the shard, started again if it has ended."""
        async with self._turn:
            if self._shard is None:
                self._shard = await self._tasks.start(self._live)
        assert self._shard is not None
        return self._shard

    async def end(self) -> None:
        """End the shard, whatever it is doing."""
        async with self._turn:
            life, self._life, self._shard = self._life, None, None
            if life is not None:
                life.cancel()
                await self._ended.wait()

    async def _live(self, *, task_status: anyio.abc.TaskStatus[Shard]) -> None:
        self._ended = anyio.Event()
        with anyio.CancelScope() as self._life:
            async with opened(self.plan, fence_of(self.plan, "here"), create=True) as shard:
                self.starts += 1
                task_status.started(shard)
                await anyio.sleep_forever()
        self._ended.set()


class InProcessTransport:
    """Carries calls to a shard in the same loop.

    Args:
        hosted: The shard.
        tasks: Where calls run.
        weather: What happens to each call.
    """

    def __init__(self, hosted: HostedHere, tasks: anyio.abc.TaskGroup, weather: Iterator[Event]) -> None:
        self.ready = True
        self.on_ready: Callable[[], None] = lambda: None
        self.sizes: list[list[int]] = []
        """Lengths of the pieces of every batch."""
        self.events: list[Event] = []
        self._hosted = hosted
        self._tasks = tasks
        self._weather = weather

    def call(self, pieces: Sequence[bytes], done: Done, *, once: bool) -> None:
        """Have a batch done, as the weather will have it."""
        self.sizes.append([len(piece) for piece in pieces])
        self._tasks.start_soon(self._call, pieces, done, once)

    def wait(self, ticket: str, done: Done) -> None:
        """Have the outcome of what took longer."""
        self._tasks.start_soon(self._plain, lambda shard: shard.wait(ticket), done)

    def more(self, ticket: str, number: int, done: Done) -> None:
        """Have a further part of a long answer."""
        self._tasks.start_soon(self._more, ticket, number, done)

    async def _more(self, ticket: str, number: int, done: Done) -> None:
        if number in self._hosted.ends_at_parts:
            self._hosted.ends_at_parts.remove(number)
            await self._hosted.end()
        await self._plain(lambda shard: shard.more(ticket, number), done)

    async def _plain(self, ask: Callable[[Shard], Awaitable[bytes]], done: Done) -> None:
        done(await ask(await self._hosted.shard()))

    async def _call(self, pieces: Sequence[bytes], done: Done, once: bool) -> None:
        event = next(self._weather)
        self.events.append(event)
        if event == "ends before":
            await self._hosted.end()
            if once:
                done(BrokenError("it ended"))
                return
        elif event in ("ends after", "twice"):
            await (await self._hosted.shard()).call(*pieces)
            if event == "ends after":
                await self._hosted.end()
            if once:
                done(BrokenError("the answer was lost"))
                return
        answer = await (await self._hosted.shard()).call(*pieces)
        done(BrokenError("the answer was lost") if event == "broken" else answer)


class Cluster:
    """A cluster store in this loop: its shards, and clients of them.

    Args:
        plan: The store.
        tasks: Where it lives.
        weather: What happens to calls.
    """

    def __init__(self, plan: ClusterPlan, tasks: anyio.abc.TaskGroup, weather: Iterator[Event]) -> None:
        self.plan = plan
        self.hosted = [HostedHere(shard, tasks) for shard in plan.shards]
        self.transports: list[InProcessTransport] = []
        self.deadline = 30.0
        self._tasks = tasks
        self._weather = weather

    def client(self) -> ClusterStore:
        """Make a client with channels of its own, as another process would have."""
        return ClusterStore(self)

    def resolve(self) -> tuple[ClusterPlan, Sequence[ShardClient]]:
        """Be the link of a client."""
        return self.plan, [self._remote(hosted) for hosted in self.hosted]

    def _remote(self, hosted: HostedHere) -> RemoteShard:
        transport = InProcessTransport(hosted, self._tasks, self._weather)
        self.transports.append(transport)
        return RemoteShard(Channel("runs", hosted.plan.index, transport, deadline=self.deadline))

    async def end_all(self) -> None:
        """End every shard."""
        async with AsyncExitStack() as stack:
            for hosted in self.hosted:
                stack.push_async_callback(hosted.end)


@asynccontextmanager
async def cluster(
    root: Path, *, shards: int = 3, weather: Iterator[Event] | None = None, **fields: object
) -> AsyncIterator[Cluster]:
    """Run a cluster store while the block runs."""
    config = ClusterConfig(name="runs", root=root, shards=shards, **fields)  # type: ignore[arg-type]
    async with anyio.create_task_group() as tasks:
        there = Cluster(plan_of(config, ["here"]), tasks, weather or fair())
        yield there
        await there.end_all()
