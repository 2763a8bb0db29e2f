"""Trainers on other hosts: the client has the API of the store, and nobody else gets in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from tests.samples import entry
from tests.serve.proxies import TOKEN, Running, running, serving
from tokenstore import (
    InvalidRolloutIdError,
    LockTimeoutError,
    RemovalError,
    RolloutStatus,
    StoreStatistics,
    TokenCaptureRetiredError,
    TokenCaptureStore,
    TokenSource,
    TokenStoreError,
)
from tokenstore.errors import DurabilityError
from tokenstore.serve import TokenStoreClient
from tokenstore.serve.exchange import Message, Receive, Reply, Request, Send
from tokenstore.serve.remote import error_from_plain, error_to_plain
from tokenstore.testing import CHECKS, first_difference, run_check, shaped_rollout

pytestmark = pytest.mark.anyio
"""The checks that say most about a source; all others are run with the long tests."""


@pytest.fixture(scope="module")
def near(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A proxy over a store of its own."""
    with running("asyncio", engine, tmp_path_factory.mktemp("near")) as found:
        yield found


async def test_a_rollout_comes_over_value_for_value(near: Running, anyio_backend: tuple[str, object]) -> None:
    """What is frozen from another host is what was put, bit for bit, and can be dropped from there."""
    entries = [
        made
        for shape in ("edge_values", "append_only")
        for made in shaped_rollout(shape, f"{shape}-{anyio_backend[0]}")
    ]
    async with TokenCaptureStore(near.root) as store, TokenStoreClient(near.url, token=TOKEN) as client:
        for made in entries:
            await store.put(made)
        await store.begin_call(f"lost-{anyio_backend[0]}", "c")

        snapshots = {name: await client.freeze(name) for name in dict.fromkeys(made.rollout_id for made in entries)}
        masked = await client.freeze(f"lost-{anyio_backend[0]}")

        found = [made for snapshot in snapshots.values() for made in snapshot.entries]
        assert [first_difference(one, other) for one, other in zip(entries, found, strict=True)] == [None] * len(found)
        assert masked.incomplete_reasons == ("lost_call:c",)
        for name, snapshot in snapshots.items():
            assert snapshot == await store.freeze(name)
            assert await client.drop(name, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
            with pytest.raises(TokenCaptureRetiredError):
                await client.freeze(name)


async def test_listing_and_statistics(near: Running) -> None:
    """Every rollout is listed as the store lists it, and the counters are the proxy's own."""
    async with TokenCaptureStore(near.root) as store, TokenStoreClient(near.url, token=TOKEN) as client:
        await store.put(entry(rollout_id="listed"))
        listed = {status.rollout_id: status async for status in client.rollouts()}
        known = {status.rollout_id: status async for status in store.rollouts()}
        statistics = await client.statistics()

    assert listed.keys() == known.keys()
    assert listed["listed"].calls == 1
    assert isinstance(statistics, StoreStatistics)


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.kernel
async def test_the_client_keeps_a_sources_promises(name: str, near: Running) -> None:
    """With a store to write and the client to consume, the conformance suite holds."""

    def sink() -> TokenCaptureStore:
        return TokenCaptureStore(near.root)

    def source() -> TokenSource:
        return TokenStoreClient(near.url, token=TOKEN)

    await run_check(name, sink, source)


@pytest.mark.parametrize("token", ["", "x", TOKEN + "x", TOKEN[:-1], "ü" * 16])
async def test_a_wrong_token_opens_nothing(token: str, near: Running) -> None:
    """Without the very token nothing is told and nothing is changed."""
    paths = ["rollouts", "statistics", "rollouts/r/freeze", "rollouts/r/drop", "retire", "delete"]
    async with httpx.AsyncClient() as http:
        for path in paths:
            method = "GET" if path in paths[:2] else "POST"
            headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
            answer = await http.request(method, f"{near.url}/control/{path}", headers=headers)

            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "wrong_token")

    assert list(near.root.glob("r.tokens*")) == []


async def test_wrong_tokens_raise(near: Running) -> None:
    """The client says that its token is wrong."""
    async with TokenStoreClient(near.url, token="wrong" * 5) as client:
        with pytest.raises(PermissionError, match="bearer token"):
            await client.freeze("r")


