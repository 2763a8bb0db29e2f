"""Messages and the mailbox of an actor: bounded, in order, and nothing is ever in between."""

from __future__ import annotations

import anyio
import pytest

from tests.loops import ticks, until
from tests.samples import entry
from tokenstore.mailbox import Mailbox, Message, Solo, begin_message, put_message

pytestmark = pytest.mark.anyio


def message() -> Message:
    """Make a message that nobody will ask to be done."""
    return Message(Solo(lambda journal: journal))


def messages(count: int) -> list[Message]:
    """Make some."""
    return [message() for _ in range(count)]


async def taken(mailbox: Mailbox) -> list[Message]:
    """Take all there is, giving way to those who wait outside."""
    found = []
    while (each := mailbox.take_nowait()) is not None:
        found.append(each)
        await ticks(3)
    return found


class TestMessage:
    """One operation and its answer."""

    async def test_the_answer_reaches_the_caller(self) -> None:
        """The caller gets the result."""
        one = message()

        one.answer("done")

        assert await one.wait() == "done"

    async def test_an_error_is_raised(self) -> None:
        """The caller gets the error."""
        one = message()

        one.answer(error=ValueError("no"))

        with pytest.raises(ValueError, match="no"):
            await one.wait()

    async def test_the_first_answer_counts(self) -> None:
        """A second answer changes nothing."""
        one = message()

        one.answer("first")
        one.answer(error=ValueError("second"))

        assert await one.wait() == "first"

    async def test_who_is_cancelled_abandons(self) -> None:
        """A message whose caller was cancelled is abandoned."""
        one = message()

        with anyio.CancelScope() as scope:
            scope.cancel()
            await one.wait()

        assert one.abandoned

    async def test_costs_grow_with_the_entry(self) -> None:
        """The estimate of a put's bytes counts ids, log probabilities and text; a begin costs a little."""
        small = put_message(entry()).cost
        ids = put_message(entry(prompt_token_ids=[1] * 1000)).cost
        text = put_message(entry(output_items=[{"text": "ä" * 1000}])).cost
        nested = put_message(entry(extra={"rows": [[1, 2]] * 1000})).cost

        assert 0 < begin_message("c").cost <= small
        assert ids - small > 5000
        assert text - small > 1900
        assert nested - small > 8000

    async def test_deep_values_have_a_cost(self) -> None:
        """The estimate of a value that is nested without end takes no time to speak of."""
        deep: list[object] = []
        for _ in range(400):
            deep = [deep]

        assert put_message(entry(extra={"deep": deep})).cost > 0


