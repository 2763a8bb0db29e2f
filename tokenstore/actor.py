"""One rollout's actor: a task with a bounded mailbox, through which every operation on the rollout passes.

1. Operations of one rollout are done one batch after the other, in the order in which they came.
2. A run of puts and begin_calls is drained from the mailbox and becomes one hop to a worker thread; anything else ends
   the run and is handled alone. There is no timer: an idle rollout pays no delay, a busy one batches.
3. A message is answered exactly once, with its own outcome. What was cancelled while it was queued is never done; what
   was taken is completed, whoever still listens.
4. The wait for a lock that another process holds is on the loop; it holds no thread and no descriptor.
5. An error goes to the waiters, never into the task group. After an error that the journal cannot get over, the actor
   fails all its waiters and ends; the next message starts a new one.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from tokenstore.errors import LockTimeoutError, StoreClosedError, TokenStoreError, copy_of
from tokenstore.journal.held import FREE_SECONDS
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import Names
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.journal.requests import Begin, Put
from tokenstore.mailbox import Mailbox, Message, Solo

if TYPE_CHECKING:
    from tokenstore.hosting import Host

T = TypeVar("T")
logger = logging.getLogger("tokenstore")

MAILBOX_SIZE = 1024
"""Messages that wait in one rollout's mailbox before its senders wait."""
BATCH_SIZE = 1024
"""Messages of one batch."""
BATCH_BYTES = 8 * 1024 * 1024
"""Bytes of one batch: what the next process must write again if it finds them."""
BATCH_SHARE = 8
"""A batch takes at most one part in eight of the bytes in flight, so that other rollouts get theirs."""
BACK_OFF = (0.001, 0.005)
"""Seconds between two tries of a lock, drawn at random."""
TURN_SECONDS = 0.050
"""How long an actor may hold its lock in back-to-back batches; then it leaves it free for a moment."""


class Actor:
    """Serves the operations on one rollout, in the event loop of its host."""

    def __init__(self, host: Host, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.mailbox = Mailbox(MAILBOX_SIZE)
        self._host = host
        self._journal = Journal(host.root, rollout_id)
        self._in_hand: list[Message] = []
        self._last_used = time.monotonic()
        self._failure: Exception = StoreClosedError("the store's event loop ended; the outcome of this call is unknown")
        self._ending = False

    @property
    def idle_seconds(self) -> float:
        """How long it has had nothing to do."""
        if self._in_hand or self.mailbox.queued:
            return 0.0
        return time.monotonic() - self._last_used

    async def run(self) -> None:
        """Serve until the mailbox is closed, the actor is idle for long, or the journal must be given up."""
        try:
            await self._serve_all()
        except Exception as error:
            logger.exception("the actor of rollout %s failed", self.rollout_id)
            self._failure = error
        finally:
            # No await: nobody can find this actor any more and leave a message with it. Closing the journal waits for
            # a critical section that asyncio's own cancellation has left to its thread, as a loop does when it ends.
            self._host.forget(self)
            for message in [*self._in_hand, *self.mailbox.end()]:
                message.answer(error=copy_of(self._failure))
            self._journal.close()

    async def _serve_all(self) -> None:
        while not self._ending and await self._serve_next():
            pass

    async def _serve_next(self) -> bool:
        """Serve what comes next; false when nothing more will come. Nothing of it is kept while the next is awaited."""
        message = await self.mailbox.take()
        if message is None:
            await self._host.threads.commit(self._journal.offer_index)
            return False
        self._in_hand = [message]
        if not message.abandoned:
            await self._serve(message)
            self._last_used = time.monotonic()
        self._in_hand = []
        return True

    async def _serve(self, message: Message) -> None:
        if isinstance(message.operation, Solo):
            await self._serve_alone(message, message.operation)
        else:
            await self._serve_batch(message)

    async def _serve_alone(self, message: Message, operation: Solo) -> None:
        result, error = await self._attempt(lambda: self._host.do(operation, self._journal))
        if operation.retires and error is None and not self.mailbox.queued:
            # No await from here to the end of run(): nobody can find this actor and lose a message to it.
            self._ending = True
        message.answer(result, error)

    async def _serve_batch(self, first: Message) -> None:
        budget = self._host.budget
        if not budget.try_take(first.cost):
            await budget.take(first.cost)
        try:
            if first.abandoned:
                return
            self._drain(first.cost)
            requests = [message.operation for message in self._in_hand if isinstance(message.operation, Put | Begin)]
            cost = sum(message.cost for message in self._in_hand)
            _, error = await self._attempt(lambda: self._host.commit(self._journal, requests, cost))
        finally:
            budget.give(sum(message.cost for message in self._in_hand))
        for message, request in zip(self._in_hand, requests, strict=True):
            message.answer(error=request.error or copy_of(error))
            self._host.note_put(message)

    def _drain(self, cost: int) -> None:
        """Take those that may join the first, which has that cost: puts and begins whose bytes are free at once."""
        limit = min(BATCH_BYTES, self._host.budget.limit // BATCH_SHARE)
        while len(self._in_hand) < BATCH_SIZE and (message := self.mailbox.first) is not None:
            if not message.abandoned:
                joins = not isinstance(message.operation, Solo) and cost + message.cost <= limit
                if not joins or not self._host.budget.try_take(message.cost):
                    break
                cost += message.cost
                self._in_hand.append(message)
            self.mailbox.take_nowait()

    async def _attempt(self, hop: Callable[[], Awaitable[Any]]) -> tuple[Any, Exception | None]:
        """Have something done in a worker thread, and give its result or the error for those who wait."""
        try:
            return await self._hop(hop), None
        except Exception as error:
            foreseen = isinstance(error, TokenStoreError)
            if not foreseen:
                logger.exception("an operation on rollout %s failed", self.rollout_id)
            if self._journal.poisoned:
                self._host.root.counters.poisoned += 1
                told = {"event": "poisoned", "rollout_id": self.rollout_id, "error": type(error).__name__}
                logger.exception("the actor of rollout %s is given up", self.rollout_id, extra=told)
            if self._journal.poisoned or not foreseen:
                # No await from here to the end of run(), which answers all who wait with this error.
                self._ending, self._failure = True, error
            return None, error

    async def _hop(self, hop: Callable[[], Awaitable[T]]) -> T:
        """One way to a worker thread and back; again, after a pause on the loop, while another holds the lock."""
        deadline = time.monotonic() + self._host.config.lock_timeout
        if self._journal.turn_seconds > TURN_SECONDS:
            await anyio.sleep(FREE_SECONDS)
        while True:
            try:
                return await hop()
            except LockBusyError:
                if time.monotonic() >= deadline:
                    raise self._lock_timeout() from None
            await anyio.sleep(random.uniform(*BACK_OFF))  # noqa: S311 - jitter, no secret
            # Nothing was begun: what nobody waits for any more must not be done after what was asked for later.
            if all(message.abandoned for message in self._in_hand):
                raise self._lock_timeout()

    def _lock_timeout(self) -> LockTimeoutError:
        path = self._host.path / Names.of(self.rollout_id).lock
        return LockTimeoutError(str(path), self._host.config.lock_timeout)
