"""Serving under asyncio: the only module that imports uvicorn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from socket import socket
from typing import Any

import anyio

from tokenstore.extras import needed
from tokenstore.serve.exchange import Message, Receive, Reply, Send
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.routes import Headers

KEEP_ALIVE = 75
"""Seconds that an idle client may stay: longer than clients keep a connection, so that none is closed under a call."""

LAST_SECONDS = 5.0
"""For the calls that are cut off in the end to record their losses, all at once; one takes a second at most."""


async def serve(app: Any, listener: socket, stop: anyio.Event, grace: float) -> None:
    """Serve until told to stop, then finish what is in flight.

    Args:
        app: The ASGI application.
        listener: Is bound already.
        stop: Set, no new connection is taken.
        grace: Seconds for what is in flight; what is left then is cancelled, which marks it.

    Raises:
        ModuleNotFoundError: uvicorn is not installed; the message says how to add it.
    """
    with needed("serve", "uvicorn", "serving under asyncio needs uvicorn"):
        import uvicorn  # noqa: PLC0415 - optional

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # it would kill the process by the signal when it has ended, before the store is closed

    staying: Any = Staying(app)
    config = uvicorn.Config(
        staying,
        lifespan="off",
        http="httptools",
        ws="none",
        proxy_headers=False,  # nobody asks for the client's address
        log_config=None,
        log_level="critical",  # a broken-off stream is no mistake of the application; our own log tells of it
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    server = Server(config)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    async with anyio.create_task_group() as group:
        group.start_soon(end)
        try:
            await server.serve(sockets=[listener])
        finally:
            await _cut_off(server.server_state.tasks)
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # else it waits for a client that takes nothing more of its answer
        group.cancel_scope.cancel()


class Staying:
    """An application that stays with HTTP/1.1 where a client asks for another protocol, as Java's own does (h2c).

    HTTP lets a server go on as if it had not been asked. But uvicorn's parser takes what comes after the head for that
    other protocol: the body is never seen, nor is another request on the connection, which would wait for ever.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _asks_to_leave(scope["headers"]):
            await self._app(scope, receive, send)
        elif _has_body(scope["headers"]):
            told = "the body was not read, since the header Upgrade asks for another protocol; leave it out"
            await Reply(partial(_last, send)).fail(ProxyError(400, "upgrade", told))
        else:
            await self._app(scope, receive, partial(_last, send))


def _asks_to_leave(headers: Headers) -> bool:
    said = b",".join(value for name, value in headers if name == b"connection")
    asked = b"upgrade" in (option.strip().lower() for option in said.split(b","))
    return asked and any(name == b"upgrade" for name, _ in headers)


def _has_body(headers: Headers) -> bool:
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


async def _last(send: Send, message: Message) -> None:
    """Send what is the last answer on its connection."""
    if message["type"] == "http.response.start":
        message["headers"] = [*message["headers"], (b"connection", b"close")]
    await send(message)


async def _cut_off(calls: set[Any]) -> None:
    """Cancel what is still in flight and wait for it: the losses are recorded while the store is still open."""
    for call in calls:
        if not call.cancelling():  # a second time would cut off the recording itself
            call.cancel()
    with anyio.move_on_after(LAST_SECONDS, shield=True):
        while calls:  # noqa: ASYNC110 - uvicorn tells nobody when the last one has ended
            await anyio.sleep(0.01)
