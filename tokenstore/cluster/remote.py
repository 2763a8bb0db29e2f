"""A shard on another node: the API of the store, over a channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from anyio import to_thread

from tokenstore.cluster.channel import Channel
from tokenstore.cluster.wire import EntryReader, Frames, Part, plain_item
from tokenstore.codec import prepare
from tokenstore.errors import ShardUnavailableError
from tokenstore.records import (
    RolloutRemovalPayload,
    RolloutStatus,
    StoreStatistics,
    TokenCaptureSnapshot,
    TokenEntry,
)
from tokenstore.slices import Slices

T = TypeVar("T")

IDS_ON_LOOP = 32 * 1024
"""Entries up to this are checked and encoded in the caller's loop, in a millisecond or two; longer ones in a thread."""
ATTEMPTS = 5
"""Times that a snapshot is begun anew because its shard restarted while it was read."""


class RemoteShard:
    """Has the methods of `TokenCaptureStore` that a cluster store uses, each done by the shard's process.

    Entries are checked and encoded here: clients are many, and the shard's one process is what they wait for.

    Args:
        channel: The way there.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def put(self, entry: TokenEntry) -> None:
        draft = await to_thread.run_sync(prepare, entry) if _is_large(entry) else prepare(entry)
        await self._channel.ask("put", draft)

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        await self._channel.ask("begin_call", rollout_id, model_call_id)

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        await self._channel.ask("refuse_call", rollout_id, model_call_id, code)

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        await self._channel.ask("mark_incomplete", rollout_id, model_call_id)

    async def mark_if_open(self, rollout_id: str, model_call_id: str) -> None:
        await self._channel.ask("mark_if_open", rollout_id, model_call_id)

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        return await self._snapshot("freeze", rollout_id)

    async def peek(self, rollout_id: str) -> TokenCaptureSnapshot:
        return await self._snapshot("peek", rollout_id)

    def entries(self, rollout_id: str) -> AsyncIterator[TokenEntry]:
        reader = EntryReader()
        return Slices(_Reading(self._channel, "entries", (rollout_id,), reader.item).told)

    def rollouts(self) -> AsyncIterator[RolloutStatus]:
        return Slices(_Reading(self._channel, "rollouts", (), plain_item).told)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        dropped: bool = await self._channel.ask("drop", rollout_id, snapshot_id, version)
        return dropped

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        payload: RolloutRemovalPayload = await self._channel.ask("retire", list(rollout_ids))
        return payload

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        payload: RolloutRemovalPayload = await self._channel.ask("delete", list(rollout_ids))
        return payload

    async def statistics(self) -> StoreStatistics:
        found: StoreStatistics = await self._channel.ask("statistics")
        return found

    async def close(self) -> None:
        """Let go of nothing: what is on its way comes back to those who wait."""

    async def _snapshot(self, name: str, rollout_id: str) -> TokenCaptureSnapshot:
        """Read a snapshot part by part; begun anew it is the same one if it is frozen."""
        frozen = False
        for _ in range(ATTEMPTS):
            reading = _Reading(self._channel, name, (rollout_id,), EntryReader().item)
            try:
                entries = [entry async for entry in Slices(reading.items)]
            except (LookupError, ShardUnavailableError) as error:
                frozen = frozen or (name == "freeze" and reading.head is not None)
                if isinstance(error, LookupError):
                    continue
                # Whatever became of the last question: the first part had told that it was done.
                raise self._channel.unavailable(error.problem, unknown=frozen or error.outcome_unknown) from None
            head = dict(reading.head)
            if head.pop("count") == len(entries):
                return TokenCaptureSnapshot(**head, entries=tuple(entries))
        raise self._channel.unavailable(f"it restarted {ATTEMPTS} times during a snapshot", unknown=frozen)


def _is_large(entry: TokenEntry) -> bool:
    """Whether encoding it would keep the loop; routed experts are numbers for each token and layer."""
    ids = len(entry.prompt_token_ids) + len(entry.generation_token_ids)
    return ids > IDS_ON_LOOP or entry.routed_experts is not None


class _Reading:
    """A long answer as it comes."""

    def __init__(self, channel: Channel, name: str, arguments: tuple[Any, ...], item: Callable[[bytes], Any]) -> None:
        self.head: Any = None
        self._channel = channel
        self._name = name
        self._arguments = arguments
        self._item = item
        self._frames = Frames()
        self._ticket: str | None = None
        self._number = 0

    async def items(self) -> list[Any]:
        """Give the items of the next parts, at least one unless it is over.

        Raises:
            LookupError: The shard has restarted; begin anew.
        """
        while self._ticket != "":
            part = await self._part()
            self._ticket = part.ticket
            self._number += 1
            found = await to_thread.run_sync(self._read, part.data)
            if found:
                return found
        return []

    async def told(self) -> list[Any]:
        """The same, for whoever has already used what came before.

        Raises:
            ShardUnavailableError: The shard has restarted; begin anew.
        """
        try:
            return await self.items()
        except LookupError:
            problem = "it restarted during a reading; begin the reading again"
            raise self._channel.unavailable(problem, unknown=False) from None

    async def _part(self) -> Part:
        if self._ticket is not None:
            part: Part = await self._channel.more(self._ticket, self._number)
            return part
        part = await self._channel.ask(self._name, *self._arguments)
        self.head = part.head
        return part

    def _read(self, data: bytes) -> list[Any]:
        return [self._item(frame) for frame in self._frames.feed(data)]
