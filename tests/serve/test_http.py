"""Connections towards the engine: kept while they are used, let go when they are not; what comes back through them."""

from __future__ import annotations

import gzip
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, cast

import anyio
import anyio.to_thread
import pytest

from tokenstore.serve import http
from tokenstore.serve.http import Connections, SilentError, UnreachableError
from tokenstore.serve.wire import BrokenError

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

    context: ssl.SSLContext | None = None
    """With one it speaks TLS."""

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection."""
        taken, address = super().get_request()
        return (self.context.wrap_socket(taken, server_side=True) if self.context else taken), address


GZIPPED = gzip.compress(b"ok" * 4)
ANSWERS = {
    b"/gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(GZIPPED) + GZIPPED,
    b"/no-gzip": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok",
    b"/other": b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nok",
    b"/cut": b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
    b"/end": b"HTTP/1.1 200 OK\r\n\r\nok",
    b"/closing": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
}
"""Answers after which the connection is closed; `/closing` does not say so."""


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
            target = line.split()[1]
            if target in ANSWERS:
                self.wfile.write(ANSWERS[target])
                break
            if b"silent" not in line:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        self.request.shutdown(2)
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


async def test_a_connection_that_the_server_closed_is_not_used() -> None:
    """A server may close an idle connection without a word: the next request goes through another one."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            assert await ask(connections, "/closing") == b"ok"
            assert await anyio.to_thread.run_sync(server.closed.acquire)
            assert await ask(connections) == b"ok"

    assert server.opened == 2


@pytest.mark.parametrize(("target", "body"), [("/gzip", b"ok" * 4), ("/end", b"ok")])
async def test_bodies_that_end_otherwise(target: str, body: bytes) -> None:
    """What a server compresses unasked is undone, and a body without a length goes to the end of the connection."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            assert await ask(connections, target) == body


async def test_raw_pieces_stay_compressed() -> None:
    """What is passed through is not touched."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections, connections.ask("GET", "/gzip") as answer:
            found = b"".join([piece async for piece in answer.pieces(raw=True)])

    assert found == GZIPPED


@pytest.mark.parametrize("target", ["/no-gzip", "/other", "/cut"])
async def test_a_body_that_cannot_be_read_is_broken(target: str) -> None:
    """A compression that is none or is not known, and a body that is cut, are no answer."""
    with counting() as server:
        async with Connections(server.url, timeout=20) as connections:
            with pytest.raises(BrokenError):
                await ask(connections, target)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:80", "http://h\xf6st", "http://h:port"])
def test_a_url_that_is_none(url: str) -> None:
    """Without a scheme of HTTP and a host in ASCII there is nothing to connect to."""
    with pytest.raises(ValueError, match=r"URL|Port"):
        Connections(url, timeout=1)


async def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine behind https is asked if its certificate is trusted, and else nothing is sent."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    options = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=h", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", *options, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221 - nothing else runs
    with counting() as server:
        server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.context.load_cert_chain(certificate, key)
        url = server.url.replace("http:", "https:")
        async with Connections(url, timeout=20) as doubting:
            with pytest.raises(UnreachableError):
                await ask(doubting)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with Connections(url, timeout=20) as trusting:
            found = [await ask(trusting) for _ in range(2)]

    assert found == [b"ok", b"ok"]
