"""Where actors live: the actors of one event loop, kept in a task group of it.

Callers from that loop await the actors directly; everybody else crosses over (`crossing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc

from tokenstore.actor import Actor
from tokenstore.budget import Budget
from tokenstore.config import StoreConfig
from tokenstore.errors import StoreClosedError
from tokenstore.ids import validate_rollout_id
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Put, Request
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Steps, Wish
from tokenstore.loop import Bell, Loop
from tokenstore.mailbox import Message, Solo
from tokenstore.threads import Threads
from tokenstore.together import SHARED_BYTES, Together

T = TypeVar("T")
MANY = 3
"""Sections under way from which the next one goes with others: below, a thread for each is sooner done."""
CLOSED = "the store is closed; call again if it was never entered, else build a new TokenCaptureStore"
LATENCIES_KEPT = 4096
"""Latest puts from which the statistics take their percentiles."""


class Host:
    """The actors of one event loop."""

    def __init__(self, root: Root, path: Path, threads: Threads) -> None:
        self.root = root
        self.path = path
        self.config: StoreConfig = root.config
        self.threads = threads
        self.budget = Budget(root.config.max_inflight_bytes)
        self.loop = Loop()
        self.latencies: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._actors: dict[str, Actor] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._together = Together(root, threads, lambda function: self._tasks and self._tasks.start_soon(function))
        self._committing = 0
        self._sweeper: anyio.CancelScope | None = None
        self._closing = Bell()
        self.running = Bell()
        """Rung when actors can be started."""

    async def run(self) -> None:
        """Keep the actors until `close`. Shielded: a cancelled caller must not end what others wait for."""
        try:
            with anyio.CancelScope(shield=True):
                async with anyio.create_task_group() as lanes:
                    self.threads.open(lanes)
                    try:
                        await self._keep_actors()
                    finally:
                        # Under trio a Ctrl-C may leave an actor that never began, and so never lets the lanes go.
                        self.threads.dismiss()
        finally:
            self._tasks = None
            self._together.close()
            self.root.directory.close()

    async def _keep_actors(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self.running.ring()
            try:
                await self._closing.wait()
            finally:
                self.begin_close()  # nobody comes in any more, also when the loop is being torn down

    def try_send(self, rollout_id: str, message: Message) -> bool:
        """Hand a message to the rollout's actor at once; false if there is no place for it.

        Raises:
            StoreClosedError: The store is closed.
        """
        return self._actor(rollout_id).mailbox.try_deliver(message)

    async def ask(self, rollout_id: str, message: Message) -> Any:
        """Hand a message to the rollout's actor and wait for its answer.

        Raises:
            StoreClosedError: The store is closed.
        """
        await self.send(rollout_id, message)
        return await message.wait()

    async def send(self, rollout_id: str, message: Message) -> None:
        """Hand a message to the rollout's actor, with no await if there is a place for it.

        Raises:
            StoreClosedError: The store is closed.
        """
        # Looked up and delivered without an await between; who waits for a place in the mailbox keeps the actor.
        if not self.try_send(rollout_id, message):
            mailbox = self._actor(rollout_id).mailbox
            while not await mailbox.deliver(message):
                mailbox = self._actor(rollout_id).mailbox  # the actor had to end before there was a place

    async def pass_by(self, rollout_id: str, operation: Callable[[Journal], Any], *, reads: bool = False) -> Any:
        """Have an operation done for one who walks by all rollouts: an actor that was not there ends after it."""
        retires = validate_rollout_id(rollout_id) not in self._actors
        return await self.ask(rollout_id, Message(Solo(operation, reads=reads, retires=retires)))

    def _actor(self, rollout_id: str) -> Actor:
        if self._closing.rung or self._tasks is None:
            raise StoreClosedError(CLOSED)
        actor = self._actors.get(rollout_id)
        if actor is None:
            actor = self._actors[rollout_id] = Actor(self, rollout_id)
            self.loop.run_apart(self._tasks.start_soon, actor.run)
            self.threads.keep()
            if self._sweeper is None:
                self._sweeper = anyio.CancelScope()
                self.loop.run_apart(self._tasks.start_soon, self._sweep, self._sweeper)
        return actor

    def forget(self, actor: Actor) -> None:
        """Take an actor out, so that the next message starts a new one."""
        if self._actors.get(actor.rollout_id) is actor:
            del self._actors[actor.rollout_id]
            if not self._actors:
                self._stop_sweeper()
                self.threads.dismiss()

    def note_put(self, message: Message) -> None:
        """Keep the time that a put took, for the statistics."""
        age = message.age()
        self.latencies.append(age)
        if isinstance(message.operation, Put):
            self.root.counters.put_seconds.observe(age)

    async def _sweep(self, scope: anyio.CancelScope) -> None:
        """Ask idle actors to retire; runs only while there are actors."""
        idle = self.config.idle_seconds
        with scope:
            while self._actors and not self._closing.rung:
                longest = max(actor.idle_seconds for actor in self._actors.values())
                await anyio.sleep(max(idle / 4, idle - longest))
                for actor in self._actors.values():
                    if actor.idle_seconds >= idle:
                        actor.mailbox.try_deliver(Message(Solo(Journal.offer_index, retires=True)))

    def _stop_sweeper(self) -> None:
        """End it now; the next actor starts another one, which may be before this one has ended."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def begin_close(self) -> None:
        """Take no more messages, and end when those that wait are served; in the host's loop."""
        self._closing.ring()
        for actor in self._actors.values():
            actor.mailbox.close()
        self._stop_sweeper()

    @property
    def queued(self) -> int:
        """Messages that wait in mailboxes."""
        return sum(actor.mailbox.queued for actor in list(self._actors.values()))

    @property
    def actors(self) -> int:
        """Rollouts with a running actor."""
        return len(self._actors)

    async def commit(self, journal: Journal, requests: Sequence[Request], cost: int) -> None:
        """Have a journal commit a batch, of which `cost` estimates the bytes, in a worker thread.

        Small ones go with those of others where many come.
        """
        together = self.config.sync == "filesystem" or (self._busy and journal.settled)
        await self._run(journal, journal.committing(requests), together=together and cost <= SHARED_BYTES)

    async def do(self, operation: Solo, journal: Journal) -> Any:
        """Have an operation done that is handled alone, in a worker thread."""
        if operation.reads:
            return await self.threads.read(operation.run, journal)
        if not operation.in_steps:
            return await self.threads.commit(operation.run, journal)
        together = self._busy and self.config.sync != "filesystem"
        return await self._run(journal, operation.run(journal), together=together)

    @property
    def _busy(self) -> bool:
        return self._committing >= MANY

    async def _run(self, journal: Journal, section: Generator[Wish, None, T], *, together: bool) -> T:
        self._committing += 1
        try:
            if not (together and self._together.able):
                return await self.threads.commit(journal.finish, section)
            steps = Steps(section)
            await self._together.commit(iter(steps))
            return steps.result
        finally:
            self._committing -= 1

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task beside the actors, for a caller from elsewhere."""
        if self._closing.rung or self._tasks is None:
            raise StoreClosedError(CLOSED)
        self._tasks.start_soon(function)
