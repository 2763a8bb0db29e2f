"""The middleware: what an application answers is in the store before its end is sent, or the client sees no end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.engines.dialects import DIALECTS, Body
from tests.serve.engine import JSON, SHORT, STREAM, Engine, answer, calls, chat_chunks, event, whole
from tests.serve.test_forms import ASKED, PATHS, body_for, without_arrays
from tokenstore import InvalidEntryError, TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.codec import loads
from tokenstore.integrations.asgi import Application, CaptureMiddleware
from tokenstore.serve import settling
from tokenstore.serve.exchange import Message, Receive, Send
from tokenstore.serve.problems import ProxyError

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
ASK = {"model": "form/vllm chat/0", "messages": []}


@pytest.fixture
async def store(memory_path: Path) -> AsyncIterator[TokenCaptureStore]:
    """A store in the test's own loop."""
    async with TokenCaptureStore(memory_path / "captures") as store:
        yield store


class Server:
    """A server with one client, without a network between them.

    Args:
        app: What it serves.
        scope: What it says of the request beside what all say.
    """

    def __init__(self, app: Application, **scope: Any) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        """Whether the client has got the end of the body."""
        self.left = anyio.Event()
        """Set it, and the client has left."""
        self.heard = anyio.Event()
        """The client has got a piece of the body."""
        self.before_the_end: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        """Done when the end is about to be sent."""
        self._app = app
        self._scope = {"type": "http", "method": "POST", "query_string": b"", "headers": [], "root_path": "", **scope}

    async def ask(self, path: str, body: Body | bytes = b"", **headers: str) -> Server:
        """Send a request in two pieces, and see its answer to the end."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        pieces = [content[:7], content[7:]]
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]

        async def receive() -> Message:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
            await self.left.wait()
            return {"type": "http.disconnect"}

        await self._app(
            {**self._scope, "path": path, "headers": [*self._scope["headers"], *named]}, receive, self._send
        )
        return self

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        assert message["type"] == "http.response.body"
        if not message.get("more_body", False):
            await self.before_the_end()
            self.ended = True
        self.body += message.get("body", b"")
        self.heard.set()

    @property
    def said(self) -> Any:
        """The JSON of the answer, or of each of its events."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            return loads(self.body)
        events = [text.removeprefix("data: ") for text in self.body.decode().strip().split("\n\n")]
        return [text if text == "[DONE]" else loads(text) for text in events]


def lost(snapshot: TokenCaptureSnapshot) -> bool:
    """Tell whether a rollout has one call, which was lost."""
    reasons = [reason.partition(":")[0] for reason in snapshot.incomplete_reasons]
    return reasons == ["marked", "lost_call"] and snapshot.entries == () and snapshot.refusals == ()


# ---------------------------------------------------------------------------------------------- what is stored


@pytest.mark.parametrize("how", [(), ("asking", "stream")], ids=" ".join)
@pytest.mark.parametrize("name", PATHS)
async def test_the_client_gets_what_the_application_answers(
    name: str, how: tuple[str, ...], store: TokenCaptureStore
) -> None:
    """In every form a client gets the same as without the middleware, and the store has ids and log probabilities."""
    kind, path = PATHS[name]
    asked = body_for(name, 1, stream="stream" in how, **(ASKED.get(name, {}) if "asking" in how else {}))
    app = Engine()

    direct = await Server(app).ask(path, asked)
    through = await Server(CaptureMiddleware(app, store, engine_kind=kind)).ask(f"/rollouts/r{path}", asked)

    given_always = name == "responses" and "asking" not in how  # there it is a setting of the server
    assert through.said == (without_arrays(direct.said) if given_always else direct.said)
    assert (through.status, through.ended) == (200, True)
    (entry,) = (await store.freeze("r")).entries
    assert calls()[1].same(entry)
    assert (through.headers["x-rollout-id"], through.headers["x-model-call-id"]) == ("r", entry.model_call_id)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_is_sent_when_the_entry_is_durable(stream: bool, store: TokenCaptureStore) -> None:
    """When the client is about to get the end of an answer, the entry is in the store, and it was not before."""
    server = Server(CaptureMiddleware(Engine(), store))
    found: list[TokenCaptureSnapshot] = []

    async def look() -> None:
        found.append(await store.peek("r"))

    server.before_the_end = look
    await server.ask(CHAT, {**ASK, "stream": stream}, x_rollout_id="r")

    assert [len(snapshot.entries) for snapshot in found] == [1]
    assert server.ended