async def test_without_a_token_the_routes_are_off(engine: str, tmp_path: Path) -> None:
    """By default there are no control routes, and the engine is not asked in their place."""
    with running("asyncio", engine, tmp_path, control_token=None) as proxy:
        async with TokenStoreClient(proxy.url, token=TOKEN) as client:
            with pytest.raises(ConnectionError, match="off"):
                await client.freeze("r")


async def test_nobody_at_the_other_end(tmp_path: Path, engine: str) -> None:
    """A proxy that is gone, and a server that is none, are connection errors; a bad id is told without asking."""
    with running("asyncio", engine, tmp_path) as proxy:
        url = proxy.url
    async with TokenStoreClient(url, token=TOKEN) as client:
        with pytest.raises(ConnectionError, match="nothing was sent"):
            await client.freeze("r")
        with pytest.raises(InvalidRolloutIdError):
            await client.freeze("../r")
        with pytest.raises(TypeError):
            await client.retire("r")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error": "Not Found"}'), (404, b'{"error": null}'), (500, b'{"error": 5}'), (404, b"<html>"),
        (200, b"<html>\n"), (200, b'{"hello": 1}\n'), (200, b"[1]\n"), (200, b"3\n"), (200, b'"x"\n'), (200, b""),
        (200, b'{"rollouts": "x", "dropped": "x"}\n'),
    ],
)  # fmt: skip
async def test_another_server_is_told_from_a_proxy(status: int, body: bytes, tmp_path: Path) -> None:
    """Whatever a server answers that is no proxy, each operation is a connection error, and none seems done."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body(2**20)
        await Reply(send).whole(status, [], body)

    @asynccontextmanager
    async def app_of(_: TokenCaptureStore) -> AsyncIterator[Any]:
        yield app

    async def listed() -> list[RolloutStatus]:
        return [found async for found in client.rollouts()]

    with serving("asyncio", tmp_path, app_of) as other:
        client = TokenStoreClient(other.url, token=TOKEN)
        works: tuple[Callable[[], Awaitable[object]], ...] = (
            partial(client.freeze, "r"),
            partial(client.drop, "r", snapshot_id="s", version=1),
            partial(client.retire, ["r"]),
            partial(client.delete, ["r"]),
            client.statistics,
            listed,
        )
        for work in works:
            with pytest.raises(ConnectionError):
                await work()
        await client.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("retire", b'{"rollout_ids": "r"}'), ("retire", b"{"), ("retire", b"[]"), ("delete", b"{}"),
        ("delete", b'{"rollout_ids": [7]}'), ("delete", b'{"rollout_ids": ["../r"]}'),
        ("retire", b'{"rollout_ids": ["\\ud800"]}'),
        ("rollouts/r/drop", b'{"snapshot_id": 1, "version": 1}'),
        ("rollouts/r/drop", b'{"snapshot_id": "s", "version": true}'), ("rollouts/a%20b/freeze", b""),
    ],
)  # fmt: skip
async def test_nonsense_is_refused(path: str, body: bytes, near: Running) -> None:
    """A request that is none is answered with 400, and changes nothing."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{near.url}/control/{path}", content=body, headers=headers)

    assert answer.status_code == 400
    assert "error" in answer.json()


@pytest.mark.parametrize(
    "error",
    [
        InvalidRolloutIdError("a b", "it holds other characters"),
        TokenCaptureRetiredError("r"),
        LockTimeoutError("r.tokens.lock", 1.5),
        DurabilityError("write", "r.tokens.jsonl", OSError(28, "No space left on device")),
        RemovalError({"removed": ["a"], "absent": []}, {"b": TokenCaptureRetiredError("b")}),
        TokenStoreError("of another kind"),
    ],
)
def test_errors_come_over(error: Exception) -> None:
    """An error of the store is raised on the other host as the same kind with the same message."""
    made = error_from_plain(error_to_plain(error))

    assert (type(made), str(made)) == (type(error), str(error))


@pytest.mark.kernel
async def test_freezing_many_at_once(near: Running) -> None:
    """A trainer may freeze many rollouts at once."""
    async with TokenCaptureStore(near.root) as store, TokenStoreClient(near.url, token=TOKEN) as client:
        counts: dict[str, int] = {}

        async def one(name: str) -> None:
            await store.put(entry(rollout_id=name))
            counts[name] = len((await client.freeze(name)).entries)

        names = [f"many-{number}" for number in range(32)]
        await client.delete(names)
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(one, name)

    assert counts == dict.fromkeys(names, 1)
