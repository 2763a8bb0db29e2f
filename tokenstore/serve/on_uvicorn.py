"""Serving under asyncio: the only module that imports uvicorn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any

import anyio

from tokenstore.extras import needed

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

    config = uvicorn.Config(
        app,
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
        group.cancel_scope.cancel()


async def _cut_off(calls: set[Any]) -> None:
    """Cancel what is still in flight and wait for it: the losses are recorded while the store is still open."""
    for call in calls:
        if not call.cancelling():  # a second time would cut off the recording itself
            call.cancel()
    with anyio.move_on_after(LAST_SECONDS, shield=True):
        while calls:  # noqa: ASYNC110 - uvicorn tells nobody when the last one has ended
            await anyio.sleep(0.01)