async def test_the_intent_is_durable_before_the_application_is_called(store: TokenCaptureStore) -> None:
    """An application finds its call open in the store, named in the headers, and the engine's options in the body."""
    seen: list[Any] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        snapshot = await store.peek("r")
        asked = loads((await receive())["body"])
        headers = dict(scope["headers"])
        seen.append((snapshot.open_calls, headers[b"x-rollout-id"], asked["return_token_ids"], headers[b"x-kept"]))
        assert int(headers[b"content-length"]) == len(json.dumps(asked, separators=(",", ":")))
        seen.append(headers[b"x-model-call-id"].decode())
        await whole(send, 200, json.dumps(DIALECTS["vllm chat"].whole(SHORT)).encode())

    await Server(CaptureMiddleware(app, store)).ask(f"/rollouts/r{CHAT}", ASK, x_model_call_id="turn-7", x_kept="1")

    ((opened, rollout_id, added, kept), call_id) = seen
    assert (opened, rollout_id, added, kept) == ((call_id,), b"r", True, b"1")
    assert call_id.startswith("turn-7.")


async def test_a_stream_passes_as_it_comes(store: TokenCaptureStore) -> None:
    """A client gets the first events while the application still generates."""

    async def app(_: Message, __: Receive, send: Send) -> None:
        chunks = chat_chunks()
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": event(chunks[0]), "more_body": True})
        await server.heard.wait()
        for chunk in chunks[1:]:
            await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
        await send({"type": "http.response.body"})

    server = Server(CaptureMiddleware(app, store))
    await server.ask(CHAT, {**ASK, "stream": True}, x_rollout_id="r")

    assert (server.said[-1], server.ended) == ("[DONE]", True)


async def test_what_follows_the_end_is_the_applications_own(store: TokenCaptureStore) -> None:
    """The answer does not wait for what an application does after it, and survives its failure."""
    ended: list[bool] = []

    async def app(_: Message, receive: Receive, send: Send) -> None:
        await receive()
        await whole(send, 200, json.dumps(DIALECTS["vllm chat"].whole(SHORT)).encode())
        ended.append(server.ended)
        raise RuntimeError("a background task failed")

    server = Server(CaptureMiddleware(app, store))
    with pytest.raises(RuntimeError, match="background"):
        await server.ask(CHAT, ASK, x_rollout_id="r")

    assert ended == [True]
    snapshot = await store.freeze("r")
    assert (len(snapshot.entries), snapshot.incomplete) == (1, False)


# ---------------------------------------------------------------------------------------------- what is not


@pytest.mark.parametrize(
    ("model", "code"), [("status/429/{}", "http_429"), ("status/422/{}", "http_422"), ("status/503/{}", "http_503")]
)
async def test_a_refusal_costs_nothing(model: str, code: str, store: TokenCaptureStore) -> None:
    """What the application turns away is a refusal with its code, and the client gets its words."""
    server = await Server(CaptureMiddleware(Engine(), store)).ask(CHAT, {**ASK, "model": model}, x_rollout_id="r")

    assert (f"http_{server.status}", server.said, server.ended) == (code, {}, True)
    snapshot = await store.freeze("r")
    assert [refusal.code for refusal in snapshot.refusals] == [code]
    assert not snapshot.incomplete


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ('status/500/{"error": "e"}', 500, None),
        ('status/200/{"choices": []}', 502, "answer_not_capturable"),
        ("status/200/{", 502, "answer_not_capturable"),
        ("redirect", 502, "engine_redirects"),
    ],
)
async def test_an_answer_that_is_none_is_lost(
    model: str, status: int, code: str | None, store: TokenCaptureStore
) -> None:
    """An error without proof, and an answer that cannot be stored, mask the rollout, and the client hears of it."""
    server = await Server(CaptureMiddleware(Engine(), store)).ask(CHAT, {**ASK, "model": model}, x_rollout_id="r")

    assert (server.status, server.ended) == (status, True)
    assert server.said["error"] == "e" if code is None else server.said["error"]["code"] == code
    assert lost(await store.freeze("r"))


@pytest.mark.parametrize("trouble", ["garbled/{", "garbled_line", "end_early", "fail_later", "break_off"])
async def test_a_stream_that_cannot_be_stored_is_broken_off(trouble: str, store: TokenCaptureStore) -> None:
    """A stream that goes wrong has an error event for its last, and no end: other middleware sees an exception."""
    server = Server(CaptureMiddleware(Engine(), store))

    with pytest.raises(ProxyError):
        await server.ask(CHAT, {**ASK, "model": trouble, "stream": True}, x_rollout_id="r")

    assert "error" in server.said[-1]
    assert not server.ended
    assert b"token_ids" not in server.body
    assert b"[DONE]" not in server.body
    assert lost(await store.freeze("r"))


