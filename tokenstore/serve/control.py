"""What trainers on other hosts may do with the store: operations of JSON in and JSON or lines of JSON out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from anyio import to_thread

from tokenstore.codec import dumps, to_plain
from tokenstore.ids import validate_rollout_id
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.remote import snapshot_head
from tokenstore.store import TokenCaptureStore


class Control:
    """The operations of a source, for the wire."""

    def __init__(self, store: TokenCaptureStore) -> None:
        self._store = store

    async def rollouts(self) -> AsyncGenerator[bytes]:
        """List every rollout, a line each, and their number in the last line, by which the end is known."""
        return self._listed()

    async def statistics(self) -> Any:
        """Give the counters of the store."""
        return to_plain(self._store.statistics())

    async def freeze(self, rollout_id: str) -> AsyncGenerator[bytes]:
        """Freeze a rollout; gives the snapshot's head in a line, then each entry in a line."""
        return _lines(await self._store.freeze(validate_rollout_id(rollout_id)))

    async def drop(self, rollout_id: str, body: Mapping[str, Any]) -> Any:
        """Drop a rollout, if the pair is its own."""
        snapshot_id, version = body.get("snapshot_id"), body.get("version")
        if not isinstance(snapshot_id, str) or type(version) is not int:
            raise ProxyError(400, "invalid_request", "drop needs a snapshot_id, a string, and a version, an int")
        return {"dropped": await self._store.drop(rollout_id, snapshot_id=snapshot_id, version=version)}

    async def retire(self, body: Mapping[str, Any]) -> Any:
        """Retire rollouts."""
        return await self._store.retire(_rollout_ids(body))

    async def delete(self, body: Mapping[str, Any]) -> Any:
        """Delete rollouts."""
        return await self._store.delete(_rollout_ids(body))

    async def _listed(self) -> AsyncGenerator[bytes]:
        count = 0
        async for status in self._store.rollouts():
            count += 1
            yield dumps(to_plain(status)) + b"\n"
        yield dumps({"rollouts": count}) + b"\n"


def _rollout_ids(body: Mapping[str, Any]) -> Sequence[str]:
    found = body.get("rollout_ids")
    if not isinstance(found, list):
        raise ProxyError(400, "invalid_request", "rollout_ids is needed, a list of strings")
    return found


async def _lines(snapshot: TokenCaptureSnapshot) -> AsyncGenerator[bytes]:
    yield dumps(snapshot_head(snapshot)) + b"\n"
    for entry in snapshot.entries:
        yield await to_thread.run_sync(_line, entry)


def _line(entry: TokenEntry) -> bytes:
    return dumps(to_plain(entry)) + b"\n"
