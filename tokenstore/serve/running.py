"""A proxy as a process: store, connections, application, server and signals, opened and closed in order."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from socket import AF_INET, AF_INET6, IPPROTO_TCP, TCP_NODELAY, TCP_USER_TIMEOUT, create_server, socket
from typing import Any

import anyio
import attrs
from anyio.abc import TaskStatus

from tokenstore.config import MAX_OPEN_FILES, StoreConfig
from tokenstore.serve.http import Connections
from tokenstore.serve.settings import ProxySettings
from tokenstore.serve.web import make_app
from tokenstore.store import TokenCaptureStore

BACKLOG = 2048
"""Connections that may wait to be taken: a whole batch of agents may begin at once."""
READER_SECONDS = 600.0
"""As long as an engine may be silent by default: a client that takes nothing of its answer for longer has stopped, and
its call holds a place and what the engine generates for it."""
SOCKETS_A_CALL, FILES_A_CALL = 2, 3
"""Of client and engine; lock, lines and intents of its rollout."""
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
    config = settled_in(settings, config)
    server = import_module(f"tokenstore.serve.{SERVERS[backend]}")
    connections = Connections(settings.engine, timeout=settings.engine_timeout)
    async with TokenCaptureStore(root, config=config) as store, connections as engine:
        app = make_app(settings, store, engine)
        with listening(host, port) as listener:
            stop = anyio.Event()
            async with anyio.create_task_group() as group:
                await group.start(_on_signals, stop, group.cancel_scope)  # who reads the URL may stop us at once
                ready(url_of(listener))
                await server.serve(app, listener, stop, grace)
                group.cancel_scope.cancel()


def listening(host: str, port: int) -> socket:
    """Bind an address, for connections on which small pieces are sent at once, to clients that take them."""
    family = AF_INET6 if ":" in host else AF_INET
    listener = create_server((host, port), family=family, backlog=BACKLOG)
    # Connections inherit it. asyncio sets it only where the protocol is named, which `create_server` does not do, and
    # without it the second piece of an answer waits up to 40 ms for the acknowledgement of the first.
    listener.setsockopt(IPPROTO_TCP, TCP_NODELAY, True)
    listener.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, round(READER_SECONDS * 1000))  # the kernel closes it then
    return listener


def url_of(listener: socket) -> str:
    """Give the URL under which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def loop_options(backend: str) -> dict[str, Any]:
    """Give the options of the event loop: of asyncio's the one in C, where it is installed.

    A captured call is a dozen steps in the loop, most of them on the way to the store's threads and back; the loop in C
    takes a tenth off all that the call costs.
    """
    return {"use_uvloop": True} if backend == "asyncio" and find_spec("uvloop") else {}


def settled_in(settings: ProxySettings, config: StoreConfig) -> StoreConfig:
    """Make this process the proxy's own, and give the configuration for a store that has it to itself.

    Between two steps of a call an engine answers hundreds of others. If their files were not kept open meanwhile, each
    step would close another rollout's and look closely at its own again, which takes as long as the step itself.
    """
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # shells allow 1024, fewer than calls have connections
    return attrs.evolve(config, max_open_files=files_to_keep(limit, settings.max_calls))


def files_to_keep(limit: int, calls: int) -> int:
    """Tell how many of a store's files may stay open where so many may be open, connections and all."""
    if limit == resource.RLIM_INFINITY:
        return FILES_A_CALL * calls
    free = limit - SOCKETS_A_CALL * calls
    return max(MAX_OPEN_FILES, min(FILES_A_CALL * calls, free // 2))


async def _on_signals(stop: anyio.Event, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if stop.is_set():
                scope.cancel()
            stop.set()