@pytest.mark.parametrize(("headers", "status"), [(JSON, 0), (STREAM, 200)])
async def test_an_exception_of_the_application_is_a_loss(
    headers: list[tuple[bytes, bytes]], status: int, store: TokenCaptureStore
) -> None:
    """What the application raises goes on as it is, an error of a store among it, and the call is lost."""

    async def app(_: Message, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        raise InvalidEntryError("a", "is the application's own")

    server = Server(CaptureMiddleware(app, store))
    with pytest.raises(InvalidEntryError, match="own"):
        await server.ask(CHAT, {**ASK, "stream": True}, x_rollout_id="r")

    assert (server.status, server.ended) == (status, False)
    assert not status or server.said[-1]["error"]["code"] == "engine_broke_off"
    assert lost(await store.freeze("r"))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_loses_the_call(stream: bool, store: TokenCaptureStore) -> None:
    """An answer whose client has left is not stored; the application is told, and not cancelled."""
    told: list[Message] = []

    async def app(_: Message, receive: Receive, send: Send) -> None:
        await receive()
        if stream:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM})
            await send({"type": "http.response.body", "body": event(chat_chunks()[0]), "more_body": True})
        server.left.set()
        told.append(await receive())
        await anyio.lowlevel.checkpoint()
        if stream:
            for chunk in chat_chunks()[1:]:
                await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
            await send({"type": "http.response.body"})
        else:
            await answer(send, False, [DIALECTS["vllm chat"].whole(SHORT)])
        told.append(await receive())

    server = Server(CaptureMiddleware(app, store))
    await server.ask(CHAT, {**ASK, "stream": stream}, x_rollout_id="r")

    assert [message["type"] for message in told] == ["http.disconnect"] * 2
    assert not server.ended
    assert lost(await store.freeze("r"))


async def test_a_client_that_leaves_unheard_loses_the_call(store: TokenCaptureStore) -> None:
    """An application that does not listen for its client's leaving answers in vain."""

    async def app(_: Message, receive: Receive, send: Send) -> None:
        await receive()
        server.left.set()
        await anyio.wait_all_tasks_blocked()
        await answer(send, False, [DIALECTS["vllm chat"].whole(SHORT)])

    server = Server(CaptureMiddleware(app, store))
    await server.ask(CHAT, ASK, x_rollout_id="r")

    assert server.status == 0
    assert lost(await store.freeze("r"))


async def test_a_call_that_is_cancelled_is_lost(store: TokenCaptureStore) -> None:
    """A server that ends its calls by cancelling them leaves the loss recorded."""
    called = anyio.Event()

    async def app(_: Message, __: Receive, ___: Send) -> None:
        called.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(lambda: Server(CaptureMiddleware(app, store)).ask(CHAT, ASK, x_rollout_id="r"))
        await called.wait()
        group.cancel_scope.cancel()

    assert lost(await store.freeze("r"))


async def test_a_late_call_is_turned_away(store: TokenCaptureStore) -> None:
    """A call of a frozen rollout gets 409, and the application is not called."""
    await store.freeze("r")
    app = Engine()

    server = await Server(CaptureMiddleware(app, store)).ask(CHAT, ASK, x_rollout_id="r")

    assert (server.status, server.said["error"]["code"], app.asked) == (409, "rollout_frozen", [])


