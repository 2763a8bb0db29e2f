"""A running event loop, as somebody outside it sees it."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.loops import LOOPS, elsewhere, run_in, until
from tokenstore import TokenCaptureStore
from tokenstore.loop import Loop

pytestmark = pytest.mark.anyio

SOMETHING: ContextVar[str] = ContextVar("SOMETHING", default="nothing")


async def new_loop() -> Loop:
    """The loop that runs this."""
    return Loop()


async def runs_here(loop: Loop) -> bool:
    """Ask a loop whether it is this one."""
    return loop.is_running_here()


@pytest.mark.parametrize("other", LOOPS)
async def test_it_knows_itself(other: str) -> None:
    """A loop knows whether the calling code runs in it."""
    loop = Loop()

    assert loop.is_running_here()
    assert not await elsewhere(other, runs_here, loop)


def test_a_loop_that_asyncio_began(tmp_path: Path) -> None:
    """Under `asyncio.run`, which tells nobody its name, operations that cross into a host's task work too."""

    async def list_and_retire() -> list[str]:
        async with TokenCaptureStore(tmp_path) as store:
            await store.begin_call("r", "c")
            with anyio.fail_after(10):
                await store.retire(["r"])
                return [status.state async for status in store.rollouts()]

    assert asyncio.run(list_and_retire()) == ["retired"]


async def test_functions_come_in_from_threads() -> None:
    """A function from another thread is called inside the loop, those of one thread in order."""
    loop, here = Loop(), threading.get_ident()
    calls: list[tuple[int, int]] = []

    def send() -> None:
        for number in range(10):
            assert loop.call_soon(lambda number=number: calls.append((number, threading.get_ident())))  # type: ignore[misc]

    await anyio.to_thread.run_sync(send)
    await until(lambda: len(calls) == 10)

    assert calls == [(number, here) for number in range(10)]


async def test_functions_run_in_the_loops_own_context() -> None:
    """A function does not bring the context of the thread or loop that sends it."""
    loop, seen = Loop(), []

    def send() -> None:
        SOMETHING.set("the sender's")
        loop.call_soon(lambda: seen.append(SOMETHING.get()))
        loop.call_soon(lambda: SOMETHING.set("a function's"))
        loop.call_soon(lambda: seen.append(SOMETHING.get()))

    await anyio.to_thread.run_sync(send)
    await until(lambda: len(seen) == 2)

    assert seen == ["nothing", "nothing"]
    assert SOMETHING.get() == "nothing"


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_has_ended(name: str) -> None:
    """Nothing can be sent into a loop that has ended, and the sender is told."""
    loop = run_in(name, new_loop)

    assert not loop.call_soon(lambda: None)
    assert not run_in(name, runs_here, loop)


def test_outside_of_any_loop() -> None:
    """Asking whether a loop runs here makes sense only in a loop."""
    loop = anyio.run(new_loop)

    with pytest.raises(anyio.NoEventLoopError):
        loop.is_running_here()
