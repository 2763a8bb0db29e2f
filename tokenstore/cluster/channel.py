"""The way of one process to one shard: operations that wait travel together.

No task and no loop belongs to it. Who asks writes its operation, puts it into the queue and waits to be woken; whoever
puts, or brings an answer back, sends the next batch if fewer than four calls are on their way. So it serves every event
loop of the process at once, and one that ends takes nothing with it.

1. A batch has up to 4 MiB, or one operation. While four are on their way the next one grows: the more callers, the
   larger the batches. `delete` travels alone, in a call that is never repeated.
2. Bytes are bounded over the queue and what is on its way; first come, first served.
3. Cancelling a caller, or its deadline, cancels no call. Not sent yet, its operation is taken out of the queue and
   nothing was done; else the outcome is unknown.
4. An operation that broke on its way is sent again when the shard is back, as long as somebody waits for it; `delete`
   never is.
5. An answer may be a ticket for what takes longer; the outcome is then waited for apart, beside the four calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import anyio

from tokenstore.cluster.allowance import Allowance
from tokenstore.cluster.operations import ONCE, READING, size_of
from tokenstore.cluster.wire import (
    PART_BYTES,
    Failure,
    Later,
    Lost,
    Operation,
    Outcome,
    Value,
    cut,
    decode_outcome,
    encode_operation,
    pack,
    unpack,
)
from tokenstore.errors import ShardUnavailableError, TokenStoreError
from tokenstore.loop import Bell, Loop

CALLS = 4
"""Calls on their way at once: enough to hide the way, few enough for batches to grow."""
BATCH_OPERATIONS = 512
"""Operations of a batch at most."""
WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of operations that wait or are on their way to a shard."""

Done = Callable[[bytes | BaseException], None]
"""Takes an answer, or why there is none; called from any thread, never before the call that it answers returns."""


class BrokenError(Exception):
    """There is no answer; whether the call was done is unknown."""


class Transport(Protocol):
    """What carries calls to one shard. None of its methods blocks."""

    ready: bool
    """Whether there is a shard to call; when it turns true, `on_ready` is called."""
    on_ready: Callable[[], None]
    """Set by who uses the transport."""

    def call(self, pieces: Sequence[bytes], done: Done, *, once: bool) -> None:
        """Have a batch done. Repeated if the shard restarts, unless `once`."""
        ...

    def wait(self, ticket: str, done: Done) -> None:
        """Have the outcome of what took longer."""
        ...

    def more(self, ticket: str, number: int, done: Done) -> None:
        """Have a further part of a long answer."""
        ...


class Letter:
    """An operation on its way, and who waits for it."""

    def __init__(self, blob: bytes, size: int, loop: Loop, *, once: bool = False) -> None:
        self.blob = blob
        self.size = size
        self.once = once
        self.loop = loop
        self.bell = Bell()
        self.sent = False
        self.abandoned = False
        self.outcome: Outcome | None = None


class Lane:
    """Batches of one kind to one shard.

    Args:
        transport: Carries them.
        allowance: Gets the bytes of letters back.
        batch: Operations of a batch at most.
    """

    def __init__(self, transport: Transport, allowance: Allowance, batch: int) -> None:
        self._transport = transport
        self._allowance = allowance
        self._batch = batch
        self._guard = threading.Lock()
        self._waiting: deque[Letter] = deque()
        self._calls = 0

    def post(self, letter: Letter) -> None:
        """Send an operation, now or with the next batch."""
        with self._guard:
            self._waiting.append(letter)
        self.pump()

    def abandon(self, letter: Letter) -> bool:
        """Nobody waits for a letter any more; give whether it was sent."""
        with self._guard:
            letter.abandoned = True
            if letter.outcome is not None or letter not in self._waiting:
                return letter.sent
            self._waiting.remove(letter)
        self._allowance.give(letter.size)
        return letter.sent

    def pump(self) -> None:
        """Send as many batches as may be on their way."""
        while batch := self._next():
            pieces = cut(pack([letter.blob for letter in batch]))
            try:
                self._transport.call(pieces, partial(self._answered, batch), once=batch[0].once)
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to those who wait
                with self._guard:
                    self._calls -= 1
                self._broken(batch, error)

    def _next(self) -> list[Letter]:
        batch: list[Letter] = []
        size = 0
        with self._guard:
            if self._calls >= CALLS or not self._transport.ready:
                return batch
            while self._waiting and len(batch) < self._batch:
                letter = self._waiting[0]
                if batch and (letter.once or batch[0].once or size + len(letter.blob) > PART_BYTES):
                    break
                batch.append(self._waiting.popleft())
                letter.sent = True
                size += len(letter.blob)
            self._calls += bool(batch)
        return batch

    def _answered(self, batch: list[Letter], answer: bytes | BaseException) -> None:
        with self._guard:
            self._calls -= 1
        try:
            self._deliver(batch, answer)
        finally:
            self.pump()

    def _deliver(self, batch: list[Letter], answer: bytes | BaseException) -> None:
        outcomes = answer if isinstance(answer, BaseException) else _outcomes(answer, len(batch))
        if isinstance(outcomes, BaseException):
            self._broken(batch, outcomes)
            return
        finished, later = [], []
        for letter, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Later):
                ticket = outcome.ticket
                later.append(letter)
            else:
                letter.outcome = outcome
                finished.append(letter)
        self._finish(finished)
        if later:
            self._ask_later(ticket, later)

    def _ask_later(self, ticket: str, batch: list[Letter]) -> None:
        try:
            self._transport.wait(ticket, partial(self._late, batch))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must not wait for ever
            self._broken(batch, BrokenError(str(error)))

    def _late(self, batch: list[Letter], answer: bytes | BaseException) -> None:
        """Take what came under a ticket; one that is lost is the end of an operation, or its second beginning."""
        self._deliver(batch, answer)
        self.pump()

    def _broken(self, batch: list[Letter], error: BaseException) -> None:
        """Send again what may be sent again, and fail the rest."""
        broken = isinstance(error, BrokenError)
        with self._guard:
            again = [letter for letter in batch if broken and not letter.once and not letter.abandoned]
            self._waiting.extendleft(reversed(again))
        over = [letter for letter in batch if letter not in again]
        for letter in over:
            letter.outcome = Lost() if broken else Failure(_of_ours(error))
        self._finish(over)

    def _finish(self, letters: Iterable[Letter]) -> None:
        by_loop: dict[Loop, list[Bell]] = {}
        size = 0
        for letter in letters:
            size += letter.size
            by_loop.setdefault(letter.loop, []).append(letter.bell)
        if by_loop:
            self._allowance.give(size)
        for loop, bells in by_loop.items():
            loop.call_soon(partial(_ring, bells))


