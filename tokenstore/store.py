"""The store: what rollout servers and trainers hold in their hands.

Every operation on a rollout becomes a message to its actor. Inside `async with`, calls from that event loop run the
actors in its task group; every other use goes to one host in a daemon thread, started at first use. No caller touches a
file.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from tokenstore.capture import Capture, capturing
from tokenstore.codec import Draft, check_text
from tokenstore.config import StoreConfig
from tokenstore.errors import StoreClosedError, TokenCaptureRetiredError
from tokenstore.home import Home
from tokenstore.hosting import Host
from tokenstore.ids import recordable_call_id, validate_model_call_id, validate_rollout_id, validate_rollout_ids
from tokenstore.journal.cursor import Cursor
from tokenstore.journal.disk import Directory, Disk, OsDisk
from tokenstore.journal.health import Finding
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import Names
from tokenstore.journal.listing import list_rollouts
from tokenstore.journal.root import Counters, Root
from tokenstore.journal.syncs import filesystem_sync_problem
from tokenstore.mailbox import Message, Solo, begin_message, put_message
from tokenstore.records import (
    RolloutRemovalPayload,
    RolloutStatus,
    StoreStatistics,
    TokenCaptureSnapshot,
    TokenEntry,
    entry_from,
)
from tokenstore.removal import remove
from tokenstore.slices import Slices
from tokenstore.statistics import gather
from tokenstore.threads import COMMIT_THREADS, Threads

T = TypeVar("T")
LISTING_SLICE = 128
"""Rollouts looked at in one way to a worker thread."""


class TokenCaptureStore:
    """A durable store of model calls, keyed by rollout, in one directory.

    Making it makes the directory where it is missing and syncs its parent; nothing is scanned. Use it with `async with`
    in the event loop that uses it most; it may also be used without, from any event loop or thread.

    Args:
        root: The directory, on a file system with working flock.
        config: How it behaves; the defaults are right for one node.

    Raises:
        OSError: The directory cannot be made or opened, its file system has no working locks, or this machine cannot
            do what the configuration wants.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, config: StoreConfig | None = None, _disk: Disk | None = None
    ) -> None:
        self.root = Path(root)
        self.config = config or StoreConfig()
        if self.config.sync == "filesystem" and (problem := filesystem_sync_problem()):
            raise OSError(errno.ENOSYS, problem)
        disk = _disk or OsDisk()
        disk.open_root(self.root).close()
        self._counters = Counters()
        self._home = Home(partial(_make_host, disk, self.root, self.config, self._counters))

    # ------------------------------------------------------------------------------------------ files

    def path_for(self, rollout_id: str) -> Path:
        """The file of the rollout's entries."""
        return self.root / Names.of(validate_rollout_id(rollout_id)).tokens

    def incomplete_path_for(self, rollout_id: str) -> Path:
        """The marker, whose existence means that the rollout is incomplete."""
        return self.root / Names.of(validate_rollout_id(rollout_id)).marker

    def intents_path_for(self, rollout_id: str) -> Path:
        """The file of the calls that were about to be sent."""
        return self.root / Names.of(validate_rollout_id(rollout_id)).intents

    def state_path_for(self, rollout_id: str) -> Path:
        """The file of the rollout's lifecycle facts."""
        return self.root / Names.of(validate_rollout_id(rollout_id)).state

    def lock_path_for(self, rollout_id: str) -> Path:
        """The file that writers of all processes lock."""
        return self.root / Names.of(validate_rollout_id(rollout_id)).lock

    # ------------------------------------------------------------------------------------------ writing

    async def put(self, entry: TokenEntry) -> None:
        """Store a call's entry; when this returns, it survives SIGKILL and power loss.

        The same call with the same content again is a no-op. Cancelled while it is queued, it is never written; later,
        it is completed in the background. Putting again is safe in both cases.

        Args:
            entry: A `TokenEntry`, or any object with the same attributes.

        Raises:
            InvalidEntryError: The entry cannot be stored; the message names the field. No byte was written.
            ConflictingEntryError: The call is there with other content; the rollout is now marked incomplete.
            TokenCaptureFrozenError: The entry came after freeze, drop or retire.
            LockTimeoutError, DurabilityError: Nothing was acknowledged; retry the same call.
        """
        entry = entry_from(entry)
        await self._home.ask(entry.rollout_id, put_message(entry))

    async def put_prepared(self, draft: Draft) -> None:
        """`put` of an entry that `codec.prepare` has checked and encoded, anywhere. It raises what `put` does."""
        await self._home.ask(draft.rollout_id, put_message(draft))

    async def begin_call(self, rollout_id: str, model_call_id: str) -> None:
        """Record that a call is about to be sent, so that its loss can be seen. Again is a no-op.

        Raises:
            TokenCaptureFrozenError: The rollout is frozen or retired; do not send the call.
            LockTimeoutError, DurabilityError: Nothing was acknowledged; retry, or do not send the call.
        """
        validate_rollout_id(rollout_id)
        validate_model_call_id(model_call_id)
        await self._home.ask(rollout_id, begin_message(model_call_id))

    async def refuse_call(self, rollout_id: str, *, model_call_id: str, code: str | None) -> None:
        """Record that the engine refused a call before generating anything. It costs the rollout nothing.

        Args:
            rollout_id: The rollout.
            model_call_id: The call.
            code: The engine's error code, for example `context_length_exceeded`.

        Raises:
            ConflictingEntryError: The call has an entry (now marked incomplete), or was refused with another code.
            TokenCaptureFrozenError: The rollout is frozen or retired.
        """
        validate_model_call_id(model_call_id)
        check_text(code, "code", model_call_id)
        now = time.time()
        await self._do(rollout_id, lambda journal: journal.refuse(model_call_id, code, now))

    async def mark_incomplete(self, rollout_id: str, model_call_id: str = "") -> None:
        """Record that a call was lost, also of a frozen rollout. An invalid call id is recorded as blank.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
        """
        call_id = recordable_call_id(model_call_id)
        await self._do(rollout_id, lambda journal: journal.mark(call_id))

    def capture(self, rollout_id: str, model_call_id: str) -> AbstractAsyncContextManager[Capture]:
        """Guard one model call: its intent is durable before the body runs, and a body that stores nothing is a loss.

        Inside, `await call.put(entry)` or `await call.refuse(code)`. Leaving in any other way marks the rollout
        incomplete if it is still open; what the body raised passes.
        """
        return capturing(self, rollout_id, model_call_id, partial(self.mark_if_open, rollout_id, model_call_id))

    async def mark_if_open(self, rollout_id: str, model_call_id: str) -> None:
        """`mark_incomplete` of a rollout that is open; one that is frozen stays as it is. `capture` ends with it."""
        await self._do(rollout_id, lambda journal: journal.mark(model_call_id, only_if_open=True))

    # ------------------------------------------------------------------------------------------ consuming

    async def freeze(self, rollout_id: str) -> TokenCaptureSnapshot:
        """End writing to a rollout and return it; again returns the same. An unknown id freezes empty and complete.

        Everything is read and verified first. Mask the sample if `incomplete` is true.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
            CorruptRolloutError: There is something that recovery must not touch; the message says what to do.
        """
        snapshot: TokenCaptureSnapshot = await self._do(rollout_id, Journal.freeze, reads=True)
        return snapshot

    async def peek(self, rollout_id: str) -> TokenCaptureSnapshot:
        """Return what freeze would, and change nothing: `open_calls` are in flight, `frozen` tells which it is.

        It may show entries whose put has not returned yet.

        Raises:
            TokenCaptureRetiredError: The rollout is retired.
        """
        snapshot: TokenCaptureSnapshot = await self._do(rollout_id, Journal.peek, reads=True)
        return snapshot

    def entries(self, rollout_id: str) -> AsyncIterator[TokenEntry]:
        """Give a rollout's entries one by one; memory does not grow with their number. Changes nothing.

        The end is fixed at the first one. A reading that was cancelled cannot go on; begin a new one.

        Raises:
            TokenCaptureRetiredError: The rollout is retired, or was removed meanwhile.
        """
        cursor: Cursor | None = None

        async def next_slice() -> list[TokenEntry]:
            nonlocal cursor
            cursor = cursor or await self._do(rollout_id, Journal.open_cursor, reads=True)
            read = partial(Journal.read_slice, cursor=cursor)
            entries: list[TokenEntry] = await self._do(rollout_id, read, reads=True)
            return entries

        return Slices(next_slice)

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Remove a frozen rollout that nobody has marked since, leaving a fence against late writes.

        Args:
            rollout_id: The rollout.
            snapshot_id: The snapshot's.
            version: The snapshot's.

        Returns:
            True if the pair is the rollout's own, also again; false if it is not, and then nothing was changed.
        """
        drop = Solo(lambda journal: journal.dropping(snapshot_id, version), in_steps=True)
        dropped: bool = await self._home.ask(validate_rollout_id(rollout_id), Message(drop))
        return dropped

    async def retire(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts whatever their state, leaving fences. Again is a no-op.

        Raises:
            TypeError: A bare string was given; pass a list.
            RemovalError: Some ids failed; the others are done.
            DurabilityError: The names could not be made durable; retry all of them.
        """
        return await self._home.run(partial(remove, validate_rollout_ids(rollout_ids), False))

    async def delete(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """Remove rollouts and their fences, so that the ids start empty. Only when nothing writes to them any more.

        Raises:
            TypeError: A bare string was given; pass a list.
            RemovalError: Some ids failed; the others are done.
            DurabilityError: The names could not be made durable; retry all of them.
        """
        return await self._home.run(partial(remove, validate_rollout_ids(rollout_ids), True))

    # ------------------------------------------------------------------------------------------ looking

    def rollouts(self) -> AsyncIterator[RolloutStatus]:
        """Give every rollout of the directory, in no order, without locks; streams however many there are."""
        listings: dict[Host, Iterator[RolloutStatus]] = {}

        async def next_slice(host: Host) -> list[RolloutStatus]:
            if not listings:
                listings[host] = list_rollouts(host.root.directory)
            if host not in listings:
                raise StoreClosedError("the store was closed meanwhile; begin the listing again")
            return await host.threads.read(list, islice(listings[host], LISTING_SLICE))

        return Slices(partial(self._home.run, next_slice))

    async def examine(self, rollout_id: str) -> Finding:
        """Tell how a rollout is, down to what the next writer would mend. Changes nothing."""
        finding: Finding = await self._home.run(lambda host: host.pass_by(rollout_id, Journal.examine, reads=True))
        return finding

    async def recover(self, rollout_id: str) -> None:
        """Do now what the next writer would do first: mend tails, finish a removal, note damage, let its lock go."""
        await self._home.run(lambda host: host.pass_by(rollout_id, Journal.recover))

    async def on_disk(self, function: Callable[[Directory], T]) -> T:
        """Have the store's own tools look at its directory, in a thread of readers."""
        return await self._home.run(lambda host: host.threads.read(function, host.root.directory))

    def statistics(self) -> StoreStatistics:
        """What this object has done and is doing, over all its hosts."""
        return gather(self._counters, self._home.hosts)

    # ------------------------------------------------------------------------------------------ blocking twins

    def append(self, entry: TokenEntry) -> None:
        """`put`, for threads. It may be called on a thread that runs an event loop, which then waits."""
        entry = entry_from(entry)
        self._home.wait(lambda host: host.ask(entry.rollout_id, put_message(entry)))

    def freeze_now(self, rollout_id: str) -> TokenCaptureSnapshot:
        """`freeze`, for threads."""
        snapshot: TokenCaptureSnapshot = self._wait(rollout_id, Journal.freeze)
        return snapshot

    def retire_now(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """`retire`, for threads."""
        return self._home.wait(partial(remove, validate_rollout_ids(rollout_ids), False))

    def delete_now(self, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
        """`delete`, for threads."""
        return self._home.wait(partial(remove, validate_rollout_ids(rollout_ids), True))

    def read_entries(self, rollout_id: str) -> list[TokenEntry]:
        """All entries of a rollout, for threads; an empty list if it is retired. Changes nothing."""
        try:
            snapshot: TokenCaptureSnapshot = self._wait(rollout_id, Journal.peek)
        except TokenCaptureRetiredError:
            return []
        return list(snapshot.entries)

    def is_incomplete(self, rollout_id: str) -> bool:
        """Whether state or marker say that something was lost; calls in flight do not count. For threads."""
        incomplete: bool = self._wait(rollout_id, Journal.is_incomplete)
        return incomplete

    # ------------------------------------------------------------------------------------------ opening, closing

    async def __aenter__(self) -> Self:
        await self._home.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._home.leave()

    async def close(self) -> None:
        """Finish every queued message, and let go of everything. From any loop or thread; again is a no-op.

        A store that was entered stays closed; one that never was starts again at the next call.
        """
        await self._home.close()

    # ------------------------------------------------------------------------------------------ inside

    async def _do(self, rollout_id: str, operation: Callable[[Journal], Any], *, reads: bool = False) -> Any:
        """Have an operation done alone by the rollout's actor."""
        return await self._home.ask(validate_rollout_id(rollout_id), Message(Solo(operation, reads=reads)))

    def _wait(self, rollout_id: str, operation: Callable[[Journal], Any]) -> Any:
        validate_rollout_id(rollout_id)
        return self._home.wait(lambda host: host.ask(rollout_id, Message(Solo(operation, reads=True))))


async def _make_host(disk: Disk, path: Path, config: StoreConfig, counters: Counters) -> Host:
    """A host in the running event loop, with a descriptor of the directory that it closes when it ends."""
    root = Root(await Threads().read(disk.open_root, path), config, counters)
    return Host(root, path, Threads(min(COMMIT_THREADS, root.sections)))
