"""The conformance suite passes the stores that keep their promises and catches each of those that do not."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import LOOPS
from tests.testing.broken import BROKEN_STORES, BrokenStore
from tests.testing.broken.recording import ForgetfulStore
from tokenstore.errors import StoreClosedError
from tokenstore.protocols import TokenSink, TokenSource
from tokenstore.store import TokenCaptureStore
from tokenstore.testing import (
    CHECKS,
    ConformanceError,
    InMemoryTokenStore,
    MemoryBackend,
    check_token_store,
    run_check,
)
from tokenstore.testing.rollouts import agent_rollout
from tokenstore.testing.trial import Trial

pytestmark = pytest.mark.anyio


def memory_clients() -> Callable[[], InMemoryTokenStore]:
    """Make a factory of in-memory clients that share a backend."""
    return partial(InMemoryTokenStore, backend=MemoryBackend())


@pytest.mark.parametrize("check", CHECKS)
async def test_in_memory_store(check: str) -> None:
    """The in-memory store keeps every promise."""
    make = memory_clients()

    await run_check(check, make, make)


@pytest.mark.parametrize("check", CHECKS)
async def test_entered_file_store(check: str, memory_path: Path) -> None:
    """The file store keeps every promise while it is entered."""
    async with AsyncExitStack() as stack:

        async def make() -> TokenCaptureStore:
            return await stack.enter_async_context(TokenCaptureStore(memory_path / "root"))

        await run_check(check, make, make)


@pytest.mark.parametrize("anyio_backend", LOOPS[:1], indirect=True)  # its actors live in a loop of their own anyway
@pytest.mark.parametrize("check", CHECKS)
async def test_file_store_never_entered(check: str, memory_path: Path) -> None:
    """The file store keeps every promise when nobody enters it."""
    make = partial(TokenCaptureStore, memory_path / "root")

    await run_check(check, make, make)


@pytest.mark.parametrize("anyio_backend", LOOPS[:1], indirect=True)  # no loop makes them keep a promise
@pytest.mark.parametrize(("store", "check"), BROKEN_STORES.items())
async def test_broken_store_is_caught(store: type[BrokenStore], check: str) -> None:
    """A store that breaks one promise is caught by the check that is named for it."""
    make = partial(store, backend=MemoryBackend())

    with pytest.raises(ConformanceError) as caught:
        await run_check(check, make, make)

    assert caught.value.check == check


def test_every_check_can_fail() -> None:
    """For each check there is a broken store that it catches."""
    assert set(BROKEN_STORES.values()) == set(CHECKS)


async def test_whole_suite_passes() -> None:
    """The suite as a whole passes a good store, leaves nothing behind, and may run beside other users of a backend."""
    backend = MemoryBackend()
    make = partial(InMemoryTokenStore, backend=backend)
    store = make()
    for entry in agent_rollout("mine", turns=2, first_prompt=10):
        await store.put(entry)

    await check_token_store(make, make)

    assert list(backend.rollouts) == ["mine"]
    assert len(store.read_entries("mine")) == 2


async def test_whole_suite_fails() -> None:
    """The suite as a whole fails a broken store with the first promise it breaks."""
    make = partial(ForgetfulStore, backend=MemoryBackend())

    with pytest.raises(ConformanceError, match="put_is_visible: expected the calls of the snapshot") as caught:
        await check_token_store(make, make)

    assert caught.value.found == "['c9', 'c8', 'c7']"


async def test_sink_and_source_may_differ() -> None:
    """A sink and a source of different classes, made by async factories, are checked together."""
    backend = MemoryBackend()

    async def make_sink() -> TokenSink:
        return InMemoryTokenStore(backend=backend)

    async def make_source() -> TokenSource:
        return BrokenStore(backend=backend)

    await check_token_store(make_sink, make_source)


async def test_clients_are_closed() -> None:
    """The suite closes each client that it made, also when a check fails."""
    made: list[InMemoryTokenStore] = []
    backend = MemoryBackend()

    async def make() -> InMemoryTokenStore:
        made.append(await ForgetfulStore(backend=backend).__aenter__())
        return made[-1]

    with pytest.raises(ConformanceError):
        await run_check("put_is_visible", make, make)

    assert len(made) == 4
    for store in made:
        with pytest.raises(StoreClosedError):
            await store.freeze("r")


async def test_unexpected_error_names_the_check() -> None:
    """An error that a check did not expect is reported under its name, with its cause."""

    class FailingStore(BrokenStore):
        async def put(self, entry: object) -> None:
            raise OSError(f"no put of {type(entry).__name__}")

    make = partial(FailingStore, backend=MemoryBackend())

    with pytest.raises(ConformanceError, match=r"put_is_visible: expected no error, found OSError") as caught:
        await run_check("put_is_visible", make, make)

    assert isinstance(caught.value.__cause__, OSError)


def test_checks_state_their_promise() -> None:
    """Each check opens with one sentence that says what a store promises."""
    for check in CHECKS.values():
        assert (check.__doc__ or "").rstrip().endswith("."), check.__name__


def test_error_survives_pickling() -> None:
    """A conformance error keeps its facts through a process pool."""
    error = ConformanceError("put_is_visible", "one entry", "none")

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes

    assert (again.check, again.expected, again.found) == ("put_is_visible", "one entry", "none")
    assert str(again) == "put_is_visible: expected one entry, found none"


async def test_trial_tells_what_it_misses() -> None:
    """An error that should have been raised and was not is named."""
    trial = Trial("some_check", [InMemoryTokenStore()] * 2, [InMemoryTokenStore()] * 2)

    with pytest.raises(ConformanceError, match="some_check: expected KeyError from freezing, found no error"):
        await trial.raises(KeyError, "freezing", trial.source.freeze, "r")
