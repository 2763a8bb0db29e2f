"""A request and the answer to it, as ASGI servers speak them; no framework is needed for that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import anyio

from tokenstore.serve.problems import ProxyError
from tokenstore.serve.routes import Headers

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
"""Headers that are about one connection, not about the request or the answer."""

MAX_TARGET = 16 * 1024
"""Characters of a path and query: more than engines take."""
BODY_SECONDS = 30.0
"""How long the body of a request may stand still, also before it begins: networks stand still for a few seconds."""
BODY_RATE = 16 * 1024
"""Bytes that make up for a second of standing still: a body that comes more slowly, a fraction of what any network
gives, uses that time up."""


class ClientGoneError(Exception):
    """The client left before its request was whole."""


class Request:
    """What a client asks."""

    def __init__(self, scope: Message, receive: Receive) -> None:
        self.method: str = scope["method"]
        """GET, POST and so on."""
        self.path: str = scope["path"]
        """Decoded."""
        self.query: str = scope.get("query_string", b"").decode("latin-1")
        """Encoded, without the question mark."""
        self.headers: Headers = [(name.lower(), value) for name, value in scope["headers"]]
        """Names in lower case and values."""
        self._receive = receive

    def header(self, name: bytes) -> bytes | None:
        """Give the first header of a name."""
        return next((value for key, value in self.headers if key == name), None)

    def passed_on(self, *dropped: bytes) -> list[tuple[bytes, bytes]]:
        """Give the headers for the next server, which is told another host and length."""
        return _without(self.headers, {b"host", b"content-length", b"x-rollout-id", b"x-model-call-id", *dropped})

    def check_target(self, path: str) -> None:
        """See to it that the next server can be asked.

        Args:
            path: The encoded path there.

        Raises:
            ProxyError: The target would be longer than servers take.
        """
        if len(path) + len(self.query) > MAX_TARGET:
            raise ProxyError(414, "target_too_long", f"path and query may have {MAX_TARGET} characters, encoded")

    def check_coding(self) -> None:
        """See to it that the body can be read.

        Raises:
            ProxyError: It is compressed, which no engine takes either.
        """
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in self.headers):
            raise ProxyError(415, "compressed_body", "the body has a content-encoding; send it as it is, without one")

    async def body(self, limit: int) -> bytes:
        """Read the body, which must keep coming: meanwhile the request takes the place of a call.

        Raises:
            ProxyError: It is larger than the limit, or comes so slowly that it is not waited for.
            ClientGoneError: It did not come whole.
        """
        said = self.header(b"content-length") or b"0"
        if said.isdigit() and len(said) < 20 and int(said) > limit:
            raise _too_large(limit)
        found, more = bytearray(), True
        with anyio.move_on_after(BODY_SECONDS) as scope:
            while more:
                piece, more = await self._piece()
                found += piece
                scope.deadline = min(scope.deadline + len(piece) / BODY_RATE, anyio.current_time() + BODY_SECONDS)
                if len(found) > limit:
                    raise _too_large(limit)
        if more:
            told = f"the body stood still after {len(found)} bytes, or comes too slowly; send it again"
            raise ProxyError(408, "body_too_slow", told, retry=True)
        return bytes(found)

    async def _piece(self) -> tuple[bytes, bool]:
        """Give the next piece of the body, and whether there are more."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        return message.get("body", b""), message.get("more_body", False)

    async def gone(self) -> None:
        """Wait until the client leaves; only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Reply:
    """The answer to a client, whole or in pieces."""

    def __init__(self, send: Send) -> None:
        self.started = False
        """Whether the client has got the head."""
        self.ended = False
        """Whether the client has got the end."""
        self.on_end: Callable[[], object] = lambda: None
        """Called just before the client may see the end."""
        self._events = False
        self._send = send

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]], *, events: bool = False) -> None:
        """Send the head, perhaps of a body of server-sent events."""
        self.started, self._events = True, events
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body."""
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        """Send the last piece; without it the client sees that the answer is not whole."""
        self.ended = True
        self.on_end()
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def whole(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send an answer at once."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def fail(self, problem: ProxyError) -> None:
        """Say what is wrong: as an answer, or as the last event of one that has begun and is then broken off."""
        if not self.started:
            await self.whole(problem.status, problem.headers, problem.body)
        elif self._events and not self.ended:
            await self.write(problem.last_words)


def has_events(headers: Headers) -> bool:
    """Tell by its headers whether an answer is a stream of server-sent events."""
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return kind.lower().startswith(b"text/event-stream")


def answer_headers(headers: Headers, *, raw: bool = False) -> list[tuple[bytes, bytes]]:
    """Give the headers of an answer for the client; raw keeps those that are about the body's bytes."""
    own = {b"date", b"server"}
    return _without(headers, own if raw else own | {b"content-length", b"content-encoding"})


def _without(headers: Headers, dropped: set[bytes]) -> list[tuple[bytes, bytes]]:
    """Drop headers, and those that `Connection` names."""
    named = {name.strip().lower() for key, value in headers if key == b"connection" for name in value.split(b",")}
    dropped = dropped | HOP | named
    return [(name, value) for name, value in headers if name not in dropped]


def _too_large(limit: int) -> ProxyError:
    return ProxyError(413, "body_too_large", f"the body of a request may have {limit} bytes")
