"""HTTP towards the engine, and towards a proxy from another host: kept connections on sockets of anyio.

A client of our own, since of those that run on both event loops none suits a proxy: httpx took seven tenths of what
passing a call through costs, most of it in its pool, its models and a parser in Python. What is left here is what a
proxy needs beside `wire`: no redirects, no cookies, no environment.
"""

from __future__ import annotations

import select
import ssl
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit

import anyio
import anyio.abc
import attrs
from anyio.streams.tls import TLSStream

from tokenstore.serve.frames import OversizeError
from tokenstore.serve.wire import BrokenError, Reading, written

KEEP_SECONDS = 2.0
"""An idle connection is given up before the engine does it (uvicorn: 5 s): a call sent at that moment would be lost."""
CONNECT_SECONDS = 10.0
"""A host that takes longer to accept a connection is down."""
PORTS = {"http": 80, "https": 443}
_GZIP_OR_ZLIB = 47
"""What zlib takes for either."""


class UnreachableError(Exception):
    """There was no connection, so nothing was sent."""


class SilentError(Exception):
    """Nothing came for longer than is allowed."""


@attrs.define(eq=False)
class Line:
    """A connection, and the answer that is being read from it."""

    stream: anyio.abc.ByteStream
    """What bytes go through."""
    poll: select.poll
    """Looks whether there is something to be read."""
    timeout: float
    """Seconds without a byte."""
    idle_since: float = 0.0
    """When its last answer ended."""

    @property
    def fit(self) -> bool:
        """Nothing waits to be read. Between two requests that would be the server's closing, or nothing good."""
        return not self.poll.poll(0)

    async def send(self, request: bytes, reading: Reading) -> bytes:
        """Send a request, read up to the end of the answer's head, and give what came of the body with it.

        Raises:
            SilentError, BrokenError: No whole head came.
        """
        body = b""
        try:
            with anyio.fail_after(self.timeout):
                with suppress(anyio.BrokenResourceError):  # it may have answered before it had read everything
                    await self.stream.send(request)
                while not reading.status:
                    body = await self._next(reading)
        except TimeoutError as error:
            raise SilentError(type(error).__name__) from error
        return body

    async def receive(self, reading: Reading) -> bytes:
        """Wait for the next bytes of the body; none may come of what was received.

        Raises:
            SilentError, BrokenError: Nothing good came.
        """
        try:
            with anyio.fail_after(self.timeout):
                return await self._next(reading)
        except TimeoutError as error:
            raise SilentError(type(error).__name__) from error

    async def _next(self, reading: Reading) -> bytes:
        try:
            return reading.feed(await self.stream.receive())
        except anyio.EndOfStream:
            reading.end()
            return b""
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise BrokenError(type(error).__name__) from error

    async def close(self) -> None:
        """Let it go; what of a request was not sent never will be."""
        with anyio.CancelScope(shield=True):
            await self.stream.aclose()


class Pieces:
    """The body of an answer as it comes. No generator: one that is broken off would have to be ended by hand."""

    def __init__(self, line: Line, reading: Reading, first: bytes) -> None:
        self._line = line
        self._reading = reading
        self._first = first

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        piece, self._first = self._first, b""
        while not piece:
            if self._reading.done:
                raise StopAsyncIteration
            piece = await self._line.receive(self._reading)
        return piece


class Decoded(Pieces):
    """The same without its compression."""

    def __init__(self, line: Line, reading: Reading, first: bytes) -> None:
        super().__init__(line, reading, first)
        self._decoder = zlib.decompressobj(_GZIP_OR_ZLIB)

    async def __anext__(self) -> bytes:
        found = b""
        while not found:
            found = self._decoded(await super().__anext__())
        return found

    def _decoded(self, piece: bytes) -> bytes:
        try:
            return self._decoder.decompress(piece)
        except zlib.error as error:
            raise BrokenError("Compression") from error


