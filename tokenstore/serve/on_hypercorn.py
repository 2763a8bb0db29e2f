"""Serving under trio: the only module that imports hypercorn, and trio, of whose streams hypercorn takes its bytes.

Connections are taken here, not by hypercorn's own `serve`, for two reasons:

1. An exception in what hypercorn does for one connection would end the whole server: a piece of a body over HTTP/2 that
   comes after the answer is enough, or bytes that follow the request for a WebSocket. Here it ends that connection.
2. hypercorn writes behind a shield: a cancellation does not reach the call of a client that takes nothing of its
   answer, and the process would last as long as that client. Here the connection is shut down when its time is over.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from socket import SHUT_RDWR, socket
from typing import Any

import anyio

from tokenstore.extras import needed
from tokenstore.serve.exchange import Message, Receive, Reply, Send
from tokenstore.serve.on_uvicorn import KEEP_ALIVE
from tokenstore.serve.problems import ProxyError

logger = logging.getLogger("tokenstore.serve")


async def serve(app: Any, listener: socket, stop: anyio.Event, grace: float) -> None:
    """Serve until told to stop, then finish what is in flight. Arguments as those of `on_uvicorn`.

    Raises:
        ModuleNotFoundError: hypercorn is not installed; the message says how to add it.
    """
    with needed("serve", "hypercorn", "serving under trio needs hypercorn"):
        import trio  # noqa: PLC0415 - optional
        from hypercorn.trio.worker_context import WorkerContext  # noqa: PLC0415
    stopping, context = Stopping(app, stop), WorkerContext(None)
    clients = Clients(stopping, context)
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
    async with trio.open_nursery() as nursery:
        try:
            async with anyio.create_task_group() as taking:
                taking.start_soon(partial(trio.serve_listeners, clients.serve, listeners, handler_nursery=nursery))
                await stop.wait()
                taking.cancel_scope.cancel()
            await context.terminated.set()  # by which idle connections are closed
            with anyio.move_on_after(grace):
                await stopping.ended()
        finally:
            clients.shut_down()
        nursery.cancel_scope.cancel()


class Clients:
    """The connections of clients, each served by hypercorn."""

    def __init__(self, app: Any, context: Any) -> None:
        from hypercorn.app_wrappers import ASGIWrapper  # noqa: PLC0415 - optional
        from hypercorn.config import Config  # noqa: PLC0415
        from hypercorn.trio.tcp_server import TCPServer  # noqa: PLC0415

        config = Config()
        config.keep_alive_timeout = KEEP_ALIVE
        config.include_server_header = False
        config.loglevel = "CRITICAL"
        self._serve = partial(TCPServer, ASGIWrapper(app), config, context, {})
        self._streams: set[Any] = set()

    async def serve(self, stream: Any) -> None:
        """Serve a connection to its end."""
        self._streams.add(stream)
        try:
            await self._serve(stream)
        except* Exception as errors:  # noqa: BLE001 - of one connection; the others go on
            logger.warning("a connection was broken off: hypercorn raised %s", ", ".join(_names(errors)))
        finally:
            self._streams.discard(stream)

    def shut_down(self) -> None:
        """Shut down what is still open, which ends every wait for a client."""
        for stream in self._streams:
            with suppress(OSError):
                stream.socket.shutdown(SHUT_RDWR)


def _names(error: BaseException) -> list[str]:
    """Name the errors of a group; what they say may be a client's."""
    if isinstance(error, BaseExceptionGroup):
        return [name for inner in error.exceptions for name in _names(inner)]
    return [type(error).__name__]


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
        self._count += 1
        try:
            if scope["type"] == "http" and (problem := self._problem(scope["http_version"])):
                await Reply(send).fail(problem)
            else:
                await self._app(scope, receive, send)
        finally:
            self._count -= 1
            self._none.set()

    def _problem(self, version: str) -> ProxyError | None:
        if self._stop.is_set():
            told = "the proxy is being stopped; the engine was not asked"
            return ProxyError(503, "stopping", told, retry=True)
        if version not in ("1.0", "1.1"):
            # hypercorn speaks HTTP/2 too, but lets a stream that the application breaks off hang for ever.
            told = f"speak HTTP/1.1; this request came by HTTP/{version}, and the engine was not asked"
            return ProxyError(505, "http_version", told)
        return None

    async def ended(self) -> None:
        """Wait until it is told to stop and the last request has ended."""
        await self._stop.wait()
        while self._count:
            self._none = anyio.Event()
            await self._none.wait()
