"""Proxies that tests run: in a thread of this process, on either server, so that a test may look into the store."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import Any

import anyio
import attrs
from anyio.from_thread import BlockingPortal

from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.serve.http import Connections
from tokenstore.serve.running import SERVERS, listening, loop_options, url_of
from tokenstore.serve.settings import ProxySettings
from tokenstore.serve.web import make_app

TOKEN = "a token of sixteen characters".replace(" ", "-")
"""What opens the control routes."""
AppOf = Callable[[TokenCaptureStore], AbstractAsyncContextManager[Any]]
"""Makes an application over a store, and lets go of it."""


@attrs.frozen
class Running:
    """A proxy that runs in a thread."""

    url: str
    root: Path
    portal: BlockingPortal
    store: TokenCaptureStore

    def base(self, rollout_id: str) -> str:
        """Give what a client takes as its base URL."""
        return f"{self.url}/rollouts/{rollout_id}/v1"

    def peek(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Look at a rollout."""
        return self.portal.call(self.store.peek, rollout_id)

    def settled(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Freeze a rollout and give it."""
        return self.portal.call(self.store.freeze, rollout_id)


def connected(url: str) -> socket.socket:
    """Connect to a server, for a client that does what no library would."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def call_of(rollout_id: str, body: bytes, *, length: int | None = None) -> bytes:
    """Write a call of a rollout as it goes over a connection, which stays; it may say another length."""
    said = len(body) if length is None else length
    head = f"POST /rollouts/{rollout_id}/v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {said}\r\n\r\n"
    return head.encode() + body


@contextmanager
def running(backend: str, engine: str, root: Path, **settings: Any) -> Iterator[Running]:
    """Run a proxy."""
    known = ProxySettings(**{"engine": engine, "control_token": TOKEN, **settings})

    @asynccontextmanager
    async def proxy(store: TokenCaptureStore) -> AsyncIterator[Any]:
        async with Connections(known.engine, timeout=known.engine_timeout) as connections:
            yield make_app(known, store, connections)

    with serving(backend, root, proxy) as found:
        yield found


@contextmanager
def serving(backend: str, root: Path, app_of: AppOf) -> Iterator[Running]:
    """Run a server of an application over a store."""
    said: Queue[Any] = Queue()
    work = partial(_serve, backend, app_of, root, said.put)

    def run() -> None:
        try:
            anyio.run(work, backend=backend, backend_options=loop_options(backend))
        except BaseException as error:  # noqa: BLE001 - the test gets it
            said.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    server = said.get(timeout=30)
    if isinstance(server, BaseException):
        raise server
    found, stop = server
    try:
        yield found
    finally:
        found.portal.call(stop.set)
        thread.join(30)
    if not said.empty():
        raise said.get()


async def _serve(backend: str, app_of: AppOf, root: Path, say: Callable[[Any], None]) -> None:
    async with BlockingPortal() as portal, TokenCaptureStore(root) as store, app_of(store) as app:
        stop = anyio.Event()
        with listening("127.0.0.1", 0) as listener:
            say((Running(url_of(listener), root, portal, store), stop))
            server = import_module(f"tokenstore.serve.{SERVERS[backend]}")
            await server.serve(app, listener, stop, 5)
