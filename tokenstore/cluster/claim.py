"""The fence of a floating shard: which of several processes may write, as the file system says.

Ray decides that a new process starts; it may do so while the old one still runs, stopped or cut off. So:

1. The new process writes its claim: a file `shard.claim` with a word of its own, durably, in place of the last one.
2. It then waits for the lock on `shard.lock`. Whoever held it sees the claim (by its watcher within a second, and in
   any case before it acknowledges anything), ends at once, and the lock is free. A process that was killed has let it
   go; of a node that is cut off the file system takes it back after its own time.
3. With the lock it looks again whether the claim is still its own: of two that start at once the later one wins.
4. Before a batch is begun and before it is acknowledged the holder reads the claim. A process that was stopped, and
   revived after another had taken over, acknowledges nothing. What it was in the middle of writing lies in the files of
   rollouts, under the locks of the store: whole or cut off, never in a snapshot that was frozen meanwhile.

A process that is stopped while its node lives keeps its lock: then the shard waits, unavailable rather than wrong.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import anyio
import attrs
from anyio import to_thread

from tokenstore.cluster.files import read_small, replace_durably
from tokenstore.codec import dumps, loads
from tokenstore.journal.disk import Directory, File

FILE = "shard.claim"
"""Name of the claim; no rollout has a file of that name."""
LOCK = "shard.lock"
"""Name of the file whose lock the writing process holds."""
RETRY_SECONDS = 0.1
"""Between two tries of the lock: a lock has no event to wait for."""


class SupersededError(Exception):
    """Another process has claimed the shard."""


@attrs.frozen(kw_only=True)
class Holder:
    """Who claims a shard."""

    epoch: int = attrs.field(default=0, validator=attrs.validators.instance_of(int))
    """Counts the claims of a directory."""
    word: str = attrs.field(factory=lambda: secrets.token_hex(16))
    """A random word that no other process has."""
    node: str = ""
    """Address of its node."""
    pid: int = attrs.field(factory=os.getpid)
    """Its process there."""
    since: float = attrs.field(factory=time.time)
    """When it claimed, in seconds since the epoch; for people."""


class Fence(Protocol):
    """What a shard asks whether it may write."""

    holder: Holder | None
    """Who it is, if it claims anything."""

    def take(self) -> None:
        """Say that this process writes from now on. A lasting act."""
        ...

    def try_lock(self) -> bool:
        """Try to become the only writer.

        Raises:
            SupersededError: Another process has claimed the shard meanwhile.
        """
        ...

    def holds(self) -> bool:
        """Whether this process still is the writer."""
        ...

    def release(self) -> None:
        """Let go; again is a no-op."""
        ...


class Claim:
    """The fence of a floating shard, in its directory. Every method reads or writes files and blocks.

    Args:
        directory: The shard's directory, closed by whoever opened it, after the claim was released.
        node: Address of this node.
    """

    def __init__(self, directory: Directory, node: str) -> None:
        self.holder: Holder | None = None
        self._directory = directory
        self._node = node
        self._lock: File | None = None

    def take(self) -> None:
        """Write the claim, in place of whoever's there is."""
        before = holder_in(self._directory)
        self.holder = Holder(epoch=1 if before is None else before.epoch + 1, node=self._node)
        replace_durably(self._directory, FILE, dumps(attrs.asdict(self.holder)) + b"\n")

    def try_lock(self) -> bool:
        """Try the lock, and with it see that the claim still stands."""
        if not self.holds():
            raise SupersededError
        lock = self._directory.open(LOCK, "create")
        if not lock.lock(exclusive=True):
            lock.close()
            return False
        self._lock = lock
        if not self.holds():
            self.release()
            raise SupersededError
        return True

    def holds(self) -> bool:
        """Whether the claim is this process's own."""
        found = holder_in(self._directory)
        return self.holder is not None and found is not None and found.word == self.holder.word

    def release(self) -> None:
        """Give the lock back. The claim stays: it says who was last."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.unlock()
            lock.close()


class Unfenced:
    """The fence of a pinned shard: its directory is on the disk of one node, whose locks no network can lose."""

    holder: Holder | None = None

    def take(self) -> None:
        """Claim nothing."""

    def try_lock(self) -> bool:
        """Be one of the writers, whom the locks of each rollout keep apart."""
        return True

    def holds(self) -> bool:
        """Whether this process may write: always."""
        return True

    def release(self) -> None:
        """Let go of nothing."""


def holder_in(directory: Directory) -> Holder | None:
    """Read who claims a directory; None if nobody does, or what stands there is no claim."""
    text = read_small(directory, FILE)
    if text is None:
        return None
    try:
        value = loads(text)
        return Holder(**{field.name: value[field.name] for field in attrs.fields(Holder)})
    except (ValueError, TypeError, KeyError):
        return None


async def acquire(fence: Fence, waiting: Callable[[], object] = lambda: None) -> None:
    """Claim a shard and wait until whoever had it is gone.

    Args:
        fence: The shard's.
        waiting: Called once if somebody else still holds the lock.

    Raises:
        SupersededError: Another process has claimed the shard meanwhile.
    """
    await to_thread.run_sync(fence.take)
    if await to_thread.run_sync(fence.try_lock):
        return
    waiting()
    while not await to_thread.run_sync(fence.try_lock):  # noqa: ASYNC110 - of another process, which rings no event
        await anyio.sleep(RETRY_SECONDS)
