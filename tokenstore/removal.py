"""Removing rollouts in durable steps, many at once.

Every fence, one directory sync; the records, one directory sync; for a delete the fences, one directory sync; then,
where no reference process can be waiting on them, the lock files. Each step goes to all actors at once and the
directory is synced once between, so a crash leaves fenced rollouts, never an open one with fewer facts. An id that
fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from tokenstore.errors import RemovalError
from tokenstore.hosting import Host
from tokenstore.journal.journal import Journal
from tokenstore.mailbox import Message, Solo
from tokenstore.records import RolloutRemovalPayload, removal_payload


class _Removal:
    """One batch on its way through the steps."""

    def __init__(self, host: Host, rollout_ids: list[str]) -> None:
        self._host = host
        self._ids = rollout_ids
        self.outcomes: dict[str, bool] = dict.fromkeys(rollout_ids, False)
        self.causes: dict[str, Exception] = {}

    async def fence(self) -> None:
        """Put every fence up, and note which rollouts had records."""
        self.outcomes.update(await self._step(Journal.fence))

    async def step(self, operation: Callable[[Journal], Any], *, synced: bool = True) -> None:
        """Do one step for all that have not failed, then make it durable."""
        await self._step(operation, synced=synced)

    async def _step(self, operation: Callable[[Journal], Any], *, synced: bool = True) -> dict[str, Any]:
        results: dict[str, Any] = {}
        async with anyio.create_task_group() as tasks:
            for rollout_id in self._remaining():
                tasks.start_soon(self._one, rollout_id, operation, results)
        if synced:
            with anyio.CancelScope(shield=True):
                await self._host.threads.commit(self._host.root.sync)
        return results

    async def _one(self, rollout_id: str, operation: Callable[[Journal], Any], results: dict[str, Any]) -> None:
        try:
            results[rollout_id] = await self._host.ask(rollout_id, Message(Solo(operation)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            self.causes[rollout_id] = error

    def _remaining(self) -> Iterable[str]:
        return [rollout_id for rollout_id in self._ids if rollout_id not in self.causes]

    def payload(self) -> RolloutRemovalPayload:
        """What was done.

        Raises:
            RemovalError: Some ids failed.
        """
        finished = {rollout_id: self.outcomes[rollout_id] for rollout_id in self._remaining()}
        payload = removal_payload(finished, self._ids)
        if self.causes:
            raise RemovalError({"removed": payload["removed"], "absent": payload["absent"]}, self.causes)
        return payload


async def remove(rollout_ids: list[str], delete: bool, host: Host) -> RolloutRemovalPayload:
    """Retire or delete a batch of validated ids, in the host's event loop.

    Raises:
        RemovalError: Some ids failed; the others are done and durable.
        DurabilityError: A sync of the directory failed; retry the batch.
    """
    removal = _Removal(host, rollout_ids)
    if rollout_ids:
        await removal.fence()
        await removal.step(Journal.remove_records)
        if delete:
            await removal.step(Journal.remove_fence)
            if host.config.prompt_storage == "shared":
                await removal.step(Journal.remove_lock, synced=False)
    return removal.payload()
