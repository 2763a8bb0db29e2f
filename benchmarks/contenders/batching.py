"""One writer that takes along whatever waits: how a user gets speed out of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tokenstore import TokenEntry
from tokenstore.codec import encode_entry

Row = tuple[str, str, bytes]
"""Rollout, call, and the entry as JSON."""


class BatchingWriter:
    """A queue and a task that commits what is in it.

    Args:
        commit: Makes rows durable in one transaction.
        encode: Writes JSON.
    """

    def __init__(self, commit: Callable[[list[Row]], Awaitable[object]], encode: Callable[[object], bytes]) -> None:
        self._commit = commit
        self._encode = encode
        self._queue: asyncio.Queue[tuple[Row, asyncio.Future[None]] | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run())

    async def put(self, entry: TokenEntry) -> None:
        """Commit an entry together with those that wait."""
        row = entry.rollout_id, entry.model_call_id, self._encode(encode_entry(entry))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((row, done))
        await done

    async def close(self) -> None:
        """Commit what is left, and end."""
        self._queue.put_nowait(None)
        await self._task

    async def _run(self) -> None:
        while (first := await self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty() and (following := self._queue.get_nowait()) is not None:
                batch.append(following)
            try:
                await self._commit([row for row, _ in batch])
            except Exception as error:  # noqa: BLE001 - it goes to those who wait
                for _, done in batch:
                    done.set_exception(error)
            else:
                for _, done in batch:
                    done.set_result(None)
