"""Serving under trio: the only module that imports hypercorn."""

from __future__ import annotations

from socket import socket
from typing import Any

import anyio

from tokenstore.serve.on_uvicorn import KEEP_ALIVE


async def serve(app: Any, listener: socket, stop: anyio.Event, grace: float) -> None:
    """Serve until told to stop, then finish what is in flight. Arguments as those of `on_uvicorn`.

    Raises:
        ModuleNotFoundError: hypercorn is not installed; the message says how to add it.
    """
    try:
        from hypercorn.config import Config  # noqa: PLC0415 - optional
        from hypercorn.trio import serve as serve_app  # noqa: PLC0415
    except ImportError as error:
        message = "serving under trio needs hypercorn; 'pip install tokenstore[serve]' adds it"
        raise ModuleNotFoundError(message, name="hypercorn") from error
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = grace
    config.shutdown_timeout = grace
    config.keep_alive_timeout = KEEP_ALIVE
    config.include_server_header = False
    config.loglevel = "CRITICAL"
    await serve_app(app, config, shutdown_trigger=stop.wait)
