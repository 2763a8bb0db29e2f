"""The files of one rollout as descriptors: taken with the lock, kept between critical sections, given away.

Whoever gives them away, the budget of descriptors or the end of the actor, waits for a critical section that is
running, or leaves it alone.
"""

from __future__ import annotations

import threading
from time import monotonic

from tokenstore.errors import DurabilityError, StoreClosedError
from tokenstore.journal.disk import Access
from tokenstore.journal.idfile import IdFile
from tokenstore.journal.layout import Names
from tokenstore.journal.lockfile import LockFile
from tokenstore.journal.logfile import LogFile
from tokenstore.journal.root import Root, durable
from tokenstore.journal.statefile import StateFile

FREE_SECONDS = 0.010
"""How long a lock must be free between two critical sections, so that whoever waits has tried twice, for them not to
count as one turn."""


class HeldFiles:
    """Lock, lines, intents, marker and state of one rollout."""

    def __init__(self, root: Root, rollout_id: str) -> None:
        self.root = root
        self.rollout_id = rollout_id
        self.names = Names.of(rollout_id)
        self.lock = LockFile(root, self.names.lock)
        self.tokens = LogFile(root, self.names.tokens)
        self.intents = IdFile(root, self.names.intents)
        self.marker = IdFile(root, self.names.marker)
        self.statefile = StateFile(root, self.names.state)
        self._mutex = threading.Lock()
        self._closed = False
        self.turn_seconds = 0.0
        """How long this process has held the lock in sections that came back to back."""
        self._taken = self._freed = 0.0

    def has_records(self) -> bool:
        """Whether lines, intents or the marker are there."""
        with durable("look-up", self.names.tokens):
            return any(self.root.directory.stat(name) is not None for name in self.names.records)

    @property
    def poison(self) -> DurabilityError | None:
        """The failure after which a file could not be cut back, so that nothing known of it may be trusted."""
        return self.tokens.poison or self.intents.poison or self.marker.poison

    @property
    def named(self) -> bool:
        """Whether the names of lines and, if there is one, state are known to be durable."""
        return self.tokens.named and (self.statefile.named or not self.statefile.exists)

    @property
    def open_files(self) -> int:
        """Descriptors kept between critical sections."""
        return sum(file.is_open for file in (self.lock, self.tokens, self.intents, self.marker, self.statefile))

    def _enter(self, access: Access) -> None:
        self._mutex.acquire()
        try:
            self._check_open()
            self.lock.take(access)
        except BaseException:
            self._mutex.release()
            raise
        self._taken = monotonic()
        if self._taken - self._freed >= FREE_SECONDS:
            self.turn_seconds = 0.0

    def _check_open(self) -> None:
        if self._closed:  # asyncio's own cancellation lets an actor end before its thread has begun
            raise StoreClosedError("the rollout's actor has ended; nothing was done")

    def _leave(self) -> None:
        try:
            self.lock.release()
        finally:
            self._freed = monotonic()
            self.turn_seconds += self._freed - self._taken
            self._mutex.release()

    def _forget(self) -> None:
        """Let go of everything, where there is a fence or nothing: others have more use for the descriptors."""
        self._forget_records()
        self.statefile.release()
        self.lock.close()

    def _forget_records(self) -> None:
        for file in (self.tokens, self.intents, self.marker):
            file.forget()

    def try_release(self) -> bool:
        """Give the descriptors away unless a critical section is running."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            for file in (self.tokens, self.intents, self.marker, self.statefile):
                file.release()
            self.lock.close()
        finally:
            self._mutex.release()
        return True

    def leave(self) -> None:
        """Have the next actor know the lines again, so that prompts of theirs that are cached stay good."""
        with self._mutex:
            if not self._closed:
                self.root.prompts.leave(self.rollout_id, self.tokens.known())

    def close(self) -> None:
        """Give everything away for good, after the running critical section; one that comes later raises."""
        with self._mutex:
            self._closed = True
            for file in (self.tokens, self.intents, self.marker):
                file.close()
            self.statefile.release()
            self.lock.close()
        self.root.handles.forget(self)
