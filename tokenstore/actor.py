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

import copy
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tokenstore.errors import LockTimeoutError, StoreClosedError, TokenStoreError
from tokenstore.journal.files import LockBusyError
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import Names
from tokenstore.journal.requests import Begin, Put
from tokenstore.mailbox import Message, Solo

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
"""How long an actor may hold its lock in back-to-back batches."""
PAUSE_SECONDS = 0.010
"""How long it then leaves the lock free: two tries of whoever waits."""


class Actor:
    """Serves the operations on one rollout, in the event loop of its host."""

    def __init__(self, host: Host, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.last_used = anyio.current_time()
        self._host = host
        self._journal = Journal(host.root, rollout_id)
        self._send: MemoryObjectSendStream[Message]
        self._receive: MemoryObjectReceiveStream[Message]
        self._send, self._receive = anyio.create_memory_object_stream(MAILBOX_SIZE)
        self._next: Message | None = None
        self._turn_began = 0.0
        self._turn_ended = 0.0
        self._ending = False

    # ------------------------------------------------------------------------------------------ for senders

    @property
    def queued(self) -> int:
        """Messages that wait."""
        statistics = self._send.statistics()
        return statistics.current_buffer_used + statistics.tasks_waiting_send + (self._next is not None)

    def try_deliver(self, message: Message) -> bool:
        """Put a message into the mailbox at once; false if it is full."""
        try:
            self._send.send_nowait(message)
        except anyio.WouldBlock:
            return False
        return True

    async def deliver(self, message: Message) -> None:
        """Wait for a place in the mailbox; while somebody waits, the actor stays.

        Raises:
            anyio.BrokenResourceError: The actor ended meanwhile without taking the message.
        """
        await self._send.send(message)

    def close(self) -> None:
        """Take no more messages; the actor serves those it has, and ends."""
        self._send.close()

    # ------------------------------------------------------------------------------------------ the task

    async def run(self) -> None:
        """Serve until the mailbox is closed, the actor is idle for long, or the journal must be given up."""
        failure: BaseException = StoreClosedError("the store's event loop ended; the outcome of this call is unknown")
        try:
            await self._serve_all()
        except Exception as error:
            logger.exception("the actor of rollout %s failed", self.rollout_id)
            failure = error
        finally:
            self._host.forget(self)
            self._fail_rest(failure)
            self._journal.close()

    async def _serve_all(self) -> None:
        while not self._ending:
            message = await self._take()
            if message is None:
                await self._host.threads.commit(self._journal.offer_index)
                return
            if message.abandoned:
                message.answer()
            elif isinstance(message.operation, Solo):
                await self._serve_alone(message, message.operation)
            else:
                await self._serve_batch(message)
            self.last_used = anyio.current_time()

    async def _take(self) -> Message | None:
        """The next message, None after the last one of a closed mailbox."""
        if self._next is not None:
            message, self._next = self._next, None
            return message
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            return None

    async def _serve_alone(self, message: Message, operation: Solo) -> None:
        result, error = await self._attempt(lambda: operation.run(self._journal), reads=operation.reads)
        if operation.retires and error is None and not self.queued:
            # No await from here to the end of run(): nobody can find this actor and lose a message to it.
            self._ending = True
            self._host.forget(self)
        message.answer(result, error)

    async def _serve_batch(self, first: Message) -> None:
        budget = self._host.budget
        await budget.take(first.cost)
        batch = self._drain(first)
        requests = [message.operation for message in batch if isinstance(message.operation, Put | Begin)]
        try:
            _, error = await self._attempt(lambda: self._journal.commit(requests), reads=False)
        finally:
            budget.give(sum(message.cost for message in batch))
        for message, request in zip(batch, requests, strict=True):
            message.answer(error=request.error or _for_one(error))
            self._host.note_put(message)

    def _drain(self, first: Message) -> list[Message]:
        """The first message and those behind it that may join: puts and begins whose bytes are free at once."""
        batch, cost = [first], first.cost
        limit = min(BATCH_BYTES, self._host.budget.limit // BATCH_SHARE)
        while len(batch) < BATCH_SIZE:
            message = self._take_nowait()
            if message is None:
                break
            if message.abandoned:
                message.answer()
                continue
            joins = not isinstance(message.operation, Solo) and cost + message.cost <= limit
            if not joins or not self._host.budget.try_take(message.cost):
                self._next = message
                break
            cost += message.cost
            batch.append(message)
        return batch

    def _take_nowait(self) -> Message | None:
        try:
            return self._receive.receive_nowait()
        except (anyio.WouldBlock, anyio.EndOfStream):
            return None

    async def _attempt(self, function: Callable[[], Any], *, reads: bool) -> tuple[Any, BaseException | None]:
        """Run a function of the journal in a worker thread, and give its result or the error for those who wait."""
        try:
            return await self._hop(function, reads=reads), None
        except TokenStoreError as error:
            if self._journal.poisoned:
                self._host.root.counters.poisoned += 1
                self._ending = True
                self._host.forget(self)
                self._fail_rest(error)
            return None, error
        except Exception as error:
            logger.exception("an operation on rollout %s failed", self.rollout_id)
            self._ending = True
            return None, error

    async def _hop(self, function: Callable[[], T], *, reads: bool) -> T:
        """One way to a worker thread and back; again, after a pause on the loop, while another holds the lock."""
        run = self._host.threads.read if reads else self._host.threads.commit
        timeout = self._host.config.lock_timeout
        deadline = anyio.current_time() + timeout
        await self._be_fair()
        while True:
            try:
                return await run(function)
            except LockBusyError:
                if anyio.current_time() >= deadline:
                    path = self._host.path / Names.of(self.rollout_id).lock
                    raise LockTimeoutError(str(path), timeout) from None
            finally:
                self._turn_ended = anyio.current_time()
            await anyio.sleep(random.uniform(*BACK_OFF))  # noqa: S311 - jitter, no secret

    async def _be_fair(self) -> None:
        """Leave the lock free for a moment after a long turn, so that another process gets it."""
        now = anyio.current_time()
        if now - self._turn_ended > PAUSE_SECONDS:
            self._turn_began = now
        elif now - self._turn_began > TURN_SECONDS:
            await anyio.sleep(PAUSE_SECONDS)
            self._turn_began = anyio.current_time()

    def _fail_rest(self, error: BaseException) -> None:
        """Answer all who wait; no await, so that nobody can come in between."""
        rest: Sequence[Message] = [self._next] if self._next else []
        self._next = None
        for message in [*rest, *iter(self._take_nowait, None)]:
            message.answer(error=_for_one(error))
        self._send.close()
        self._receive.close()


def _for_one(error: BaseException | None) -> BaseException | None:
    """An error of its own for each of many waiters: raising one object in several tasks mixes up their tracebacks."""
    if not isinstance(error, TokenStoreError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
