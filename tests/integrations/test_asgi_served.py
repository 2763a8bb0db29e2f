"""The middleware in an application of Starlette on real servers, between other middleware, for the openai client."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.engines.dialects import DIALECTS
from tests.serve.engine import SHORT, as_asked, chat_chunks, event
from tests.serve.proxies import Running, serving
from tests.test_readme import examples_of, run_example
from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.integrations.asgi import CaptureMiddleware

openai = pytest.importorskip("openai", reason="the openai client is not installed")
pytest.importorskip("starlette", reason="the extra `serve` is not installed")

CHAT = "/chat/completions"


class Rollouts:
    """A rollout server that runs its engine in its own process."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        """A call has begun to generate."""

    def application(self, store: TokenCaptureStore) -> Any:
        """Make the application: the middleware between one that compresses and one that only looks on."""
        from starlette.applications import Starlette  # noqa: PLC0415
        from starlette.middleware import Middleware  # noqa: PLC0415
        from starlette.middleware.base import BaseHTTPMiddleware  # noqa: PLC0415
        from starlette.middleware.gzip import GZipMiddleware  # noqa: PLC0415
        from starlette.routing import Route  # noqa: PLC0415

        async def look(request: Any, call_next: Any) -> Any:
            return await call_next(request)

        looking = Middleware(BaseHTTPMiddleware, dispatch=look)
        return Starlette(
            routes=[Route("/v1/chat/completions", self.chat, methods=["POST"])],
            middleware=[looking, Middleware(CaptureMiddleware, store=store), looking, Middleware(GZipMiddleware)],
        )

    async def chat(self, request: Any) -> Any:
        """Answer a call in the way that the model's name says."""
        from starlette.responses import JSONResponse, StreamingResponse  # noqa: PLC0415

        asked = await request.json()
        if asked["model"] == "full":
            return JSONResponse({"error": {"message": "no room"}}, status_code=503)
        if asked["model"] == "raising":
            raise ValueError("of the application")
        if asked.get("stream"):
            return StreamingResponse(Events(asked, self.begun), media_type="text/event-stream")
        return JSONResponse(as_asked(DIALECTS["vllm chat"].whole(SHORT), asked, "vllm", native=False))


class Events:
    """The events of a stream, some of which go wrong in the middle; no generator, since nobody would close it."""

    def __init__(self, asked: Any, begun: threading.Event) -> None:
        events = [
            chunk if chunk == "[DONE]" else as_asked(chunk, asked, "vllm", native=False) for chunk in chat_chunks()
        ]
        self._left: list[Any] = [*map(event, events[:2]), asked["model"], *map(event, events[2:])]
        self._begun = begun

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._left:
            raise StopAsyncIteration
        found = self._left.pop(0)
        if found == "breaking":
            raise ValueError("of the engine")
        if found == "waiting":
            self._begun.set()
            await anyio.sleep_forever()
        if found == "garbling":
            return b"data: {\n\n"
        return found if isinstance(found, bytes) else b": a comment\n\n"


@pytest.fixture(params=["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Running, Rollouts]]:
    """Give a server of the application, and the application."""
    rollouts = Rollouts()

    @asynccontextmanager
    async def app_of(store: TokenCaptureStore) -> AsyncIterator[Any]:
        yield rollouts.application(store)

    with serving(request.param, tmp_path / "captures", app_of) as found:
        yield found, rollouts


def lost(snapshot: TokenCaptureSnapshot) -> bool:
    """Tell whether a rollout has one call, which was lost."""
    reasons = [reason.partition(":")[0] for reason in snapshot.incomplete_reasons]
    return reasons == ["marked", "lost_call"] and snapshot.entries == () and snapshot.refusals == ()


def test_the_openai_client(server: tuple[Running, Rollouts]) -> None:
    """A client that knows nothing of the middleware gets the text, whole and streamed, and each is a call."""
    running, _ = server
    with openai.OpenAI(base_url=running.base("r"), api_key="k", max_retries=0) as client:
        whole = client.chat.completions.create(model="m", messages=[])
        parts = list(client.chat.completions.create(model="m", messages=[], stream=True))
        with pytest.raises(openai.InternalServerError, match="no room"):
            client.chat.completions.create(model="full", messages=[])
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="raising", messages=[])

    assert whole.choices[0].message.content == SHORT.text()
    assert "".join(part.choices[0].delta.content for part in parts if part.choices) == SHORT.text()
    assert not any("token_ids" in str(given) for given in (whole, *parts))
    snapshot = running.settled("r")
    assert [SHORT.same(entry) for entry in snapshot.entries] == [True, True]
    assert [refusal.code for refusal in snapshot.refusals] == ["http_503"]
    assert len(snapshot.incomplete_reasons) == 2  # the call that the application failed


@pytest.mark.parametrize("model", ["breaking", "garbling"])
def test_no_client_takes_a_broken_stream_for_whole(model: str, server: tuple[Running, Rollouts]) -> None:
    """A stream that goes wrong ends in an error for the openai client, though other middleware has given it an end."""
    running, _ = server
    with openai.OpenAI(base_url=running.base("r"), api_key="k", max_retries=0) as client:
        parts = iter(client.chat.completions.create(model=model, messages=[], stream=True))
        seen = [next(parts).choices[0].finish_reason for _ in range(2)]
        with pytest.raises(openai.APIError):
            next(parts)

    assert seen == [None, None]
    assert lost(running.settled("r"))


def test_a_client_that_leaves_loses_the_call(server: tuple[Running, Rollouts]) -> None:
    """A client that leaves a stream masks the rollout."""
    running, rollouts = server
    body = {"model": "waiting", "messages": [], "stream": True}
    with httpx.stream("POST", running.base("r") + CHAT, json=body):
        rollouts.begun.wait()

    wait_until(lambda: running.peek("r").incomplete)
    assert lost(running.settled("r"))


def wait_until(true: Callable[[], bool]) -> None:
    """Ask again and again; the time limit of the test ends it."""
    while not true():
        pass


ENGINE = f"""
async def engine(asked):
    assert asked["return_token_ids"]
    return {DIALECTS["vllm chat"].whole(SHORT)!r}
"""
CLIENT = """
import asyncio, httpx

async def main():
    async with lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        url = "http://server/rollouts/rollout-7/v1/chat/completions"
        answer = await client.post(url, json={"model": "policy", "messages": []})
        print(json.dumps(answer.json()))

import json
asyncio.run(main())
"""


def test_the_readmes_example(tmp_path: Path) -> None:
    """The application of the README stores what it answers, as it stands."""
    (example,) = examples_of("In a server of your own")

    said = json.loads(run_example(ENGINE + example + CLIENT, tmp_path))

    assert said["choices"][0]["message"]["content"] == SHORT.text()
    assert "prompt_token_ids" not in said
    (entry,) = TokenCaptureStore(tmp_path / "captures").read_entries("rollout-7")
    assert SHORT.same(entry)
