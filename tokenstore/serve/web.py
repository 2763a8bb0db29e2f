"""The proxy as an ASGI application: the only module that imports Starlette.

`/metrics` and `/control/...` are the proxy's own, everything else is the engine's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from hmac import compare_digest
from typing import Any

import anyio

from tokenstore.codec import dumps, loads
from tokenstore.errors import TokenStoreError
from tokenstore.extras import needed
from tokenstore.serve.control import Control
from tokenstore.serve.endpoints import generates
from tokenstore.serve.exchange import ClientGoneError, Message, Receive, Reply, Request, Send
from tokenstore.serve.http import Connections
from tokenstore.serve.meters import Meters
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.relay import Relay
from tokenstore.serve.remote import error_to_plain, status_of
from tokenstore.serve.routes import OWN, route_of
from tokenstore.serve.settings import ProxySettings
from tokenstore.store import TokenCaptureStore

MAX_CONTROL_BYTES = 16 * 1024 * 1024
"""Body of a control request: some tens of thousands of rollout ids."""
LINES = "application/x-ndjson"
"""Content type of what is streamed line by line."""
_OWN = tuple(f"/{segment}" for segment in OWN)


def make_app(settings: ProxySettings, store: TokenCaptureStore, engine: Connections) -> Any:
    """Make the application; store and connections stay the caller's to open and close.

    Raises:
        ModuleNotFoundError: Starlette is not installed; the message says how to add it.
    """
    with needed("serve", "starlette", "the proxy needs Starlette"):
        from starlette.applications import Starlette  # noqa: PLC0415 - optional
        from starlette.routing import Mount, Route  # noqa: PLC0415
    meters = Meters()
    proxy = Proxy(settings, Relay(settings, store, engine, meters))
    routes: list[Any] = [Route("/metrics", _metrics(store, meters), methods=["GET"])]
    if settings.control_token is not None:
        routes.append(Mount("/control", routes=_control_routes(Control(store), settings.control_token)))
    routed = Starlette(routes=[*routes, Mount("/", app=proxy)])

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        # What is the engine's for sure does not pass through Starlette, whose layers every event would climb.
        path = scope.get("path", "")
        passes = path.startswith("/") and not path.startswith(_OWN)
        await (proxy if passes else routed)(scope, receive, send)

    return app


class Proxy:
    """Answers every request that is not the proxy's own."""

    def __init__(self, settings: ProxySettings, relay: Relay) -> None:
        self._settings = settings
        self._relay = relay

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI wants it."""
        if scope["type"] == "websocket":  # no engine generates over one, in a form that could be captured
            await send({"type": "websocket.close", "code": 1003})
        elif scope["type"] == "http":
            reply = Reply(send)
            try:
                await self._answer(Request(scope, receive), reply)
            except ProxyError as problem:
                await reply.fail(problem)
            except ClientGoneError:
                return

    async def _answer(self, request: Request, reply: Reply) -> None:
        route = route_of(request.path, request.headers)
        request.check_target(route.target)
        if generates(request.method, route.path):
            with self._relay.admitted(route, reply) as call:  # before its body is read, which takes memory
                request.check_coding()
                await self._work(request, reply, partial(self._relay.generating, call, request, route))
        else:
            await self._work(request, reply, partial(self._relay.passing, request, route))

    async def _work(self, request: Request, reply: Reply, work: Callable[[bytes, Reply], Awaitable[None]]) -> None:
        body = await request.body(self._settings.max_body_bytes)
        problem = await while_there(request, reply, lambda: work(body, reply))
        if problem is not None:
            raise problem


async def while_there(request: Request, reply: Reply, work: Callable[[], Awaitable[None]]) -> ProxyError | None:
    """Do something, but stop when the client leaves; gives the problem that it ran into."""
    problem: ProxyError | None = None

    async def leave() -> None:
        await request.gone()
        # With the end of an answer servers say so too, and hypercorn is closing the connection in the same task.
        if not reply.ended:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(leave)
        try:
            await work()
        except ProxyError as error:
            problem = error
        if not reply.ended:  # else the server says so, and whoever waits for that ends by itself, which costs less
            group.cancel_scope.cancel()
    return problem


def _metrics(store: TokenCaptureStore, meters: Meters) -> Callable[[Any], Awaitable[Any]]:
    from starlette.responses import PlainTextResponse  # noqa: PLC0415

    async def metrics(_: Any) -> Any:
        return PlainTextResponse(meters.text(store.statistics()), media_type="text/plain; version=0.0.4")

    return metrics


def _control_routes(control: Control, token: str) -> list[Any]:
    from starlette.routing import Route  # noqa: PLC0415

    table: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("GET", "/rollouts", lambda _, __: control.rollouts()),
        ("GET", "/statistics", lambda _, __: control.statistics()),
        ("POST", "/rollouts/{rollout_id}/freeze", lambda names, _: control.freeze(names["rollout_id"])),
        ("POST", "/rollouts/{rollout_id}/drop", lambda names, body: control.drop(names["rollout_id"], body)),
        ("POST", "/retire", lambda _, body: control.retire(body)),
        ("POST", "/delete", lambda _, body: control.delete(body)),
    )
    return [Route(path, _guarded(work, token), methods=[method]) for method, path, work in table]


def _guarded(work: Callable[..., Awaitable[Any]], token: str) -> Callable[[Any], Awaitable[Any]]:
    """Make an endpoint of an operation that only those may use who know the token."""
    from starlette.responses import Response, StreamingResponse  # noqa: PLC0415

    async def endpoint(asked: Any) -> Any:
        try:
            _check_token(asked.headers.get("authorization", ""), token)
            result = await work(asked.path_params, await _json_body(asked))
        except ProxyError as problem:
            headers = {name.decode(): value.decode() for name, value in problem.headers}
            return Response(problem.body, problem.status, headers)
        except TokenStoreError as error:
            told = dumps({"error": error_to_plain(error)})
            return Response(told, status_of(error), media_type="application/json")
        if isinstance(result, AsyncGenerator):
            return StreamingResponse(result, media_type=LINES)
        return Response(dumps(result), media_type="application/json")

    return endpoint


def _check_token(given: str, token: str) -> None:
    kind, _, value = given.partition(" ")
    # Compared as bytes: a header may hold what is not ASCII, which the comparison of strings refuses.
    if kind.lower() != "bearer" or not compare_digest(value.strip().encode(), token.encode()):
        raise ProxyError(401, "wrong_token", "the control routes need their bearer token")


async def _json_body(asked: Any) -> dict[str, Any]:
    found = bytearray()
    async for piece in asked.stream():
        found += piece
        if len(found) > MAX_CONTROL_BYTES:
            raise ProxyError(413, "body_too_large", f"the body of a request may have {MAX_CONTROL_BYTES} bytes")
    try:
        body = loads(bytes(found)) if found else {}
    except (ValueError, RecursionError) as error:
        raise ProxyError(400, "invalid_json", "the body is no well-formed JSON") from error
    if not isinstance(body, dict):
        raise ProxyError(400, "invalid_json", "the body is no JSON object")
    return body
