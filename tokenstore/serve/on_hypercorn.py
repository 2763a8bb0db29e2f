"""Serving under trio: the only module that imports hypercorn."""

from __future__ import annotations

from socket import socket
from typing import Any

import anyio

from tokenstore.extras import needed
from tokenstore.serve.exchange import Message, Receive, Reply, Send
from tokenstore.serve.on_uvicorn import KEEP_ALIVE
from tokenstore.serve.problems import ProxyError


async def serve(app: Any, listener: socket, stop: anyio.Event, grace: float) -> None:
    """Serve until told to stop, then finish what is in flight. Arguments as those of `on_uvicorn`.

    Raises:
        ModuleNotFoundError: hypercorn is not installed; the message says how to add it.
    """
    with needed("serve", "hypercorn", "serving under trio needs hypercorn"):
        from hypercorn.config import Config  # noqa: PLC0415 - optional
        from hypercorn.trio import serve as serve_app  # noqa: PLC0415
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = grace
    config.shutdown_timeout = grace
    config.keep_alive_timeout = KEEP_ALIVE
    config.include_server_header = False
    config.loglevel = "CRITICAL"
    stopping: Any = Stopping(app, stop)
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await stopping.ended()
            group.cancel_scope.cancel()

        group.start_soon(end)
        await serve_app(stopping, config, shutdown_trigger=stop.wait)
        group.cancel_scope.cancel()


class Stopping:
    """An application that takes no new request when it is told to stop, and says when the last one has ended.

    hypercorn waits for connections, and closes idle ones whatever comes of them: of a client that sent its next request
    while the last answer was being ended, the reader waits for a turn that never comes; and a call that begins on a
    connection that is being closed would be lost.
    """

    def __init__(self, app: Any, stop: anyio.Event) -> None:
        self._app = app
        self._stop = stop
        self._count = 0
        self._none = anyio.Event()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._stop.is_set():
            told = "the proxy is being stopped; the engine was not asked"
            await Reply(send).fail(ProxyError(503, "stopping", told, retry=True))
        elif scope["http_version"] not in ("1.0", "1.1") and scope["method"] == "POST":
            # hypercorn speaks HTTP/2 too, but lets a stream that the application breaks off hang for ever.
            told = f"a call needs HTTP/1.1, this one came by HTTP/{scope['http_version']}; the engine was not asked"
            await Reply(send).fail(ProxyError(505, "http_version", told))
        else:
            self._count += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._count -= 1
                self._none.set()

    async def ended(self) -> None:
        """Wait until it is told to stop and the last request has ended."""
        await self._stop.wait()
        while self._count:
            self._none = anyio.Event()
            await self._none.wait()
