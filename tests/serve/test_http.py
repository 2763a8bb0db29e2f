"""Connections towards the engine: kept while they are used, let go when they are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import cast

import anyio
import anyio.to_thread
import pytest

from tokenstore.serve import http
from tokenstore.serve.http import Connections, SilentError, UnreachableError

pytestmark = pytest.mark.anyio


class Counting(ThreadingTCPServer):
    """A server that counts its connections and those that were closed."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.opened = 0
        self.asked = threading.Semaphore(0)
        """Released for each request."""
        self.closed = threading.Semaphore(0)
        """Released for each connection that has ended."""

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{cast('tuple[str, int]', self.server_address)[1]}"


class Answering(StreamRequestHandler):
    """Answers requests without a body, one after the other; one for `/silent` never."""

    def handle(self) -> None:
        """Serve a connection to its end."""
        server = cast("Counting", self.server)
        server.opened += 1
        while line := self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            server.asked.release()
            if b"silent" not in line:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        server.closed.release()


@contextmanager
def counting() -> Iterator[Counting]:
    """Run a server that counts."""
    with Counting() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def ask(connections: Connections, target: str = "/") -> bytes:
    """Ask once."""
    async with connections.ask("GET", target) as answer:
        return await answer.whole(10)


async def test_a_connection_is_used_again() -> None:
    """Requests one after the other need one connection, and many at once leave theirs for the next."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            for _ in range(3):
                assert await ask(connections) == b"ok"
            one_by_one = server.opened
            for _ in range(2):
                async with anyio.create_task_group() as group:
                    for _ in range(8):
                        group.start_soon(ask, connections)
            at_once = server.opened

    assert one_by_one == 1
    assert at_once <= 8


async def test_idle_connections_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was idle for too long is closed by the next request, and all are at the end."""
    monkeypatch.setattr(http, "KEEP_SECONDS", -1.0)
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            await ask(connections)
            await ask(connections)
            assert await anyio.to_thread.run_sync(server.closed.acquire)
        assert await anyio.to_thread.run_sync(server.closed.acquire)
        await connections.close()

    assert server.opened == 2


async def test_a_silent_server_is_given_up() -> None:
    """What says nothing for longer than is allowed raises, and its connection is closed."""
    with counting() as server:
        async with Connections(server.url, timeout=0.05) as connections:
            with pytest.raises(SilentError):
                await ask(connections, "/silent")
            assert await anyio.to_thread.run_sync(server.closed.acquire)


async def test_a_connection_that_was_left_is_not_used_again() -> None:
    """A cancelled request closes its connection; one that is in flight at the close ends, and then closes its own."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            async with anyio.create_task_group() as group:
                group.start_soon(ask, connections, "/silent")
                assert await anyio.to_thread.run_sync(server.asked.acquire)
                group.cancel_scope.cancel()
            assert await anyio.to_thread.run_sync(server.closed.acquire)
            assert await ask(connections) == b"ok"
            assert server.opened == 2
            async with connections.ask("GET", "/") as answer:
                await connections.close()
                assert await answer.whole(10) == b"ok"
        assert await anyio.to_thread.run_sync(server.closed.acquire)


async def test_nobody_there() -> None:
    """Without a server nothing was sent."""
    with counting() as server:
        url = server.url
    async with Connections(url, timeout=20) as connections:
        with pytest.raises(UnreachableError):
            await ask(connections)
