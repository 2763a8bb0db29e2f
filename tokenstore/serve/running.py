"""A proxy as a process: store, connections, application, server and signals, opened and closed in order."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from socket import AF_INET, AF_INET6, IPPROTO_TCP, TCP_NODELAY, create_server, socket

import anyio

from tokenstore.config import StoreConfig
from tokenstore.serve.http import Connections
from tokenstore.serve.settings import ProxySettings
from tokenstore.serve.web import make_app
from tokenstore.store import TokenCaptureStore

BACKLOG = 2048
"""Connections that may wait to be taken: a whole batch of agents may begin at once."""
SERVERS = {"asyncio": "on_uvicorn", "trio": "on_hypercorn"}
"""Which server runs on which event loop."""


async def run(
    settings: ProxySettings,
    root: Path,
    *,
    config: StoreConfig,
    backend: str,
    host: str,
    port: int,
    grace: float,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM; a second one cuts off what is still in flight, which is then marked.

    Args:
        settings: Of the proxy.
        root: Directory of the store.
        config: Of the store.
        backend: The event loop that runs this, `asyncio` or `trio`.
        host: Address to listen on.
        port: To listen on, 0 for any that is free.
        grace: Seconds to finish what is in flight.
        ready: Called with the proxy's URL when connections are taken.

    Raises:
        ModuleNotFoundError: Something of the extra `serve` is not installed; the message says how to add it.
        OSError: The address cannot be bound, or the directory not be used.
    """
    _take_all_descriptors()
    server = import_module(f"tokenstore.serve.{SERVERS[backend]}")
    connections = Connections(settings.engine, timeout=settings.engine_timeout)
    async with TokenCaptureStore(root, config=config) as store, connections as engine:
        app = make_app(settings, store, engine)
        with listening(host, port) as listener:
            stop = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(_on_signals, stop, group.cancel_scope)
                ready(url_of(listener))
                await server.serve(app, listener, stop, grace)
                group.cancel_scope.cancel()


def listening(host: str, port: int) -> socket:
    """Bind an address, for connections on which small pieces are sent at once."""
    family = AF_INET6 if ":" in host else AF_INET
    listener = create_server((host, port), family=family, backlog=BACKLOG)
    # Connections inherit it. asyncio sets it only where the protocol is named, which `create_server` does not do, and
    # without it the second piece of an answer waits up to 40 ms for the acknowledgement of the first.
    listener.setsockopt(IPPROTO_TCP, TCP_NODELAY, True)
    return listener


def url_of(listener: socket) -> str:
    """Give the URL under which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _take_all_descriptors() -> None:
    """Raise the limit of open files as far as it goes: each call has two connections, and shells allow 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _on_signals(stop: anyio.Event, scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
            stop.set()
