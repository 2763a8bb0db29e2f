"""The way to a shard: batches, bounds, deadlines, cancellation, and what is sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest

from tests.samples import entry
from tokenstore.cluster import channel as channels
from tokenstore.cluster.allowance import Allowance
from tokenstore.cluster.channel import CALLS, BrokenError, Channel, Done
from tokenstore.cluster.wire import (
    PART_BYTES,
    PIECE_BYTES,
    Failure,
    Later,
    Lost,
    Operation,
    Value,
    decode_operation,
    encode_outcome,
    pack,
    unpack,
)
from tokenstore.errors import InvalidEntryError, ShardUnavailableError, TokenCaptureFrozenError, TokenStoreError
from tokenstore.loop import Loop

pytestmark = pytest.mark.anyio


class Held:
    """A call that the test answers."""

    def __init__(self, pieces: Sequence[bytes], done: Done, *, once: bool) -> None:
        self.pieces = pieces
        self.once = once
        self._done = done

    @property
    def operations(self) -> list[Operation]:
        """What is to be done."""
        return [decode_operation(blob) for blob in unpack(b"".join(self.pieces))]

    def answer(self, *outcomes: Any) -> None:
        """Give the outcomes, or to each operation its first argument."""
        given = outcomes or [Value(operation.arguments[0]) for operation in self.operations]
        self._done(pack([encode_outcome(outcome) for outcome in given]))

    def give(self, answer: bytes) -> None:
        """Give these bytes."""
        self._done(answer)

    def fail(self, error: Exception) -> None:
        """Give no answer."""
        self._done(error)


class HeldTransport:
    """Holds every call until the test answers it."""

    def __init__(self) -> None:
        self.ready = True
        self.on_ready: Callable[[], None] = lambda: None
        self.calls: deque[Held] = deque()
        self.waits: deque[tuple[str, Done]] = deque()
        self.parts: deque[tuple[str, int, Done]] = deque()

    def call(self, pieces: Sequence[bytes], done: Done, *, once: bool) -> None:
        """Hold a batch."""
        self.calls.append(Held(pieces, done, once=once))

    def wait(self, ticket: str, done: Done) -> None:
        """Hold a question for what took longer."""
        self.waits.append((ticket, done))

    def more(self, ticket: str, number: int, done: Done) -> None:
        """Hold a question for a part."""
        self.parts.append((ticket, number, done))


class BrokenTransport(HeldTransport):
    """Has no connection at all."""

    def call(self, *_: object, **__: object) -> None:
        """Fail."""
        raise RuntimeError("not connected")


class Asker:
    """Asks through a channel in tasks of its own, and keeps what came of each."""

    def __init__(self, transport: HeldTransport, tasks: anyio.abc.TaskGroup, deadline: float = 30.0) -> None:
        self.channel = Channel("runs", 3, transport, deadline=deadline)
        self.outcomes: dict[Any, Any] = {}
        self.transport = transport
        self._tasks = tasks

    async def ask(self, key: Any, name: str = "begin_call", *arguments: Any) -> None:
        """Begin to ask, and go on when it has been posted."""
        self._tasks.start_soon(partial(self._ask, key, name, *(arguments or (key,))))
        await anyio.wait_all_tasks_blocked()

    async def _ask(self, key: Any, name: str, *arguments: Any) -> None:
        try:
            self.outcomes[key] = await self.channel.ask(name, *arguments)
        except Exception as error:  # noqa: BLE001 - the test judges it
            self.outcomes[key] = error


async def answer_all(transport: HeldTransport) -> None:
    """Answer calls until there are no more."""
    while transport.calls:
        transport.calls.popleft().answer()
        await anyio.wait_all_tasks_blocked()


async def test_what_waits_travels_together() -> None:
    """Four calls are on their way at most; what is asked meanwhile is one batch, in order."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(20):
            await asker.ask(key)
        sent = [[operation.arguments[0] for operation in call.operations] for call in transport.calls]
        transport.calls.popleft().answer()
        await anyio.wait_all_tasks_blocked()
        batch = [operation.arguments[0] for operation in transport.calls[-1].operations]
        await answer_all(transport)

    assert sent == [[key] for key in range(CALLS)]
    assert batch == list(range(CALLS, 20))
    assert asker.outcomes == {key: key for key in range(20)}


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
async def test_batches_and_pieces_are_bounded() -> None:
    """A batch stays within 4 MiB unless it is one entry, and every piece below 96 KiB."""
    transport = HeldTransport()
    large = [entry(f"c{number}", prompt_token_ids=list(range(70_000, 320_000))) for number in range(12)]
    huge = entry("huge", prompt_token_ids=list(range(70_000, 1_200_000)))
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for call in [*large, huge]:
            await asker.ask(call.model_call_id, "put", call)
        batches = []
        while transport.calls:
            held = transport.calls.popleft()
            batches.append(([len(piece) for piece in held.pieces], len(held.operations)))
            held.answer()
            await anyio.wait_all_tasks_blocked()

    assert max(size for sizes, _ in batches for size in sizes) == PIECE_BYTES
    assert all(sum(sizes) <= PART_BYTES + 4096 or count == 1 for sizes, count in batches)
    assert max(count for _, count in batches) > 1
    assert len(asker.outcomes) == 13