class TestMailbox:
    """Where messages wait for their actor."""

    async def test_first_come_first_served(self) -> None:
        """Messages come out in the order in which they came in."""
        mailbox, sent = Mailbox(10), messages(5)
        for each in sent:
            assert await mailbox.deliver(each)

        assert mailbox.first is sent[0]
        assert await taken(mailbox) == sent
        assert mailbox.first is None

    async def test_a_place_is_taken_without_an_await(self) -> None:
        """Delivering into a mailbox with a place does not let anybody else run."""
        mailbox, ran = Mailbox(1), False

        async def other() -> None:
            nonlocal ran
            ran = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await mailbox.deliver(message())
            ran_meanwhile = ran

        assert not ran_meanwhile

    async def test_a_full_mailbox_makes_senders_wait(self) -> None:
        """What does not fit waits outside, is counted, is dropped by nobody, and comes in in its order."""
        mailbox, sent = Mailbox(3), messages(20)

        async with anyio.create_task_group() as tasks:
            for count, each in enumerate(sent, start=1):
                tasks.start_soon(mailbox.deliver, each)
                await until(lambda count=count: mailbox.queued == count)  # type: ignore[misc]
            fits = mailbox.try_deliver(message())
            out = [mailbox.take_nowait() for _ in range(20)]

        assert not fits
        assert out == sent
        assert mailbox.queued == 0

    async def test_nobody_overtakes_those_who_wait(self) -> None:
        """A place that came free belongs to the first who waits, not to who comes by."""
        mailbox, (first, waiting, late) = Mailbox(1), messages(3)

        async with anyio.create_task_group() as tasks:
            mailbox.try_deliver(first)
            tasks.start_soon(mailbox.deliver, waiting)
            await until(lambda: mailbox.queued == 2)
            assert mailbox.take_nowait() is first
            fits = mailbox.try_deliver(late)

        assert not fits
        assert mailbox.end() == [waiting]

    async def test_cancelled_outside_it_never_comes_in(self) -> None:
        """A sender that is cancelled while it waits outside takes its message along."""
        mailbox, (first, given_up, last) = Mailbox(1), messages(3)
        scope = anyio.CancelScope()

        async def give_up() -> None:
            with scope:
                await mailbox.deliver(given_up)

        async with anyio.create_task_group() as tasks:
            mailbox.try_deliver(first)
            tasks.start_soon(give_up)
            await until(lambda: mailbox.queued == 2)
            tasks.start_soon(mailbox.deliver, last)
            await until(lambda: mailbox.queued == 3)
            scope.cancel()
            await until(lambda: mailbox.queued == 2)
            out = await taken(mailbox)

        assert out == [first, last]

    async def test_cancelled_in_the_moment_of_coming_in_it_is_abandoned(self) -> None:
        """A sender that is cancelled just after its message was let in leaves it abandoned, if it gets to know."""
        mailbox, (first, given_up) = Mailbox(1), messages(2)
        scope = anyio.CancelScope()
        learned = False

        async def give_up() -> None:
            nonlocal learned
            with scope:
                await mailbox.deliver(given_up)
                learned = True
                await given_up.wait()

        async with anyio.create_task_group() as tasks:
            mailbox.try_deliver(first)
            tasks.start_soon(give_up)
            await until(lambda: mailbox.queued == 2)
            mailbox.take_nowait()
            scope.cancel()

        assert mailbox.take_nowait() is given_up
        assert given_up.abandoned

    async def test_taking_waits(self) -> None:
        """Taking from an empty mailbox waits for the next message."""
        mailbox, one = Mailbox(1), message()
        out: list[Message | None] = []

        async def take() -> None:
            out.append(await mailbox.take())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await ticks(5)
            assert out == []
            mailbox.try_deliver(one)

        assert out == [one]

    async def test_cancelled_while_taking_nothing_is_lost(self) -> None:
        """A message that comes in the moment in which its taker is cancelled is still there."""
        mailbox, one = Mailbox(1), message()
        scope = anyio.CancelScope()
        out: list[Message | None] = []

        async def take() -> None:
            with scope:
                out.append(await mailbox.take())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await ticks(5)
            mailbox.try_deliver(one)
            scope.cancel()

        assert [*out, *mailbox.end()] == [one]

    async def test_closing_keeps_what_is_inside(self) -> None:
        """A closed mailbox gives what it has, then None, and lets nothing in."""
        mailbox, (inside, late) = Mailbox(2), messages(2)
        mailbox.try_deliver(inside)

        mailbox.close()

        assert not mailbox.try_deliver(late)
        assert not await mailbox.deliver(late)
        assert await mailbox.take() is inside
        assert await mailbox.take() is None

    async def test_closing_turns_away_those_outside(self) -> None:
        """Who waits outside when the mailbox closes learns that the message is not in."""
        mailbox, sent = Mailbox(1), messages(4)
        answers: list[bool] = []

        async def send(each: Message) -> None:
            answers.append(await mailbox.deliver(each))

        async with anyio.create_task_group() as tasks:
            mailbox.try_deliver(sent[0])
            for each in sent[1:]:
                tasks.start_soon(send, each)
            await until(lambda: mailbox.queued == 4)
            mailbox.close()
            out = [mailbox.take_nowait(), mailbox.take_nowait()]

        assert out == [sent[0], None]
        assert answers == [False, False, False]
        assert mailbox.queued == 0

    async def test_closing_wakes_the_taker(self) -> None:
        """Who waits for a message learns that there will be none."""
        mailbox = Mailbox(1)
        out: list[Message | None] = []

        async def take() -> None:
            out.append(await mailbox.take())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await ticks(5)
            mailbox.close()

        assert out == [None]

    async def test_the_end_finds_all(self) -> None:
        """Ending a mailbox gives all that is inside, in order, and again nothing."""
        mailbox, sent = Mailbox(3), messages(3)
        for each in sent:
            mailbox.try_deliver(each)

        assert mailbox.end() == sent
        assert mailbox.end() == []