async def test_giants_are_turned_away(store: TokenCaptureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body above the limit gets 413 and leaves no trace; an answer above its limit is lost."""
    monkeypatch.setattr(settling, "MAX_ANSWER_BYTES", 100_000)
    app = CaptureMiddleware(Engine(), store, max_body_bytes=1000)
    stream = Server(app)

    body = await Server(app).ask(CHAT, b"x" * 1001, x_rollout_id="body")
    giant = {**ASK, "model": "giant"}
    whole_answer = await Server(CaptureMiddleware(_giant, store)).ask(CHAT, giant, x_rollout_id="whole")
    with pytest.raises(ProxyError):
        await stream.ask(CHAT, {**ASK, "model": "never_ending_event", "stream": True}, x_rollout_id="stream")

    assert (body.status, body.said["error"]["code"]) == (413, "body_too_large")
    assert list(store.root.glob("body.*")) == []
    assert (whole_answer.status, whole_answer.said["error"]["code"]) == (502, "answer_too_large")
    assert lost(await store.freeze("whole"))
    assert lost(await store.freeze("stream"))


async def _giant(_: Message, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": JSON})
    for _number in range(101):
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
    await send({"type": "http.response.body"})


# ---------------------------------------------------------------------------------------------- what is a call


class Mirror:
    """An application that says what it was asked."""

    async def __call__(self, scope: Message, _: Receive, send: Send) -> None:
        """Answer."""
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        found = {"path": scope["path"], "raw_path": scope.get("raw_path", b"").decode(), "headers": headers}
        await whole(send, 200, json.dumps(found).encode())


@pytest.mark.parametrize(
    "path", ["/metrics", "/rollouts", "/rollouts/7/start", "/items/", "//", "/control/x", "/v1/models"]
)
async def test_what_is_no_call_is_the_applications(path: str, store: TokenCaptureStore) -> None:
    """Other routes of the application, also those that begin like ours, get the request as it came."""
    server = await Server(CaptureMiddleware(Mirror(), store)).ask(path, b"no JSON", x_rollout_id="any / thing")

    assert server.said == {"path": path, "raw_path": "", "headers": {"x-rollout-id": "any / thing"}}
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize("prefix", ["/rollouts/r", "/ng-rollout/r", "/rollouts/r/ng-rollout/r"])
@pytest.mark.parametrize("root", ["", "/mounted"])
async def test_below_a_rollout_the_application_is_reached(root: str, prefix: str, store: TokenCaptureStore) -> None:
    """What generates nothing goes to its path without the rollout, also where the application is mounted."""
    app = CaptureMiddleware(Mirror(), store)

    models = await Server(app, method="GET", root_path=root).ask(f"{root}{prefix}/v1/models/a b")
    told = await Server(app, method="OPTIONS", root_path=root).ask(f"{root}{prefix}{CHAT}")

    assert (models.said["path"], models.said["raw_path"]) == (f"{root}/v1/models/a b", f"{root}/v1/models/a%20b")
    assert told.said["path"] == f"{root}{CHAT}"
    assert models.said["headers"] == {"x-rollout-id": "r"}


async def test_a_mounted_application_is_captured(store: TokenCaptureStore) -> None:
    """Below another path calls are calls all the same."""
    seen: list[str] = []

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(scope["path"])
        await Engine()({**scope, "path": CHAT}, receive, send)

    server = Server(CaptureMiddleware(app, store), root_path="/mounted")
    await server.ask(f"/mounted/rollouts/r{CHAT}", ASK)

    assert (server.status, seen) == (200, [f"/mounted{CHAT}"])
    assert len((await store.freeze("r")).entries) == 1


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        (CHAT, {}, 400, "no_rollout"),
        (f"/rollouts/r{CHAT}", {"x_rollout_id": "s"}, 400, "two_rollouts"),
        (f"/rollouts/a b{CHAT}", {}, 400, "invalid_rollout_id"),
        (f"/rollouts/..{CHAT}", {}, 400, "ambiguous_path"),
        (f"{CHAT}/", {"x_rollout_id": "r"}, 400, "ambiguous_path"),
        (f"/{CHAT}", {"x_rollout_id": "r"}, 400, "ambiguous_path"),
        ("/v1/messages", {"x_rollout_id": "r"}, 501, "not_capturable"),
        ("/rollouts/r/generate", {}, 501, "not_capturable"),
        (CHAT, {"x_rollout_id": "r", "x_model_call_id": "\x07"}, 400, "invalid_call_id"),
        (CHAT, {"x_rollout_id": "r", "content_encoding": "gzip"}, 415, "compressed_body"),
    ],
)
async def test_what_cannot_be_captured_is_turned_away(
    path: str, headers: dict[str, str], status: int, code: str, store: TokenCaptureStore
) -> None:
    """A call without a rollout, of two, by an ambiguous path, without ids, or compressed calls nobody."""
    app = Engine()

    server = await Server(CaptureMiddleware(app, store)).ask(path, ASK, **headers)

    assert (server.status, server.said["error"]["code"]) == (status, code)
    assert (app.asked, list(store.root.iterdir())) == ([], [])


async def test_own_paths_are_captured(store: TokenCaptureStore) -> None:
    """A path of the application's own is a call in the form that it was said to have, with a rollout before it too."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["path"] == "/act"
        await Engine()(scope, receive, send)

    capturing = CaptureMiddleware(app, store, paths={"/act": CHAT})
    for path, headers in (("/act", {"x_rollout_id": "r"}), ("/rollouts/r/act", {})):
        assert (await Server(capturing).ask(path, ASK, **headers)).status == 200

    assert [SHORT.same(entry) for entry in (await store.freeze("r")).entries] == [True, True]


@pytest.mark.parametrize("wrong", [{"engine_kind": "gpt"}, {"paths": {"/act": "/v1/act"}}])
def test_wrong_arguments_are_told(wrong: dict[str, Any], tmp_path: Path) -> None:
    """A kind of engine or a form that there is not is an error when the middleware is made."""
    with pytest.raises(ValueError, match="is allowed"):
        CaptureMiddleware(Mirror(), TokenCaptureStore(tmp_path), **wrong)


async def test_other_protocols_pass(store: TokenCaptureStore) -> None:
    """Lifespan and websockets are the application's."""
    seen: list[str] = []

    async def app(scope: Message, _: Receive, __: Send) -> None:
        seen.append(scope["type"])

    for kind in ("lifespan", "websocket"):
        await Server(CaptureMiddleware(app, store), type=kind).ask(CHAT)

    assert seen == ["lifespan", "websocket"]
