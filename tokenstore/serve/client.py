"""A store on another host, through the control routes of its proxy: what a trainer holds in its hands there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self

from anyio import to_thread

from tokenstore.codec import decode_entry, dumps, loads
from tokenstore.ids import validate_rollout_id, validate_rollout_ids
from tokenstore.records import RolloutRemovalPayload, RolloutStatus, StoreStatistics, TokenCaptureSnapshot, TokenEntry
from tokenstore.serve.http import Answer, Connections, SilentError, UnreachableError
from tokenstore.serve.remote import error_from_plain, snapshot_from
from tokenstore.serve.settings import MAX_ANSWER_BYTES
from tokenstore.serve.wire import BrokenError

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
        async with (
            self._asked("POST", f"/rollouts/{validate_rollout_id(rollout_id)}/freeze") as answer,
            aclosing(_lines(answer)) as lines,
        ):
            head = loads(await anext(lines, b"null"))
            entries = [await to_thread.run_sync(_entry, line) async for line in lines]
        if not isinstance(head, dict) or head["entries"] != len(entries):
            raise ConnectionError(f"the snapshot of rollout {rollout_id} broke off; freeze again")
        return snapshot_from(head, entries)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since, as `drop` of the store does."""
        path = f"/rollouts/{validate_rollout_id(rollout_id)}/drop"
        return bool((await self._json("POST", path, snapshot_id=snapshot_id, version=version))["dropped"])

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences, as `retire` of the store does."""
        found: RolloutRemovalPayload = await self._json(
            "POST", "/retire", rollout_ids=validate_rollout_ids(rollout_ids)
        )
        return found

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences, as `delete` of the store does."""
        found: RolloutRemovalPayload = await self._json(
            "POST", "/delete", rollout_ids=validate_rollout_ids(rollout_ids)
        )
        return found

    async def rollouts(self) -> AsyncGenerator[RolloutStatus]:
        """Give every rollout of the directory, in no order.

        Raises:
            ConnectionError: The listing broke off; begin it again.
        """
        count = 0
        async with self._asked("GET", "/rollouts") as answer, aclosing(_lines(answer)) as lines:
            async for line in lines:
                found = loads(line)
                if "rollout_id" not in found:
                    count -= found["rollouts"]
                    break
                count += 1
                yield RolloutStatus(**found)
            else:
                count = -1
        if count:
            raise ConnectionError("the listing of rollouts broke off; begin it again")

    async def statistics(self) -> StoreStatistics:
        """What the proxy's store has done and is doing; unlike the store's own this has to be awaited."""
        return StoreStatistics(**await self._json("GET", "/statistics"))

    async def _json(self, method: str, path: str, **body: Any) -> Any:
        async with self._asked(method, path, **body) as answer:
            try:
                return loads(await answer.whole(MAX_ANSWER_BYTES))
            except ValueError as error:
                raise ConnectionError("what answers is no token store") from error

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
        told = loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        hint = "are the control routes on?" if status == 404 else "is it the URL of a proxy?"
        return ConnectionError(f"HTTP status {status} without an error of the store; {hint}")
    if "kind" in told:
        return error_from_plain(told)
    kind = PermissionError if status in (401, 403) else ConnectionError
    hint = "; the control routes are off" if told.get("code") == "not_found" else ""
    return kind(f"{told.get('message')}{hint}")


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