class Answer:
    """An answer whose head has come."""

    def __init__(self, line: Line, reading: Reading, first: bytes) -> None:
        self._parts = line, reading, first
        self.status = reading.status
        """HTTP status."""
        self.headers = reading.headers
        """Names in lower case and values."""

    def pieces(self, *, raw: bool = False) -> Pieces:
        """Give the body as it comes, once; raw is without undoing a compression.

        Raises:
            SilentError, BrokenError: It did not come whole.
        """
        coded = b"" if raw else b", ".join(value for name, value in self.headers if name == b"content-encoding")
        if coded in (b"", b"identity"):
            return Pieces(*self._parts)
        if coded.lower() in (b"gzip", b"x-gzip", b"deflate"):
            return Decoded(*self._parts)
        raise BrokenError("Compression")

    async def whole(self, limit: int) -> bytes:
        """Give the whole body.

        Raises:
            OversizeError: It is larger than the limit.
            SilentError, BrokenError: It did not come whole.
        """
        found = bytearray()
        async for piece in self.pieces():
            found += piece
            if len(found) > limit:
                raise OversizeError
        return bytes(found)


class Connections:
    """Kept connections to one server; use it with `async with`.

    Those that are idle lie on a stack: what was used last is used next, so that the others grow old and are let go.

    Args:
        base: URL that paths are appended to.
        timeout: Seconds without a byte after which an answer is given up.

    Raises:
        ValueError: The URL is none.
        ModuleNotFoundError: httptools is not installed; the message says how to add it.
    """

    def __init__(self, base: str, *, timeout: float) -> None:
        Reading("GET")  # says now what is missing
        url = urlsplit(base)
        if url.scheme not in PORTS or not url.hostname or not base.isascii():
            raise ValueError("the URL is not of the form http://host:port")
        self._address = url.hostname, url.port or PORTS[url.scheme]
        self._host = url.netloc.rpartition("@")[2].encode("ascii")
        self._base = url.path
        self._context = ssl.create_default_context() if url.scheme == "https" else None
        self._timeout = timeout
        self._idle: deque[Line] = deque()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the connections go. May be called again."""
        self._closed = True
        await self._let_go(inf)

    @asynccontextmanager
    async def ask(
        self, method: str, target: str, *, headers: Sequence[tuple[bytes, bytes]] = (), body: bytes = b""
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer when the head has come; redirects are not followed.

        Args:
            method: GET, POST and so on.
            target: Encoded path and query.
            headers: Names in lower case and values.
            body: Of the request.

        Raises:
            UnreachableError: Nothing was sent.
            SilentError, BrokenError: No whole head came.
        """
        request = written(method, self._base + target, self._host, headers, body)
        line = await self._line()
        reading = Reading(method)
        try:
            yield Answer(line, reading, await line.send(request, reading))
        finally:
            if reading.reusable and not self._closed:
                line.idle_since = monotonic()
                self._idle.append(line)
            else:
                await line.close()

    async def _line(self) -> Line:
        """Take an idle connection, or make one."""
        await self._let_go(monotonic() - KEEP_SECONDS)
        while self._idle:
            line = self._idle.pop()
            if line.fit:
                return line
            await line.close()
        return await self._new()

    async def _new(self) -> Line:
        host, port = self._address
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                stream: Any = await anyio.connect_tcp(host, port)
                if self._context is not None:
                    stream = await _secured(stream, self._context, host)
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise UnreachableError(type(error).__name__) from error
        return Line(stream, _poll(stream), self._timeout)

    async def _let_go(self, before: float) -> None:
        """Close what has been idle since some time."""
        while self._idle and self._idle[0].idle_since < before:
            await self._idle.popleft().close()


def _poll(stream: Any) -> select.poll:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610 - no model of Django
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return poll


async def _secured(stream: Any, context: ssl.SSLContext, host: str) -> Any:
    """Speak TLS; servers close such connections as they close others."""
    try:
        return await TLSStream.wrap(stream, hostname=host, ssl_context=context, standard_compatible=False)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        raise
