"""Removing rollouts in durable steps, many at once.

Every fence, one directory sync; the records, one directory sync; for a delete the fences, one directory sync; then,
where no reference process can be waiting on them, the lock files. Each step goes to all actors at once and the
directory is synced once between, so a crash leaves fenced rollouts, never an open one with fewer facts. An id that
fails does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from tokenstore.errors import RemovalError, StoreClosedError
from tokenstore.hosting import Host
from tokenstore.journal.journal import Journal
from tokenstore.journal.syncs import Wish
from tokenstore.mailbox import Message, Solo
from tokenstore.records import RolloutRemovalPayload, removal_payload

T = TypeVar("T")
Section = Generator[Wish, None, T]
SENT_AT_ONCE = 64
"""Messages sent before others in the loop get a turn: each may start an actor."""


class _Removal:
    """One batch on its way through the steps."""

    def __init__(self, host: Host, rollout_ids: list[str]) -> None:
        self._host = host
        self._ids = rollout_ids
        self.outcomes: dict[str, bool] = dict.fromkeys(rollout_ids, False)
        self.causes: dict[str, Exception] = {}

    async def fence(self) -> None:
        """Put every fence up, and note which rollouts had records."""
        self.outcomes.update(await self._step(self._ids, Journal.fencing))

    async def remove_records(self) -> None:
        """Take away what is behind the fences; where nothing was, nothing can come."""
        await self._step(
            self._remaining(lambda rollout_id: self.outcomes[rollout_id]), _in_steps(Journal.remove_records)
        )

    async def step(self, operation: Callable[[Journal], None], *, synced: bool = True) -> None:
        """Do one step for all that have not failed, then make it durable."""
        await self._step(self._remaining(), _in_steps(operation), synced=synced)

    async def _step(
        self, rollout_ids: list[str], section: Callable[[Journal], Section[T]], *, synced: bool = True
    ) -> dict[str, T]:
        results = await self._ask_all(rollout_ids, section)
        if synced:
            with anyio.CancelScope(shield=True):
                await self._host.threads.commit(self._host.root.sync)
        return results

    async def _ask_all(self, rollout_ids: list[str], section: Callable[[Journal], Section[T]]) -> dict[str, T]:
        """Send a message to each actor, then wait for the answers: a task for each would take longer than its step."""
        messages = {rollout_id: Message(Solo(section, in_steps=True)) for rollout_id in rollout_ids}
        results: dict[str, T] = {}
        try:
            async with anyio.create_task_group() as tasks:
                for number, (rollout_id, message) in enumerate(messages.items(), 1):
                    if not self._send(rollout_id, message):
                        tasks.start_soon(self._send_later, rollout_id, message)
                    if number % SENT_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
                for rollout_id, message in messages.items():
                    await self._collect(rollout_id, message, results)
        except BaseException:
            for message in messages.values():
                message.abandoned = True
            raise
        return results

    def _send(self, rollout_id: str, message: Message) -> bool:
        try:
            return self._host.try_send(rollout_id, message)
        except StoreClosedError as error:
            message.answer(error=error)
            return True

    async def _send_later(self, rollout_id: str, message: Message) -> None:
        """Wait for a place in a mailbox that is full."""
        try:
            await self._host.send(rollout_id, message)
        except StoreClosedError as error:
            message.answer(error=error)

    async def _collect(self, rollout_id: str, message: Message, results: dict[str, Any]) -> None:
        try:
            results[rollout_id] = await message.wait()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not stop the others
            self.causes[rollout_id] = error

    def _remaining(self, wanted: Callable[[str], bool] = lambda _: True) -> list[str]:
        return [rollout_id for rollout_id in self._ids if rollout_id not in self.causes and wanted(rollout_id)]

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


def _in_steps(operation: Callable[[Journal], None]) -> Callable[[Journal], Section[None]]:
    """Make an operation that waits for nothing a section of no steps."""

    def section(journal: Journal) -> Section[None]:
        yield from ()
        operation(journal)

    return section


async def remove(rollout_ids: list[str], delete: bool, host: Host) -> RolloutRemovalPayload:
    """Retire or delete a batch of validated ids, in the host's event loop.

    Raises:
        RemovalError: Some ids failed; the others are done and durable.
        DurabilityError: A sync of the directory failed; retry the batch.
    """
    removal = _Removal(host, rollout_ids)
    if rollout_ids:
        await removal.fence()
        await removal.remove_records()
        if delete:
            await removal.step(Journal.remove_fence)
            if host.config.prompt_storage == "shared":
                await removal.step(Journal.remove_lock, synced=False)
    return removal.payload()
