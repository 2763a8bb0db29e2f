"""The in-memory store: what it offers beyond the conformance suite, which it passes in test_conformance."""

from __future__ import annotations

import types
from array import array
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tokenstore.errors import (
    ConflictingEntryError,
    InvalidEntryError,
    InvalidRolloutIdError,
    StoreClosedError,
    TokenCaptureRetiredError,
)
from tokenstore.protocols import TokenSink, TokenSource
from tokenstore.records import TokenEntry
from tokenstore.testing import InMemoryTokenStore, MemoryBackend, agent_rollout

pytestmark = pytest.mark.anyio


def entry(call_id: str = "c1", **fields: Any) -> TokenEntry:
    """Make a small entry of rollout `r`."""
    known: dict[str, Any] = {
        "prompt_token_ids": [1],
        "generation_token_ids": [2],
        "generation_log_probs": [-0.5],
    }
    return TokenEntry(rollout_id="r", model_call_id=call_id, **{**known, **fields})


async def collected(entries: AsyncIterator[TokenEntry]) -> list[TokenEntry]:
    """Read an iterator to its end."""
    return [entry async for entry in entries]


def test_is_sink_and_source() -> None:
    """The store is both a sink and a source."""
    store = InMemoryTokenStore()

    assert isinstance(store, TokenSink)
    assert isinstance(store, TokenSource)


async def test_stores_have_their_own_backends() -> None:
    """Two stores made without a backend know nothing of each other."""
    first, second = InMemoryTokenStore(), InMemoryTokenStore()
    await first.put(entry())

    assert second.read_entries("r") == []


async def test_duck_typed_entry() -> None:
    """Any object with the same attributes is taken, its arrays of any kind, unknown fields from `model_extra`."""
    store = InMemoryTokenStore()
    duck: Any = types.SimpleNamespace(
        rollout_id="r",
        model_call_id="c1",
        prompt_token_ids=array("I", [1]),
        generation_token_ids=(2,),
        generation_log_probs=array("d", [-0.5]),
        model_extra={"reward": 1.0},
    )

    await store.put(duck)

    assert store.read_entries("r") == [entry(extra={"reward": 1.0})]


async def test_entry_that_lacks_a_field() -> None:
    """An object without one of the arrays is refused with the array's name."""
    duck: Any = types.SimpleNamespace(rollout_id="r", model_call_id="c1", prompt_token_ids=[1])

    with pytest.raises(InvalidEntryError, match="generation_token_ids"):
        await InMemoryTokenStore().put(duck)


async def test_entries_come_back_as_from_a_file() -> None:
    """Tuples come back as lists and whole log probabilities as floats."""
    store = InMemoryTokenStore()
    await store.put(entry(generation_log_probs=[0], output_items=({"a": (1, (2,))},), routed_experts=((1,),)))

    (found,) = store.read_entries("r")

    assert str(found.generation_log_probs) == "[0.0]"
    assert found.output_items == [{"a": [1, [2]]}]
    assert found.routed_experts == [[1]]


async def test_peek_of_unknown_rollout() -> None:
    """Peeking at an unknown rollout shows an empty open one and makes nothing."""
    store = InMemoryTokenStore()

    snapshot = await store.peek("r")

    assert (snapshot.entries, snapshot.snapshot_id, snapshot.version, snapshot.frozen) == ((), "", 0, False)
    assert not snapshot.incomplete
    assert store.backend.rollouts == {}


async def test_peek_of_open_rollout() -> None:
    """Peeking at an open rollout lists the calls in flight, which do not make it incomplete, and changes nothing."""
    store = InMemoryTokenStore()
    await store.begin_call("r", "c2")
    await store.put(entry())

    snapshot = await store.peek("r")

    assert snapshot.open_calls == ("c2",)
    assert (snapshot.version, snapshot.frozen, snapshot.incomplete) == (1, False, False)
    assert await store.peek("r") == snapshot


async def test_begin_of_a_refused_call_leaves_nothing() -> None:
    """A call that the engine refused does not begin again, so there is nothing that a removal would remove."""
    store = InMemoryTokenStore()
    await store.refuse_call("r", model_call_id="c1", code="context_length_exceeded")
    await store.begin_call("r", "c1")

    assert await store.retire(["r"]) == {"removed": [], "absent": ["r"]}


async def test_peek_of_frozen_rollout() -> None:
    """Peeking at a frozen rollout shows what freeze shows."""
    store = InMemoryTokenStore()
    await store.begin_call("r", "c2")

    snapshot = await store.freeze("r")

    assert await store.peek("r") == snapshot
    assert (snapshot.open_calls, snapshot.incomplete_reasons) == ((), ("lost_call:c2",))


async def test_peek_and_entries_of_retired_rollout() -> None:
    """A retired rollout is not shown: peek and entries raise, read_entries is empty."""
    store = InMemoryTokenStore()
    await store.put(entry())
    await store.retire(["r"])

    with pytest.raises(TokenCaptureRetiredError):
        await store.peek("r")
    with pytest.raises(TokenCaptureRetiredError):
        await collected(store.entries("r"))
    assert store.read_entries("r") == []


