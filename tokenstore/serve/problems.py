"""What the proxy itself answers when something is wrong, in the form of OpenAI's errors."""

from __future__ import annotations

from tokenstore.codec import dumps
from tokenstore.errors import (
    DurabilityError,
    LockTimeoutError,
    StoreClosedError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenStoreError,
)

_STORE: tuple[tuple[type[TokenStoreError], int, str, bool], ...] = (
    (TokenCaptureRetiredError, 409, "rollout_retired", False),
    (TokenCaptureFrozenError, 409, "rollout_frozen", False),
    (LockTimeoutError, 503, "store_busy", True),
    (DurabilityError, 503, "store_failed", True),
    (StoreClosedError, 503, "store_closed", True),
    (TokenStoreError, 500, "not_stored", False),
)
"""Error of the store, status, code, and whether asking again may help; the first that fits counts."""

REQUEST_TIMEOUT = 408
"""Of a request whose body does not come."""


class ProxyError(Exception):
    """The client gets an error; before its answer has begun, with this status.

    Args:
        status: HTTP status.
        code: A word for programs.
        message: A sentence for people, without tokens or text of a call.
        retry: Whether asking again may help; the openai client reads this.
        frame: What the engine itself said, to be passed on in place of the message, in a stream.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry: bool = False, frame: bytes | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry = retry
        self.frame = frame

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        error = {"message": self.message, "type": "tokenstore_error", "param": None, "code": self.code}
        return dumps({"error": error}, sort_keys=False)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the answer."""
        retry = b"true" if self.retry else b"false"
        found = [(b"content-type", b"application/json"), (b"x-should-retry", retry)]
        if self.status == REQUEST_TIMEOUT:  # what comes of the body after all is nobody's
            found.append((b"connection", b"close"))
        return [*found, (b"retry-after", b"1")] if self.retry else found

    @property
    def last_words(self) -> bytes:
        """The error as the last event of a stream that is then broken off."""
        return self.frame if self.frame is not None else b"data: " + self.body + b"\n\n"


class EngineAnsweredError(ProxyError):
    """The client gets the engine's own answer, which is no good one, as it is.

    Args:
        status: HTTP status.
        headers: Of the answer.
        body: Of the answer.
    """

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(status, "engine_failed", f"the engine answered with status {status}")
        self._headers = headers
        self._body = body

    @property
    def body(self) -> bytes:
        """The engine's body."""
        return self._body

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The engine's headers."""
        return self._headers


def store_problem(error: TokenStoreError, *, before: bool) -> ProxyError:
    """Say that the store did not take a call.

    Args:
        error: What it raised.
        before: Nothing was sent to the engine yet.
    """
    status, code, retry = next(row[1:] for row in _STORE if isinstance(error, row[0]))
    told = "the engine was not asked" if before else "the answer is not in the store and is withheld"
    return ProxyError(status, code, f"{told}: {error}", retry=retry and before)
