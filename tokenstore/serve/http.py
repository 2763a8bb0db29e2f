"""HTTP towards the engine, and towards a proxy from another host: the only module that imports httpx."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from math import inf
from time import monotonic
from typing import Any, Self

import anyio

from tokenstore.serve.frames import OversizeError

KEEP_SECONDS = 2.0
"""An idle connection is given up before the engine does it (uvicorn: 5 s): a call sent at that moment would be lost."""
CONNECT_SECONDS = 10.0
"""A host that takes longer to accept a connection is down."""


class UnreachableError(Exception):
    """There was no connection, so nothing was sent."""


class SilentError(Exception):
    """Nothing came for longer than is allowed."""


class BrokenError(Exception):
    """The connection broke after something was sent."""


class Answer:
    """An answer whose head has come."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status: int = response.status_code
        """HTTP status."""
        self.headers: list[tuple[bytes, bytes]] = [(name.lower(), value) for name, value in response.headers.raw]
        """Names in lower case and values."""

    async def pieces(self, *, raw: bool = False) -> AsyncGenerator[bytes]:
        """Give the body as it comes; raw is without undoing a compression.

        Raises:
            SilentError, BrokenError: It did not come whole.
        """
        with _translated():
            async with _ended(self._response.aiter_raw() if raw else self._response.aiter_bytes()) as pieces:
                async for piece in pieces:
                    yield piece

    async def whole(self, limit: int) -> bytes:
        """Give the whole body.

        Raises:
            OversizeError: It is larger than the limit.
            SilentError, BrokenError: It did not come whole.
        """
        found = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                found += piece
                if len(found) > limit:
                    raise OversizeError
        return bytes(found)


class Connections:
    """Kept connections to one server; use it with `async with`.

    Each is a client of httpx of its own, and those that are idle lie on a stack. One client for all would look at every
    pair of idle connections for each request: after a batch of a thousand agents that takes a second of the processor.

    Args:
        base: URL that paths are appended to.
        timeout: Seconds without a byte after which an answer is given up.

    Raises:
        ModuleNotFoundError: httpx is not installed; the message says how to add it.
    """

    def __init__(self, base: str, *, timeout: float) -> None:
        httpx = _httpx()
        self._base = base
        self._timeout = httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None)
        self._limits = httpx.Limits(keepalive_expiry=KEEP_SECONDS)
        self._context = httpx.create_ssl_context()
        self._idle: deque[tuple[float, Any]] = deque()
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
        # Built by hand, since the client itself would add headers of its own to those of the request.
        httpx = _httpx()
        url = httpx.URL(self._base + target)
        request = httpx.Request(method, url, headers=list(headers), content=body)
        await self._let_go(monotonic() - KEEP_SECONDS)
        one = self._idle.pop()[1] if self._idle else self._new()
        try:
            with _translated():
                response = await one.send(request, stream=True)
            try:
                yield Answer(response)
            finally:
                await response.aclose()
        finally:
            self._idle.append((monotonic(), one))
            if self._closed:
                with anyio.CancelScope(shield=True):
                    await self._let_go(inf)

    def _new(self) -> Any:
        # A proxy of the environment would not lead to an engine of this network.
        httpx = _httpx()
        transport = httpx.AsyncHTTPTransport(verify=self._context, trust_env=False, limits=self._limits)
        return httpx.AsyncClient(timeout=self._timeout, trust_env=False, transport=transport)

    async def _let_go(self, before: float) -> None:
        """Close what has been idle since some time."""
        while self._idle and self._idle[0][0] < before:
            await self._idle.popleft()[1].aclose()


def _httpx() -> Any:
    try:
        import httpx  # noqa: PLC0415 - optional
    except ImportError as error:
        message = "the proxy and its client need httpx; 'pip install tokenstore[serve]' adds it"
        raise ModuleNotFoundError(message, name="httpx") from error
    return httpx


@asynccontextmanager
async def _ended(pieces: AsyncGenerator[bytes]) -> AsyncIterator[AsyncGenerator[bytes]]:
    """Run an iteration that is broken off to its end, in a scope that is cancelled, so that nothing more is read.

    Inside httpx generators are nested, and none closes the next; trio complains of those that are left lying about.
    """
    try:
        yield pieces
    finally:
        with anyio.CancelScope() as scope, suppress(Exception):
            scope.cancel()
            async for _ in pieces:
                pass


@contextmanager
def _translated() -> Iterator[None]:
    """Say in our words how a request failed."""
    httpx = _httpx()
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise UnreachableError(type(error).__name__) from error
    except httpx.TimeoutException as error:
        raise SilentError(type(error).__name__) from error
    except (httpx.RequestError, httpx.StreamError) as error:
        raise BrokenError(type(error).__name__) from error