async def test_drop_of_a_rollout_that_was_never_frozen() -> None:
    """A rollout that was retired while it was open has no pair: a drop is false, as from a file."""
    store = InMemoryTokenStore()
    await store.begin_call("r", "c1")
    await store.retire(["r"])

    assert not await store.drop("r", snapshot_id="", version=0)


async def test_entries_one_by_one() -> None:
    """Entries are given in order, those that were there at the start; later ones are not."""
    store = InMemoryTokenStore()
    calls = agent_rollout("r", turns=3, first_prompt=5, generated=2, added=2)
    for call in calls[:2]:
        await store.put(call)
    reading = store.entries("r")

    first = await anext(reading)
    await store.put(calls[2])
    others = await collected(reading)

    assert [first, *others] == calls[:2]


@pytest.mark.parametrize("again", [False, True])
async def test_entries_of_a_rollout_removed_meanwhile(again: bool) -> None:
    """A rollout that is deleted while it is read raises, also if it was made anew."""
    store = InMemoryTokenStore()
    for call in ("c1", "c2"):
        await store.put(entry(call))
    reading = store.entries("r")
    await anext(reading)

    await store.delete(["r"])
    if again:
        await store.put(entry())

    with pytest.raises(TokenCaptureRetiredError):
        await anext(reading)


async def test_is_incomplete() -> None:
    """Calls in flight do not make a rollout incomplete until freeze; marks do at once; a fence remembers."""
    store = InMemoryTokenStore()
    await store.begin_call("r", "c1")
    seen = [store.is_incomplete("r")]
    await store.freeze("r")
    seen.append(store.is_incomplete("r"))
    await store.retire(["r"])
    seen.append(store.is_incomplete("r"))
    await store.mark_incomplete("s")
    seen.append(store.is_incomplete("s"))
    seen.append(store.is_incomplete("unknown"))

    assert seen == [False, True, True, True, False]


async def test_conflict_keeps_its_name() -> None:
    """A call that was marked and then put with other content is told as a conflict."""
    store = InMemoryTokenStore()
    await store.put(entry())
    await store.mark_incomplete("r", "c1")
    with pytest.raises(ConflictingEntryError, match="call 'c1': it is recorded with other content"):
        await store.put(entry(model="other"))
    await store.mark_incomplete("r", "c1")

    snapshot = await store.peek("r")

    assert (snapshot.incomplete_reasons, snapshot.version) == (("conflict:c1",), 2)


async def test_reading_checks_the_rollout_id() -> None:
    """Reading refuses an id that cannot name files, as writing does."""
    store = InMemoryTokenStore()

    with pytest.raises(InvalidRolloutIdError):
        await store.peek("a/b")
    with pytest.raises(InvalidRolloutIdError):
        await collected(store.entries("a/b"))
    with pytest.raises(InvalidRolloutIdError):
        store.read_entries("a/b")
    with pytest.raises(InvalidRolloutIdError):
        store.is_incomplete("a/b")


async def test_closed_after_async_with() -> None:
    """After `async with` a store refuses to be used, and its backend still has what was put."""
    backend = MemoryBackend()
    async with InMemoryTokenStore(backend=backend) as store:
        await store.put(entry())

    with pytest.raises(StoreClosedError):
        await store.put(entry())
    with pytest.raises(StoreClosedError):
        store.read_entries("r")
    with pytest.raises(StoreClosedError):
        await store.__aenter__()
    assert InMemoryTokenStore(backend=backend).read_entries("r") == [entry()]


async def test_closed_while_an_operation_waits() -> None:
    """An operation that has not begun when the store is closed is refused rather than done."""
    async with InMemoryTokenStore() as store:

        async def put() -> None:
            with pytest.raises(StoreClosedError):
                await store.put(entry())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            tasks.start_soon(store.close)

    assert store.backend.rollouts == {}


async def test_usable_after_close_if_never_entered() -> None:
    """A store that nobody entered can be closed and used again."""
    store = InMemoryTokenStore()
    await store.put(entry())

    for _ in range(2):
        await store.close()

    assert len((await store.freeze("r")).entries) == 1


async def test_cancelled_operation_changes_nothing() -> None:
    """An operation in a cancelled scope is not done."""
    store = InMemoryTokenStore()

    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.put(entry())

    assert scope.cancelled_caught
    assert store.backend.rollouts == {}


async def test_backend_is_shared_by_event_loops() -> None:
    """Stores over one backend may be used from event loops of several threads."""
    backend = MemoryBackend()

    def work(name: str) -> None:
        async def puts() -> None:
            store = InMemoryTokenStore(backend=backend)
            for number in range(50):
                await store.put(entry(f"{name}-{number}"))

        anyio.run(puts)

    async with anyio.create_task_group() as tasks:
        for name in "abcd":
            tasks.start_soon(anyio.to_thread.run_sync, work, name)

    snapshot = await InMemoryTokenStore(backend=backend).freeze("r")
    assert (len(snapshot.entries), snapshot.version) == (200, 201)
