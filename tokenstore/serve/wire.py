"""HTTP/1.1 as bytes, towards the engine: a request is written, an answer is read; no I/O.

The only module that imports httptools, whose parser in C reads an answer in a fiftieth of the time that one in Python
takes, on either event loop. What it leaves to us:

1. Of which kind a body is that has neither a length nor chunks: it goes to the end of the connection.
2. That the answer to HEAD has no body, whatever its head says.
3. How much may come that is no body: head, trailers, extensions of chunks.
4. Provisional answers (100 to 199), of which several may come before the one that counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from tokenstore.extras import needed

MAX_HEAD_BYTES = 256 * 1024
"""Of what is no body; servers send a few hundred bytes, and some cookies."""
_WITH_LENGTH = frozenset({"POST", "PUT", "PATCH"})
"""Methods whose request says its length also where it is 0."""
_TARGET = re.compile(r"[!-\"$-~]+")
"""What needs no encoding any more: printable ASCII, but the mark of a fragment."""
_KEPT = "".join(chr(code) for code in range(ord("!"), ord("~") + 1) if chr(code) != "#")


class BrokenError(Exception):
    """The connection broke after something was sent, or what came is no HTTP."""


def written(
    method: str, target: str, host: bytes, headers: Sequence[tuple[bytes, bytes]] = (), body: bytes = b""
) -> bytes:
    """Write a request.

    Args:
        method: GET, POST and so on.
        target: Path and query; of what clients should have encoded and have not, the bytes are.
        host: For the header of that name.
        headers: Names and values; none of them about host and length.
        body: May be empty.

    Raises:
        ValueError: There is a line break in a header.
    """
    if not _TARGET.fullmatch(target):
        target = quote(target, safe=_KEPT, encoding="latin-1")
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), target.encode("ascii")), b"host: " + host]
    lines += [b"%b: %b" % pair for pair in headers]
    if body or method in _WITH_LENGTH:
        lines.append(b"content-length: %d" % len(body))
    head = b"\r\n".join([*lines, b"", b""])
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1 or b"\0" in head:
        raise ValueError("a header of a request holds a line break or a NUL")
    return head + body


class Reading:
    """Reads one answer.

    Args:
        method: Of the request.

    Raises:
        ModuleNotFoundError: httptools is not installed; the message says how to add it.
    """

    def __init__(self, method: str) -> None:
        self.status = 0
        """HTTP status, 0 until the head is whole."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case and values."""
        self.done = False
        """The answer is whole."""
        self._parser = _httptools().HttpResponseParser(self)
        self._bodiless = method == "HEAD"
        self._to_the_end = False
        self._keeps = False
        self._pieces: list[bytes] = []
        self._beside = 0

    @property
    def reusable(self) -> bool:
        """Another request may follow on the same connection."""
        return self.done and self._keeps

    def feed(self, data: bytes) -> bytes:
        """Take what came and give what of it is body.

        Raises:
            BrokenError: It is no HTTP.
        """
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (_httptools().HttpParserError, _httptools().HttpParserUpgrade) as error:
            if not self.done:
                raise BrokenError(type(error).__name__) from error
            self._keeps = False  # something came behind the answer, which was whole
        if self._beside > MAX_HEAD_BYTES and not self.done:
            raise BrokenError("HeadTooLarge")
        body, self._pieces = b"".join(self._pieces), []
        return body

    def end(self) -> None:
        """Take the end of the connection.

        Raises:
            BrokenError: The answer is not whole.
        """
        if not self.done and not (self.status and self._to_the_end):
            raise BrokenError("EndOfStream")
        self.done, self._keeps = True, False

    # ------------------------------------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        """Begin a head."""
        if self.done:
            raise ValueError("another answer follows")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; those behind the body are nobody's."""
        if not self.status:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Take the end of a head."""
        status: int = self._parser.get_status_code()
        if not 100 <= status < 600:
            raise ValueError("no status of HTTP has this number; servers cannot pass it on")
        if status < 200:
            self.headers = []
            return
        self.status = status
        self._keeps = self._parser.should_keep_alive() and not self._bodiless
        self._to_the_end = not any(_frames(name, value) for name, value in self.headers)
        self.done = self._bodiless

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._beside = 0
        if not self._bodiless:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Take the end, unless it is that of a provisional answer."""
        self.done = self.done or bool(self.status)


def _frames(name: bytes, value: bytes) -> bool:
    """Tell whether a header says where the body ends."""
    return name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked"))


def _httptools() -> Any:
    with needed("serve", "httptools", "the proxy and its client need httptools"):
        import httptools  # noqa: PLC0415 - optional
    return httptools