async def test_reading_does_not_wait_behind_writing() -> None:
    """A freeze is sent while every writing call is on its way, alone in its call."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS + 1):
            await asker.ask(key)
        await asker.ask("r", "freeze")
        names = [operation.name for call in transport.calls for operation in call.operations]
        await answer_all(transport)

    assert names == ["begin_call"] * CALLS + ["freeze"]


async def test_delete_travels_alone_and_once() -> None:
    """A delete is a batch of its own that is never repeated, whatever waits before and behind it."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS):
            await asker.ask(key)
        await asker.ask("a")
        await asker.ask("gone", "delete", ["r"])
        await asker.ask("b")
        batches = []
        while transport.calls:
            held = transport.calls.popleft()
            batches.append(([operation.name for operation in held.operations], held.once))
            held.answer()
            await anyio.wait_all_tasks_blocked()

    assert batches[CALLS:] == [(["begin_call"], False), (["delete"], True), (["begin_call"], False)]


@pytest.mark.parametrize(("name", "again"), [("begin_call", True), ("delete", False)])
async def test_what_broke_is_sent_again(name: str, again: bool) -> None:
    """What broke on its way is sent again as soon as the shard is back; a delete raises that it may have been done."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        await asker.ask("r", name)
        transport.ready = False
        transport.calls.popleft().fail(BrokenError("gone"))
        await anyio.wait_all_tasks_blocked()
        waiting = len(transport.calls)
        transport.ready = True
        transport.on_ready()
        await answer_all(transport)

    assert waiting == 0
    if again:
        assert asker.outcomes == {"r": "r"}
    else:
        error = asker.outcomes["r"]
        assert isinstance(error, ShardUnavailableError)
        assert (error.shard, error.outcome_unknown) == (3, True)


async def test_an_unexpected_failure_is_told() -> None:
    """What fails in a way that no repetition helps is an error for each who asked, and the next call goes on."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        await asker.ask("a")
        transport.calls.popleft().fail(ZeroDivisionError("by zero"))
        await asker.ask("b")
        await answer_all(transport)

    assert str(asker.outcomes["a"]) == "ZeroDivisionError: by zero"
    assert isinstance(asker.outcomes["a"], TokenStoreError)
    assert asker.outcomes["b"] == "b"


async def test_no_connection_is_told() -> None:
    """A transport that cannot send at all is an error at once."""
    async with anyio.create_task_group() as tasks:
        asker = Asker(BrokenTransport(), tasks)
        await asker.ask("a")

    assert str(asker.outcomes["a"]) == "RuntimeError: not connected"


async def test_each_gets_its_own_outcome() -> None:
    """Values and errors of one batch go to those who asked for them."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS + 2):
            await asker.ask(key)
        for _ in range(CALLS):
            transport.calls.popleft().answer()
        transport.calls.popleft().answer(Failure(TokenCaptureFrozenError("r")), Value("done"))
        await anyio.wait_all_tasks_blocked()

    assert isinstance(asker.outcomes[CALLS], TokenCaptureFrozenError)
    assert asker.outcomes[CALLS + 1] == "done"


async def test_a_ticket_is_waited_for_apart() -> None:
    """What takes longer leaves its place to others, and its outcome comes under its ticket."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS + 1):
            await asker.ask(key)
        transport.calls.popleft().answer(Later("t0"))
        await anyio.wait_all_tasks_blocked()
        others = len(transport.calls)
        await answer_all(transport)
        ticket, done = transport.waits.popleft()
        before = dict(asker.outcomes)
        done(pack([encode_outcome(Value("late"))]))
        await anyio.wait_all_tasks_blocked()

    assert (ticket, others, 0 in before) == ("t0", CALLS, False)
    assert asker.outcomes[0] == "late"


