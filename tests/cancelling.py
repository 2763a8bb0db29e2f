"""Random lives of rollouts whose callers are cancelled at random, with an account of what must be there afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.abc
import pytest

from tests.loops import calls_of, ticks
from tests.samples import entry
from tokenstore import TokenCaptureRetiredError, TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.testing import first_difference

Operation = Callable[[], Awaitable[object]]
Canceller = Callable[[Operation, random.Random], Awaitable[bool]]
"""Does an operation and perhaps cancels it; tells whether it returned."""

OPERATIONS = 60
"""Operations of one life before it finishes what it has begun."""
TURNS = 1 / 30
"""Operations are cancelled after so many turns of the loop, the inverse of the mean: a hop takes some tens of them."""


def _turns(chance: random.Random) -> int:
    return int(chance.expovariate(TURNS))


async def in_peace(operation: Operation, _: random.Random) -> bool:
    """Do an operation to its end."""
    await operation()
    return True


async def by_scope(operation: Operation, chance: random.Random) -> bool:
    """Cancel an operation by a scope, after some turns of the loop or at a deadline."""
    returned = False
    with anyio.CancelScope() as scope:
        if chance.random() < 0.3:
            scope.deadline = anyio.current_time() + chance.random() * 0.003
            await operation()
            return True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_later, scope, _turns(chance))
            await operation()
            returned = True
            tasks.cancel_scope.cancel()
    return returned


async def _cancel_later(scope: anyio.CancelScope, turns: int) -> None:
    await ticks(turns)
    scope.cancel()


async def natively(operation: Operation, chance: random.Random) -> bool:
    """Cancel an operation as asyncio does: its task, perhaps twice, or by `wait_for`."""

    async def run() -> None:
        await operation()

    if chance.random() < 0.3:
        try:
            await asyncio.wait_for(run(), chance.random() * 0.003)
        except TimeoutError:
            return False
        return True
    task = asyncio.ensure_future(run())
    for _ in range(chance.choice((1, 1, 2))):
        for _ in range(_turns(chance)):
            await asyncio.sleep(0)
        task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


class Life:
    """One rollout, from its first call to its removal, and what is known of it.

    Args:
        store: Where it lives.
        rollout_id: Its name.
        seed: Of all that is left to chance.
        cancel: How operations are cancelled.
    """

    def __init__(self, store: TokenCaptureStore, rollout_id: str, seed: str, cancel: Canceller) -> None:
        self.operations = 0
        """How many were begun."""
        self._store = store
        self._rollout_id = rollout_id
        self._chance = random.Random(seed)  # noqa: S311 - replayable, no secret
        self._cancel = cancel
        self._entries: dict[str, TokenEntry] = {}
        self._acked: set[str] = set()
        self._refused: set[str] = set()
        self._marked: set[str] = set()
        self._marks = self._chance.random() < 0.5

    async def live(self, operations: int) -> None:
        """Do operations from several tasks at once, then finish all that was begun, freeze and remove."""
        async with anyio.create_task_group() as tasks:
            for worker in range(4):
                tasks.start_soon(self._work, worker, operations // 4)
        await self._look()
        await self._finish()
        await self._remove(await self._freeze())

    async def _work(self, worker: int, operations: int) -> None:
        for number in range(operations):
            call_id = f"{worker}-{number}"
            kind = self._chance.random()
            if kind < 0.5:
                await self._put(call_id)
            elif kind < 0.6 and self._entries:
                await self._put(self._chance.choice(list(self._entries)))
            elif kind < 0.7:
                await self._begin(call_id)
            elif kind < 0.8:
                await self._refuse(call_id)
            elif kind < 0.85 and self._marks:
                await self._mark(call_id)
            else:
                await self._read()

    async def _try(self, operation: Operation, cancel: Canceller | None = None) -> bool:
        self.operations += 1
        return await (cancel or self._cancel)(operation, self._chance)

    # ------------------------------------------------------------------------------------------ operations

    def _entry(self, call_id: str) -> TokenEntry:
        if call_id not in self._entries:
            number = len(self._entries)
            self._entries[call_id] = entry(
                call_id,
                rollout_id=self._rollout_id,
                prompt_token_ids=list(range(number % 700)),
                extra={"padding": "x" * self._chance.choice((0, 0, 0, 20_000))},
            )
        return self._entries[call_id]

    async def _put(self, call_id: str, cancel: Canceller | None = None) -> None:
        value = self._entry(call_id)
        if await self._try(lambda: self._store.put(value), cancel):
            self._acked.add(call_id)

    async def _begin(self, call_id: str) -> None:
        self._entry(call_id)
        await self._try(lambda: self._store.begin_call(self._rollout_id, call_id))

    async def _refuse(self, call_id: str, cancel: Canceller | None = None) -> None:
        self._refused.add(call_id)
        await self._try(lambda: self._store.refuse_call(self._rollout_id, model_call_id=call_id, code="no"), cancel)

    async def _mark(self, call_id: str, cancel: Canceller | None = None) -> None:
        self._marked.add(call_id)
        await self._try(lambda: self._store.mark_incomplete(self._rollout_id, call_id), cancel)

    async def _read(self) -> None:
        async def entries() -> None:
            async for each in self._store.entries(self._rollout_id):
                self._check_value(each)

        if self._chance.random() < 0.5:
            await self._try(lambda: self._store.peek(self._rollout_id))
        else:
            await self._try(entries)

    # ------------------------------------------------------------------------------------------ accounts

    def _check_value(self, found: TokenEntry) -> None:
        assert first_difference(self._entries[found.model_call_id], found) is None

    async def _look(self) -> None:
        """What was acknowledged is there, and all that is there is whole and was asked for, once."""
        snapshot = await self._store.peek(self._rollout_id)
        calls = [each.model_call_id for each in snapshot.entries]
        for each in snapshot.entries:
            self._check_value(each)
        assert self._acked <= set(calls)
        assert len(calls) == len(set(calls))

    async def _finish(self) -> None:
        """Ask again for all whose outcome is not known."""
        for call_id in list(self._entries):
            if call_id not in self._acked or self._chance.random() < 0.1:
                await self._put(call_id, in_peace)
        for call_id in self._refused:
            await self._refuse(call_id, in_peace)
        for call_id in self._marked:
            await self._mark(call_id, in_peace)

    async def _freeze(self) -> TokenCaptureSnapshot:
        """Freeze, after some tries that are cancelled, and hold the snapshot to the account."""
        found: list[TokenCaptureSnapshot] = []

        async def freeze() -> None:
            found.append(await self._store.freeze(self._rollout_id))

        for cancel in (self._cancel, self._cancel, in_peace, self._cancel):
            await self._try(freeze, cancel)
        snapshot = found[0]
        assert all(again == snapshot for again in found)
        assert {each.model_call_id for each in snapshot.entries} == self._entries.keys()
        assert {each.model_call_id for each in snapshot.refusals} == self._refused
        assert set(snapshot.incomplete_reasons) == {f"marked:{call_id}" for call_id in self._marked}
        assert snapshot.version == len(self._entries) + len(self._refused) + len(self._marked) + 1
        for each in snapshot.entries:
            self._check_value(each)
        return snapshot

    async def _remove(self, snapshot: TokenCaptureSnapshot) -> None:
        """Remove the rollout in one of three ways, after some tries that are cancelled."""
        store, rollout_id = self._store, self._rollout_id

        async def drop() -> None:
            assert await store.drop(rollout_id, snapshot_id=snapshot.snapshot_id, version=snapshot.version)

        ways: dict[str, Operation] = {
            "drop": drop,
            "retire": lambda: store.retire([rollout_id]),
            "delete": lambda: store.delete([rollout_id]),
        }
        way = self._chance.choice(list(ways))
        for cancel in (self._cancel, self._cancel, in_peace, self._cancel, in_peace):
            await self._try(ways[way], cancel)
        if way == "delete":
            assert await calls_of(store, rollout_id) == []
        else:
            with pytest.raises(TokenCaptureRetiredError):
                await store.put(entry(rollout_id=rollout_id))


async def many_lives(store: TokenCaptureStore, seed: int, operations: int, cancel: Canceller) -> int:
    """Let rollouts live side by side, and give the number of operations that were begun, at least so many."""
    lives = [Life(store, f"r{number}", f"{seed}/{number}", cancel) for number in range(operations // OPERATIONS)]
    async with anyio.create_task_group() as tasks:
        for life in lives:
            tasks.start_soon(life.live, OPERATIONS)
    return sum(life.operations for life in lives)


async def cancelled_after(
    turns: int, function: Callable[[], Awaitable[object]], *, native: bool, times: int = 1
) -> None:
    """Run a function in a task of its own, and cancel that after some turns of the loop, perhaps several times."""
    if not native:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(function)  # type: ignore[arg-type]  # what is given is always a coroutine function
            await ticks(turns)
            tasks.cancel_scope.cancel()
        return
    task = asyncio.ensure_future(function())
    for _ in range(times):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task
