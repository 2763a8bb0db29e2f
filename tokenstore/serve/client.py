"""A store on another host, through the control routes of its proxy: what a trainer holds in its hands there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

from anyio import to_thread

from tokenstore.codec import decode_entry, dumps, loads
from tokenstore.errors import TokenStoreError
from tokenstore.ids import validate_rollout_id, validate_rollout_ids
from tokenstore.records import RolloutRemovalPayload, RolloutStatus, StoreStatistics, TokenCaptureSnapshot, TokenEntry
from tokenstore.serve.http import Answer, Connections, SilentError, UnreachableError
from tokenstore.serve.remote import error_from_plain, snapshot_from
from tokenstore.serve.settings import MAX_ANSWER_BYTES
from tokenstore.serve.wire import BrokenError

Result = TypeVar("Result")
TIMEOUT = 120.0
"""Seconds without a byte: freezing a rollout may wait for the lock of another process."""


class TokenStoreClient:
    """Freezes, drops, retires, deletes and lists the rollouts of a store on another host.

    It has the methods of the store and raises the errors of the store; it is a `TokenSource`. Any operation but
    `delete` may be repeated after an unknown outcome, a broken connection among them.

    Args:
        url: Of the proxy, `http://host:port`.
        token: The bearer token that the proxy was started with.
        timeout: Seconds without a byte after which an operation is given up.

    Raises:
        ModuleNotFoundError: httptools is not installed; the message says how to add it.
    """

    def __init__(self, url: str, *, token: str, timeout: float = TIMEOUT) -> None:
        self._connections = Connections(f"{url.rstrip('/')}/control", timeout=timeout)
        self._headers = [(b"authorization", b"Bearer " + token.encode()), (b"content-type", b"application/json")]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the connections go. May be called again."""
        await self._connections.close()

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """End writing to a rollout and return it, as `freeze` of the store does; entries come one by one.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
            ConnectionError, TimeoutError: The outcome is unknown; freeze again.
            PermissionError: The token is wrong.
        """
        path = f"/rollouts/{validate_rollout_id(rollout_id)}/freeze"
        with _understood():
            async with self._asked("POST", path) as answer, aclosing(_lines(answer)) as lines:
                head = loads(await anext(lines, b"null"))
                entries = [await to_thread.run_sync(_entry, line) async for line in lines]
            if not isinstance(head, dict) or head["entries"] != len(entries):
                raise ConnectionError(f"the snapshot of rollout {rollout_id} broke off; freeze again")
            return snapshot_from(head, entries)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since, as `drop` of the store does."""
        path = f"/rollouts/{validate_rollout_id(rollout_id)}/drop"
        return await self._json("POST", path, _dropped, snapshot_id=snapshot_id, version=version)

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences, as `retire` of the store does."""
        return await self._json("POST", "/retire", _removal, rollout_ids=validate_rollout_ids(rollout_ids))

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences, as `delete` of the store does."""
        return await self._json("POST", "/delete", _removal, rollout_ids=validate_rollout_ids(rollout_ids))

    async def rollouts(self) -> AsyncGenerator[RolloutStatus]:
        """Give every rollout of the directory, in no order.

        Raises:
            ConnectionError: The listing broke off; begin it again.
        """
        count = 0
        async with self._asked("GET", "/rollouts") as answer, aclosing(_lines(answer)) as lines:
            async for line in lines:
                with _understood():
                    found = _listed(loads(line))
                if isinstance(found, int):
                    count -= found
                    break
                count += 1
                yield found
            else:
                count = -1
        if count:
            raise ConnectionError("the listing of rollouts broke off; begin it again")

    async def statistics(self) -> StoreStatistics:
        """What the proxy's store has done and is doing; unlike the store's own this has to be awaited."""
        return await self._json("GET", "/statistics", lambda told: StoreStatistics(**told))

    async def _json(self, method: str, path: str, make: Callable[[Any], Result], **body: Any) -> Result:
        async with self._asked(method, path, **body) as answer:
            told = await answer.whole(MAX_ANSWER_BYTES)
            with _understood():
                return make(loads(told))

    @asynccontextmanager
    async def _asked(self, method: str, path: str, **body: Any) -> AsyncIterator[Answer]:
        sent = dumps(body) if method == "POST" else b""
        try:
            async with self._connections.ask(method, path, headers=self._headers, body=sent) as answer:
                if answer.status != 200:
                    raise _error_in(answer.status, await answer.whole(MAX_ANSWER_BYTES))
                yield answer
        except UnreachableError as error:
            raise ConnectionError("the proxy cannot be connected to; nothing was sent") from error
        except BrokenError as error:
            raise ConnectionError("the connection to the proxy broke; the outcome is unknown") from error
        except SilentError as error:
            raise TimeoutError("the proxy was silent; the outcome is unknown") from error


def _error_in(status: int, body: bytes) -> Exception:
    """Make the error of an answer again."""
    try:
        told = dict(loads(body)["error"])
    except (ValueError, KeyError, TypeError):  # others have a string there
        hint = "are the control routes on?" if status == 404 else "is it the URL of a proxy?"
        return ConnectionError(f"HTTP status {status} without an error of the store; {hint}")
    if "kind" in told:
        return error_from_plain(told)
    kind = PermissionError if status in (401, 403) else ConnectionError
    hint = "; the control routes are off" if told.get("code") == "not_found" else ""
    return kind(f"{told.get('message')}{hint}")


@contextmanager
def _understood() -> Iterator[None]:
    """Say so where what came is nothing that a proxy says."""
    try:
        yield
    except TokenStoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConnectionError("what answers is no token store; is it the URL of a proxy?") from error


def _dropped(told: Any) -> bool:
    return {True: True, False: False}[told["dropped"]]


def _removal(told: Any) -> RolloutRemovalPayload:
    return {"removed": told["removed"], "absent": told["absent"]}


def _listed(told: Any) -> RolloutStatus | int:
    """Give a rollout, or in the last line the number of all."""
    return RolloutStatus(**told) if "rollout_id" in told else int(told["rollouts"])


async def _lines(answer: Answer) -> AsyncGenerator[bytes]:
    """Cut the body into whole lines; one that was cut off is none."""
    rest = bytearray()
    async for piece in answer.pieces():
        rest += piece
        if b"\n" in piece:
            *whole, rest = rest.split(b"\n")
            for line in whole:
                yield bytes(line)


def _entry(line: bytes) -> TokenEntry:
    return decode_entry(loads(line))