async def test_one_ticket_is_for_all_that_takes_longer() -> None:
    """What takes longer of one batch is asked for together, and what still takes longer then, again."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS + 4):
            await asker.ask(key)
        for _ in range(CALLS):
            transport.calls.popleft().answer()
        transport.calls.popleft().answer(Later("t"), Value("b"), Later("t"), Later("t"))
        await anyio.wait_all_tasks_blocked()
        first = len(transport.waits)
        transport.waits.popleft()[1](pack([encode_outcome(Later("t")), encode_outcome(Value("c")), LATER]))
        await anyio.wait_all_tasks_blocked()
        second = len(transport.waits)
        transport.waits.popleft()[1](pack([encode_outcome(Value("a")), encode_outcome(Value("d"))]))

    assert (first, second) == (1, 1)
    assert [asker.outcomes[key] for key in range(CALLS, CALLS + 4)] == ["a", "b", "c", "d"]


LATER = encode_outcome(Later("t"))


@pytest.mark.parametrize("lost", [pack([encode_outcome(Lost())]), BrokenError("gone")])
async def test_a_lost_ticket_is_asked_for_anew(lost: bytes | Exception) -> None:
    """A ticket that died with its process is the operation's second beginning."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        await asker.ask("r")
        transport.calls.popleft().answer(Later("t0"))
        transport.waits.popleft()[1](lost)
        await answer_all(transport)

    assert asker.outcomes == {"r": "r"}


async def test_what_is_asked_twice_under_one_ticket_is_nobody_elses() -> None:
    """A ticket that Ray asks for twice gives what the first answer left over, which is not taken for the whole."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS + 3):
            await asker.ask(key)
        for _ in range(CALLS):
            transport.calls.popleft().answer()
        transport.calls.popleft().answer(Later("t"), Later("t"), Later("t"))
        transport.waits.popleft()[1](pack([encode_outcome(Value("second")), encode_outcome(Value("third"))]))
        await anyio.wait_all_tasks_blocked()
        again = [operation.arguments[0] for operation in transport.calls[0].operations]
        await answer_all(transport)

    assert again == [CALLS, CALLS + 1, CALLS + 2]
    assert [asker.outcomes[key] for key in again] == again


async def test_an_answer_that_cannot_be_read_is_told() -> None:
    """Bytes that are no answer are an error for each who asked, and their bytes are free again."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key, answer in (("a", b"garbage"), ("b", pack([b"garbage"]))):
            await asker.ask(key)
            transport.calls.popleft().give(answer)

    for error in asker.outcomes.values():
        assert isinstance(error, TokenStoreError)
        assert "cannot be read, so the outcome is unknown" in str(error)
    assert asker.channel._allowance.taken == 0


class NoTickets(HeldTransport):
    """Loses its connection before a ticket is asked for."""

    def wait(self, *_: object) -> None:
        """Fail."""
        raise RuntimeError("not connected")


async def test_a_ticket_that_cannot_be_asked_for_is_lost() -> None:
    """Where the way breaks before a ticket was asked for, the operation is sent again."""
    transport = NoTickets()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        await asker.ask("r")
        transport.calls.popleft().answer(Later("t0"))
        await anyio.wait_all_tasks_blocked()
        await answer_all(transport)

    assert asker.outcomes == {"r": "r"}