class Channel:
    """Asks one shard, from any event loop of this process.

    Args:
        store: Name of the cluster store, for messages.
        shard: Index of the shard.
        transport: Carries the calls.
        deadline: Seconds after which a call is given up.
    """

    def __init__(self, store: str, shard: int, transport: Transport, *, deadline: float) -> None:
        self.deadline = deadline
        self._store = store
        self._shard = shard
        self._transport = transport
        self._allowance = Allowance(WAITING_BYTES)
        self._writing = Lane(transport, self._allowance, BATCH_OPERATIONS)
        self._reading = Lane(transport, self._allowance, 1)
        self._loop: Loop | None = None
        transport.on_ready = self._ready

    async def ask(self, name: str, *arguments: Any) -> Any:
        """Have an operation done.

        Raises:
            ShardUnavailableError: The shard did not answer; the error says whether the outcome is unknown.
            TokenStoreError: What the operation raised.
        """
        operation, loop = Operation(name, arguments), self._here()
        lane = self._reading if name in READING else self._writing
        size = size_of(operation)
        letter: Letter | None = None
        sent = False
        try:
            with anyio.move_on_after(self.deadline):
                await self._allowance.take(size, loop)
                letter = self._letter(operation, size, loop)
                lane.post(letter)
                await letter.bell.wait()
        finally:
            sent = letter is not None and lane.abandon(letter)
        if letter is None or letter.outcome is None:
            raise self.unavailable(f"no answer within {self.deadline:g} s", unknown=sent)
        return self._value(letter.outcome)

    async def more(self, ticket: str, number: int) -> Any:
        """Have a further part of a long answer.

        Raises:
            LookupError: The shard has restarted and knows nothing of it.
            ShardUnavailableError: It did not answer.
        """
        bell, loop = Bell(), self._here()
        answers: list[bytes | BaseException] = []

        def done(answer: bytes | BaseException) -> None:
            answers.append(answer)
            loop.call_soon(bell.ring)

        with anyio.move_on_after(self.deadline):
            self._transport.more(ticket, number, done)
            await bell.wait()
        if not answers:
            raise self.unavailable(f"no answer within {self.deadline:g} s", unknown=False)
        answer = answers[0]
        outcome = Lost() if isinstance(answer, BaseException) else decode_outcome(answer)
        if isinstance(outcome, Lost):
            raise LookupError(ticket)  # noqa: TRY004 - no type is wrong
        return self._value(outcome)

    def unavailable(self, problem: str, *, unknown: bool) -> ShardUnavailableError:
        """Make the error that says that the shard did not answer."""
        return ShardUnavailableError(self._store, self._shard, problem, outcome_unknown=unknown)

    def _letter(self, operation: Operation, size: int, loop: Loop) -> Letter:
        try:
            return Letter(encode_operation(operation), size, loop, once=operation.name in ONCE)
        except BaseException:
            self._allowance.give(size)
            raise

    def _value(self, outcome: Outcome | None) -> Any:
        if isinstance(outcome, Value):
            return outcome.value
        if isinstance(outcome, Failure):
            raise outcome.error
        raise self.unavailable("it ended during the call", unknown=True)

    def _here(self) -> Loop:
        loop = self._loop
        if loop is None or not loop.is_running_here():
            loop = self._loop = Loop()
        return loop

    def _ready(self) -> None:
        self._writing.pump()
        self._reading.pump()


def _outcomes(answer: bytes, count: int) -> list[Outcome] | Exception:
    """Read the outcomes of a batch, or give why they are none.

    Ray may ask twice under one ticket while the shard lives. The second answer is then of what the first one left over:
    always fewer, and taken for the whole each would be somebody else's.
    """
    try:
        outcomes = [decode_outcome(blob) for blob in unpack(answer)]
    except Exception as error:  # noqa: BLE001 - reading runs whatever the classes of the values do
        return TokenStoreError(f"an answer cannot be read, so the outcome is unknown ({type(error).__name__}: {error})")
    if outcomes == [Lost()]:
        return BrokenError("the shard restarted")
    return outcomes if len(outcomes) == count else BrokenError("the answer is of other operations")


def _ring(bells: list[Bell]) -> None:
    for bell in bells:
        bell.ring()


def _of_ours(error: BaseException) -> Exception:
    return error if isinstance(error, TokenStoreError) else TokenStoreError(f"{type(error).__name__}: {error}")
