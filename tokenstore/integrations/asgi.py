"""Capturing inside a server that already holds the engine's answer, as ASGI middleware: no proxy, no second connection.

    app.add_middleware(CaptureMiddleware, store=store)           # FastAPI, Starlette
    app = CaptureMiddleware(app, store)                          # any ASGI application

For a server that answers as an engine does (JSON, or server-sent events), with ids: one that runs the engine in its own
process, or that calls it and passes its answers on. The promises are those of the proxy, in `tokenstore.serve`, and so
are the modules that keep them; only where an answer comes from differs:

1. The intent is durable before the application is called, and the application gets the engine's options in its request,
   so that one which passes the request on asks for ids. It finds the rollout and the call in the headers
   `X-Rollout-Id` and `X-Model-Call-Id`.
2. The end of the answer is sent when the entry is durable. What is an answer with 4xx or 503 is a refusal; an exception
   of the application, or a client that has left when the answer ends, is a loss.
3. An application is never cancelled because its client left: it is told by `http.disconnect`, as servers do.
4. A stream that goes wrong has an error for its last event and is then broken off, by an exception. Of other middleware
   around this one, `BaseHTTPMiddleware` of Starlette ends the body all the same; so this one belongs outermost.
5. What is no call goes to the application as it came, but for the rollout before `/v1` in its path.

The store is the caller's to open and close: `async with store` around the application's lifespan keeps its work in the
server's loop; never entered, it works in a thread of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote

import anyio
import anyio.lowlevel

from tokenstore.serve.asking import Plan
from tokenstore.serve.endpoints import ENDPOINTS, GENERATING
from tokenstore.serve.exchange import ClientGoneError, Message, Receive, Reply, Request, Send
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.routes import CALL_HEADER, PREFIXES, ROLLOUT_HEADER, Headers, Route, route_of
from tokenstore.serve.settings import MAX_BODY_BYTES, EngineKind
from tokenstore.serve.settling import InFlight, Outlet
from tokenstore.store import TokenCaptureStore

Application = Callable[[Message, Receive, Send], Awaitable[None]]

_REPLACED = frozenset(
    {
        b"content-length", b"transfer-encoding", b"expect", b"content-type", b"accept-encoding", ROLLOUT_HEADER,
        CALL_HEADER,
    }
)  # fmt: skip
"""Headers of a request that are said anew to the application."""


class CaptureMiddleware:
    """Captures what an ASGI application answers to calls that generate.

    Args:
        app: The application.
        store: Where calls go; the caller opens and closes it.
        engine_kind: Whose answers the application gives.
        paths: Own paths of the application that generate, each with the engine's path in whose form it is asked and
            answers, as `{"/act": "/v1/chat/completions"}`.
        max_body_bytes: Largest body of a call.

    Raises:
        ValueError: The kind of engine is not known, or has no such path.
    """

    def __init__(
        self,
        app: Application,
        store: TokenCaptureStore,
        *,
        engine_kind: EngineKind = "vllm",
        paths: Mapping[str, str] | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        known, own = ENDPOINTS.get(engine_kind), paths or {}
        if known is None:
            raise ValueError(f"engine_kind is {engine_kind!r}, one of {', '.join(ENDPOINTS)} is allowed")
        if strange := set(own.values()) - known.keys():
            raise ValueError(f"paths names {min(strange)}, for {engine_kind} one of {', '.join(known)} is allowed")
        self._app = app
        self._store = store
        self._endpoints = {**known, **{path: known[form] for path, form in own.items()}}
        self._generating = GENERATING | self._endpoints.keys()
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI wants it.

        Raises:
            ProxyError: A stream is broken off, by which the server closes the connection without the end of the body.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        reply = Reply(send)
        try:
            await self._answer(scope, receive, send, reply)
        except ClientGoneError:
            return
        except ProxyError as problem:
            broken_off = reply.started
            await reply.fail(problem)
            if broken_off:  # to return would be enough for a server, but other middleware would not hear of it
                raise
        except Exception:
            if reply.started:
                await reply.fail(ProxyError(502, "engine_broke_off", "the application failed"))
            raise

    async def _answer(self, scope: Message, receive: Receive, send: Send, reply: Reply) -> None:
        request = Request({**scope, "path": _inner_path(scope)}, receive)
        if not self._concerned(request.path):
            await self._app(scope, receive, send)
            return
        route = route_of(request.path, request.headers, own=())
        if request.method != "POST" or route.path not in self._generating:
            await self._app({**scope, **_place(scope, route)}, receive, send)
            return
        request.check_coding()
        body = await request.body(self._max_body_bytes)
        call = InFlight(route.rollout_id or "")
        try:
            plan = await call.planned(self._endpoints, request, route, body)
            await self._captured({**scope, **_place(scope, route)}, call, plan, request, reply)
        finally:
            call.log()

    def _concerned(self, path: str) -> bool:
        """Tell whether a path may be that of a call, or has a rollout before the engine's path."""
        segments = [segment for segment in path.split("/") if segment not in ("", ".", "..")]
        inner = segments
        while inner and inner[0] in PREFIXES:
            inner = inner[2:]
        if f"/{'/'.join(inner)}" in self._generating:
            return True
        return inner != segments and inner[:1] == ["v1"]

    async def _captured(self, scope: Message, call: InFlight, plan: Plan, request: Request, reply: Reply) -> None:
        scope["headers"] = _headers(scope["headers"], call, plan.body)
        scope["extensions"] = {}  # such as sending a file by its path, past us
        async with call.captured(self._store):
            await self._called(scope, Between(request, plan.body, Outlet(call, plan, reply)))

    async def _called(self, scope: Message, between: Between) -> None:
        """Call the application.

        Raises:
            ProxyError: The answer is withheld.
            ClientGoneError: The client left before the answer's end.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(between.watch)
            try:
                await self._app(scope, between.receive, between.send)
            except Exception as error:  # noqa: BLE001 - raised below, outside of the group, which would wrap it
                failure = error
            group.cancel_scope.cancel()
        problem = between.problem
        if failure is not None and (problem is None or isinstance(problem, ClientGoneError)):
            raise failure
        if problem is not None:
            raise problem from failure
        between.check_ended()


class Between:
    """Stands between a server and its application for one call.

    Args:
        request: The client's, whose body was read.
        body: What the application gets in its place.
        outlet: Takes the answer.
    """

    def __init__(self, request: Request, body: bytes, outlet: Outlet) -> None:
        self.problem: Exception | None = None
        """Why the answer is withheld."""
        self._request = request
        self._body: bytes | None = body
        self._outlet = outlet
        self._over = anyio.Event()
        self._ended = False

    async def watch(self) -> None:
        """Take note when the client leaves. Nobody else reads what the server has to say: some say it only once."""
        await self._request.gone()
        self.problem = self.problem or (None if self._ended else ClientGoneError())
        self._over.set()

    async def receive(self) -> Message:
        """Give the application its request, and then its client's leaving."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take what the application answers; what comes after the end, or after a problem, leads nowhere."""
        if self._ended or self.problem is not None:
            return
        try:
            await self._taken(message)
        except ProxyError as problem:
            self.problem = problem
            self._over.set()  # so that an application that listens need not generate the rest

    def check_ended(self) -> None:
        """See to it that the application has not left its answer without an end.

        Raises:
            ProxyError: It has.
        """
        if not self._ended:
            raise ProxyError(502, "engine_broke_off", "the application did not end its answer")

    async def _taken(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(bytes(name).lower(), bytes(value)) for name, value in message.get("headers", ())]
            await self._outlet.start(message["status"], headers)
        elif message["type"] == "http.response.body":
            await self._outlet.take(message.get("body", b""))
            if not message.get("more_body", False):
                await anyio.lowlevel.checkpoint()  # a client that has left by now is noticed
                if self.problem is None:
                    self._ended = True
                    await self._outlet.end()


def _inner_path(scope: Message) -> str:
    """Give the path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def _place(scope: Message, route: Route) -> Message:
    """Say where the application finds a request, which names its rollout in a header."""
    path: str = scope["path"].removesuffix(_inner_path(scope)) + route.path
    headers = [pair for pair in scope["headers"] if pair[0].lower() != ROLLOUT_HEADER]
    if route.rollout_id is not None:
        headers.append((ROLLOUT_HEADER, route.rollout_id.encode()))
    return {"path": path, "raw_path": quote(path, safe="/:@!$&'()*+,;=~-._").encode(), "headers": headers}


def _headers(asked: Headers, call: InFlight, body: bytes) -> list[tuple[bytes, bytes]]:
    """Give the headers of the request that the application gets."""
    said = [(name, value) for name, value in asked if name.lower() not in _REPLACED]
    return [
        *said,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"accept-encoding", b"identity"),
        (ROLLOUT_HEADER, call.rollout_id.encode()),
        (CALL_HEADER, call.call_id.encode("latin-1")),
    ]