async def test_a_deadline_tells_whether_it_was_sent() -> None:
    """A call that was sent has an unknown outcome at its deadline; one that waited for its turn was not done."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks, deadline=0.2)
        for key in range(CALLS + 1):
            await asker.ask(key)

    unknown = [asker.outcomes[key].outcome_unknown for key in range(CALLS + 1)]
    assert unknown == [True] * CALLS + [False]
    assert "within 0.2 s" in str(asker.outcomes[0])


async def test_without_a_shard_nothing_was_done() -> None:
    """Where there is no shard to call, the deadline says that nothing was done, and nothing is sent later."""
    transport = HeldTransport()
    transport.ready = False
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks, deadline=0.1)
        await asker.ask("a")
    transport.ready = True
    transport.on_ready()

    assert asker.outcomes["a"].outcome_unknown is False
    assert not transport.calls


async def test_who_is_cancelled_before_the_turn_is_not_sent() -> None:
    """Cancelled while it waits for its turn, an operation is never sent, and its bytes are free again."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(CALLS):
            await asker.ask(key)
        with anyio.move_on_after(0.01):
            await asker.channel.ask("begin_call", "left")
        await asker.ask("last")
        for _ in range(CALLS):
            transport.calls.popleft().answer()
        sent = [operation.arguments[0] for operation in transport.calls[0].operations]
        await answer_all(transport)

    assert sent == ["last"]
    assert asker.channel._allowance.taken == 0


async def test_who_is_cancelled_on_the_way_is_done_all_the_same() -> None:
    """Cancelled after it was sent, an operation goes on, and its bytes are free when it is done, not before."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        with anyio.move_on_after(0.01):
            await asker.channel.ask("begin_call", "left")
        held, taken = len(transport.calls), asker.channel._allowance.taken
        await answer_all(transport)

    assert held == 1
    assert taken > 0
    assert asker.channel._allowance.taken == 0


async def test_who_left_is_not_sent_again() -> None:
    """What broke on its way is not sent again when nobody waits for it any more."""
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        with anyio.move_on_after(0.01):
            await asker.channel.ask("begin_call", "left")
        transport.calls.popleft().fail(BrokenError("gone"))
        await anyio.wait_all_tasks_blocked()

    assert not transport.calls
    assert asker.channel._allowance.taken == 0


async def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the bound an operation waits outside the queue, and comes in when bytes are free."""
    monkeypatch.setattr(channels, "WAITING_BYTES", 10_000)
    transport = HeldTransport()
    async with anyio.create_task_group() as tasks:
        asker = Asker(transport, tasks)
        for key in range(5):
            await asker.ask(key)
        sent = len(transport.calls)
        transport.calls.popleft().answer()
        await anyio.wait_all_tasks_blocked()
        after = len(transport.calls)
        await answer_all(transport)

    assert (sent, after) == (4, 4)
    assert len(asker.outcomes) == 5
    assert asker.channel._allowance.taken == 0


async def test_what_cannot_be_written_costs_nothing() -> None:
    """An operation that cannot be written raises, and gives its bytes back."""
    transport = HeldTransport()
    channel = Channel("runs", 0, transport, deadline=1)

    with pytest.raises(InvalidEntryError):
        await channel.ask("put", entry(extra={"f": lambda: 0}))

    assert channel._allowance.taken == 0
    assert not transport.calls


async def test_a_lost_part_is_a_lookup_error() -> None:
    """A part of an answer whose process has ended is a LookupError, whoever lost it."""
    transport = HeldTransport()
    channel = Channel("runs", 0, transport, deadline=5)
    for lost in (encode_outcome(Lost()), BrokenError("gone")):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_answer_part, transport, lost)
            with pytest.raises(LookupError):
                await channel.more("t", 1)


async def _answer_part(transport: HeldTransport, answer: bytes | Exception) -> None:
    while not transport.parts:
        await anyio.wait_all_tasks_blocked()
    transport.parts.popleft()[2](answer)


async def test_a_part_has_a_deadline_too() -> None:
    """A part that does not come is an error, and nothing is unknown: reading changes nothing."""
    channel = Channel("runs", 0, HeldTransport(), deadline=0.05)

    with pytest.raises(ShardUnavailableError) as caught:
        await channel.more("t", 1)

    assert not caught.value.outcome_unknown


async def test_an_allowance_goes_round() -> None:
    """Who waits for bytes gets them in order, a large wish is granted alone, and who leaves lets the next one in."""
    allowance, loop = Allowance(100), Loop()
    granted: list[int] = []

    async def take(size: int) -> None:
        await allowance.take(size, loop)
        granted.append(size)

    await allowance.take(60, loop)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(take, 500)
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(take, 30)
                await anyio.wait_all_tasks_blocked()
                assert granted == []
                scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert granted == [30]
        tasks.start_soon(take, 500)
        await anyio.wait_all_tasks_blocked()
        allowance.give(90)
        await anyio.wait_all_tasks_blocked()

    assert granted == [30, 500]
    allowance.give(500)
    assert allowance.taken == 0
