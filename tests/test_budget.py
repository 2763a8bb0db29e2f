"""The amount that many share: first come, first served, and nothing of it is ever lost."""

from __future__ import annotations

import random

import anyio
import anyio.lowlevel
import pytest

from tests.loops import ticks, until
from tokenstore.budget import Budget

pytestmark = pytest.mark.anyio


async def test_what_is_free_is_taken_without_an_await() -> None:
    """Taking what is free does not let anybody else run."""
    budget = Budget(10)
    others: list[str] = []

    async def other() -> None:
        others.append("ran")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await budget.take(4)
        await budget.take(6)
        ran_meanwhile = list(others)

    assert ran_meanwhile == []
    assert budget.taken == 10


async def test_it_bounds() -> None:
    """More than is free waits until it is given back."""
    budget = Budget(10)
    await budget.take(8)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budget.take, 3)
        await until(lambda: budget.waiting)
        before = budget.taken
        budget.give(8)

    assert before == 8
    assert budget.taken == 3


async def test_a_wish_above_the_bound_waits_for_nothing_to_be_out() -> None:
    """A wish above the whole bound is granted alone, so that it does not wait for ever."""
    budget = Budget(10)
    await budget.take(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budget.take, 1000)
        await until(lambda: budget.waiting)
        assert not budget.try_take(1)
        budget.give(1)

    assert budget.taken == 1000
    assert not budget.try_take(1)


async def test_first_come_first_served() -> None:
    """Small wishes do not overtake a large one that came before them."""
    budget = Budget(10)
    await budget.take(10)
    order: list[int] = []

    async def wish(count: int) -> None:
        await budget.take(count)
        order.append(count)

    async with anyio.create_task_group() as tasks:
        for place, count in enumerate((9, 1, 2, 7), start=1):
            tasks.start_soon(wish, count)
            await until(lambda place=place: budget.waiting == place)  # type: ignore[misc]
        for given in (9, 1, 8, 2):
            budget.give(given)
            await ticks(5)

    assert order == [9, 1, 2, 7]


async def test_who_gives_up_lets_the_next_one_in() -> None:
    """A cancelled wish at the head of the queue does not hold up those behind it."""
    budget = Budget(10)
    await budget.take(5)
    head = anyio.CancelScope()

    async def wish_in_vain() -> None:
        with head:
            await budget.take(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wish_in_vain)
        await until(lambda: budget.waiting == 1)
        tasks.start_soon(budget.take, 5)
        await until(lambda: budget.waiting == 2)
        head.cancel()

    assert budget.taken == 10
    assert budget.waiting == 0


async def test_what_was_granted_to_somebody_who_gave_up_is_given_back() -> None:
    """A wish granted in the moment of its cancellation takes nothing away for good."""
    budget = Budget(10)
    await budget.take(10)
    scope = anyio.CancelScope()

    async def wish() -> None:
        with scope:
            await budget.take(7)
            budget.give(7)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wish)
        await until(lambda: budget.waiting)
        budget.give(10)
        scope.cancel()

    assert budget.taken == 0


@pytest.mark.parametrize("seed", range(3))
async def test_accounts_are_exact(seed: int) -> None:
    """Whatever is taken, waited for, given back and cancelled in any order, nothing is out in the end."""
    chance = random.Random(seed)  # noqa: S311 - replayable, no secret
    budget = Budget(20)
    most = 0

    async def user(count: int, patience: int, work: int) -> None:
        nonlocal most
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_later, scope, patience)
                await budget.take(count)
                most = max(most, budget.taken)
                try:
                    await ticks(work)
                finally:
                    budget.give(count)
                tasks.cancel_scope.cancel()

    async def cancel_later(scope: anyio.CancelScope, patience: int) -> None:
        await ticks(patience)
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(user, chance.randint(1, 25), chance.randint(0, 60), chance.randint(0, 5))

    assert budget.taken == 0
    assert budget.waiting == 0
    assert most <= 25
