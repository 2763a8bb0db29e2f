"""What one of the processes does: tasks, or threads, that ask for one thing after the other, as chance will have it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import attrs

from tests.faults.entries import entry, variant_of
from tests.loops import run_in
from tokenstore import (
    ConflictingEntryError,
    StoreConfig,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenCaptureSnapshot,
    TokenCaptureStore,
    TokenStoreError,
)

Ask = Callable[[str, str, str, int], Awaitable[None]]

SLOTS = ("asyncio", "uvloop", "trio", "threads")
"""The processes."""
TASKS = 6
"""Tasks, or threads, of a process."""
CANNOT_OPEN = 4
"""Exit status of a process that could not open the store: right only after a cut."""
CODE = "context_length_exceeded"
_CALLS = tuple(f"t{number}" for number in range(1, 25)) + tuple(f"c{number}" for number in range(8)) + ("b1", "b2")
_KINDS = {
    "put": 640, "begin": 120, "refuse": 25, "mark": 10, "freeze": 22, "drop": 25, "retire": 10, "delete": 16,
    "peek": 40, "entries": 30, "list": 2, "examine": 20, "recover": 10,
}  # fmt: skip
_CONFIGS = {
    "asyncio": StoreConfig(),
    "uvloop": StoreConfig(idle_seconds=0.2, max_open_files=8),
    "trio": StoreConfig(prompt_storage="full", idle_seconds=1.0),
    "threads": StoreConfig(max_inflight_bytes=1024 * 1024),
}
_ANSWERS: tuple[tuple[type[TokenStoreError], str], ...] = (
    (ConflictingEntryError, "conflict"),
    (TokenCaptureRetiredError, "retired"),
    (TokenCaptureFrozenError, "frozen"),
)


class WrongEntryError(Exception):
    """An entry was read that nobody can have put."""


@attrs.frozen
class Life:
    """One life of one process."""

    root: Path
    seed: str
    """Of the whole schedule; round, slot and life are in it."""
    slot: str
    rollouts: tuple[str, ...]
    pipe: int
    """Where it says what it asks for, and what came of it."""


class Worker:
    """One task or thread: its stream of chance, what it remembers, and its line to the parent."""

    def __init__(self, life: Life, number: int) -> None:
        self._life = life
        self._number = number
        self._chance = Random(f"{life.seed}/{number}")  # noqa: S311 - a schedule
        self._asked = 0
        self._frozen: dict[str, TokenCaptureSnapshot] = {}

    def choose(self) -> tuple[str, str, str, int]:
        """Decide what to ask for next: kind, rollout, call, variant."""
        chance = self._chance
        (kind,) = chance.choices(list(_KINDS), list(_KINDS.values()))
        variant = int(chance.random() < 0.005)
        return kind, chance.choice(self._life.rollouts), chance.choice(_CALLS), variant

    async def do(self, store: TokenCaptureStore, *, twins: bool = False) -> None:
        """Ask for one thing, saying so before, and what came of it."""
        kind, rollout, call, variant = self.choose()
        name = f"{self._number}-{self._asked}"
        self._asked += 1
        self._say(name, time.monotonic(), kind, rollout, call, variant)
        outcome, facts = await self._answer(getattr(self, f"_{kind}")(store, rollout, call, variant, twins))
        self._say(name, time.monotonic(), outcome, facts)

    async def _answer(self, asking: Awaitable[tuple[str, Any]]) -> tuple[str, Any]:
        try:
            return await asking
        except (TokenStoreError, OSError) as error:
            return next(
                (word for kind, word in _ANSWERS if isinstance(error, kind)), f"{type(error).__name__}: {error}"
            ), None
        except WrongEntryError as error:
            return str(error), None

    def _say(self, *words: Any) -> None:
        os.write(self._life.pipe, json.dumps(words).encode() + b"\n")  # at once or not at all: it is short

    # ------------------------------------------------------------------------------------------ writing

    async def _put(
        self, store: TokenCaptureStore, rollout: str, call: str, variant: int, twins: bool
    ) -> tuple[str, Any]:
        if twins:
            store.append(entry(rollout, call, variant))
        else:
            await store.put(entry(rollout, call, variant))
        return "acked", None

    async def _begin(self, store: TokenCaptureStore, rollout: str, call: str, *_: Any) -> tuple[str, Any]:
        await store.begin_call(rollout, call)
        return "acked", None

    async def _refuse(self, store: TokenCaptureStore, rollout: str, call: str, *_: Any) -> tuple[str, Any]:
        await store.refuse_call(rollout, model_call_id=call, code=CODE)
        return "acked", None

    async def _mark(self, store: TokenCaptureStore, rollout: str, call: str, *_: Any) -> tuple[str, Any]:
        await store.mark_incomplete(rollout, call)
        return "acked", None

    # ------------------------------------------------------------------------------------------ consuming

    async def _freeze(self, store: TokenCaptureStore, rollout: str, _: str, __: int, twins: bool) -> tuple[str, Any]:
        snapshot = store.freeze_now(rollout) if twins else await store.freeze(rollout)
        self._frozen[rollout] = snapshot
        return "acked", [snapshot.snapshot_id, snapshot.version, variants(snapshot)]

    async def _drop(self, store: TokenCaptureStore, rollout: str, *_: Any) -> tuple[str, Any]:
        known = self._frozen.get(rollout)
        snapshot_id, version = (known.snapshot_id, known.version) if known else ("", 0)
        dropped = await store.drop(rollout, snapshot_id=snapshot_id, version=version)
        return "acked" if dropped else "no", None

    async def _retire(self, store: TokenCaptureStore, rollout: str, _: str, __: int, twins: bool) -> tuple[str, Any]:
        if twins:
            store.retire_now([rollout])
        else:
            await store.retire([rollout])
        return "acked", None

    async def _delete(self, store: TokenCaptureStore, rollout: str, _: str, __: int, twins: bool) -> tuple[str, Any]:
        if twins:
            store.delete_now([rollout])
        else:
            await store.delete([rollout])
        return "acked", None

    # ------------------------------------------------------------------------------------------ looking

    async def _peek(self, store: TokenCaptureStore, rollout: str, *_: Any) -> tuple[str, Any]:
        variants(await store.peek(rollout))
        return "acked", None

    async def _entries(self, store: TokenCaptureStore, rollout: str, *_: Any) -> tuple[str, Any]:
        async for each in store.entries(rollout):
            if variant_of(each) is None:
                raise WrongEntryError(f"{each.model_call_id} was read and is none that was put")
        return "acked", None

    async def _list(self, store: TokenCaptureStore, *_: Any) -> tuple[str, Any]:
        async for _status in store.rollouts():
            pass
        return "acked", None

    async def _examine(self, store: TokenCaptureStore, rollout: str, *_: Any) -> tuple[str, Any]:
        await store.examine(rollout)
        return "acked", None

    async def _recover(self, store: TokenCaptureStore, rollout: str, *_: Any) -> tuple[str, Any]:
        await store.recover(rollout)
        return "acked", None


def variants(snapshot: TokenCaptureSnapshot) -> dict[str, int]:
    """The variant of each call of a snapshot.

    Raises:
        WrongEntryError: An entry is none that can have been put.
    """
    found = {}
    for each in snapshot.entries:
        variant = variant_of(each)
        if variant is None:
            raise WrongEntryError(f"{each.model_call_id} was read and is none that was put")
        found[each.model_call_id] = variant
    return found


def live(life: Life) -> None:
    """Live until killed. Runs in a process of its own."""
    logging.getLogger("tokenstore").setLevel(logging.CRITICAL)
    sys.stdin.close()
    workers = [Worker(life, number) for number in range(TASKS)]
    try:
        if life.slot == "threads":
            _live_on_threads(life, workers)
        else:
            run_in(life.slot, _live_in_a_loop, life, workers)
    except OSError:  # of an operation it would be an answer
        os._exit(CANNOT_OPEN)


async def _live_in_a_loop(life: Life, workers: list[Worker]) -> None:
    async def forever(store: TokenCaptureStore, worker: Worker) -> None:
        while True:
            await worker.do(store)

    async with TokenCaptureStore(life.root, config=_CONFIGS[life.slot]) as store, anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(forever, store, worker)


def _live_on_threads(life: Life, workers: list[Worker]) -> None:
    """Use the twins from plain threads; what has none is awaited in an event loop of that thread."""
    store = TokenCaptureStore(life.root, config=_CONFIGS[life.slot])

    def forever(worker: Worker) -> None:
        with asyncio.Runner() as runner:
            while True:
                runner.run(worker.do(store, twins=True))

    def guarded(worker: Worker) -> None:
        try:
            forever(worker)
        finally:
            os._exit(3)  # nothing ends it but a kill

    for worker in workers:
        threading.Thread(target=guarded, args=(worker,), daemon=True).start()
    threading.Event().wait()
