"""What all journals of a host share: the directory, its syncs, the budget of descriptors, the cache of prompts.

Everything here is safe to use from several worker threads at once.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple, Protocol

from tokenstore.codec import PromptCache
from tokenstore.config import StoreConfig
from tokenstore.errors import DurabilityError, TokenStoreError, copy_of
from tokenstore.journal.disk import Directory, File
from tokenstore.journal.histogram import Histogram
from tokenstore.journal.syncs import SharedSync, Wish
from tokenstore.journal.turn import Turn


class durable:  # noqa: N801 - reads as the statement it is
    """Turn an operating system error into one that says what failed and that nothing was acknowledged.

    A class rather than a generator: it is entered some ten times for each batch.
    """

    __slots__ = ("_file", "_operation")

    def __init__(self, operation: str, file: str) -> None:
        self._operation = operation
        self._file = file

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, TokenStoreError):
            raise DurabilityError(self._operation, self._file, error) from error


def let_go(file: File) -> None:
    """Close a descriptor. Linux closes it even if that fails, and what was acknowledged was synced before."""
    with suppress(OSError):
        file.close()


LATENCY_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: from a fast disk's sync to a disk that is in trouble."""
BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""Messages of a batch."""


class Counters:
    """What the journals of a host have done; plain numbers, exact enough for statistics."""

    def __init__(self) -> None:
        self.puts = 0
        self.batches = 0
        self.fsyncs = 0
        self.conflicts = 0
        self.poisoned = 0
        self.written = 0
        self.freezes = 0
        self.masked: Counter[str] = Counter()
        self.put_seconds = Histogram(LATENCY_BOUNDS)
        self.batch_sizes = Histogram(BATCH_BOUNDS)
        self.fsync_seconds = Histogram(LATENCY_BOUNDS)

    @contextmanager
    def sync(self) -> Iterator[None]:
        """Count a sync, and how long it takes."""
        self.fsyncs += 1
        began = time.perf_counter()
        try:
            yield
        finally:
            self.fsync_seconds.observe(time.perf_counter() - began)

    def froze(self, reasons: Iterable[str]) -> None:
        """Count a rollout that was frozen now, and why it is incomplete."""
        self.freezes += 1
        self.masked.update(reason.partition(":")[0] for reason in reasons)


class Holder(Protocol):
    """A journal that keeps descriptors between its critical sections."""

    @property
    def open_files(self) -> int:
        """How many it keeps."""
        ...

    def try_release(self) -> bool:
        """Close them, unless a critical section is running; tell whether it was done."""
        ...


BUSY_SECONDS = 1.0
"""A journal used less than so long ago is in use: whoever puts in turns with many others comes again within that."""


class Kept(NamedTuple):
    """What one journal keeps."""

    files: int
    used: float
    """When, by the monotonic clock."""


class HandleBudget:
    """Keeps the descriptors of the journals used last, least recently used out first.

    1. A running critical section never waits for a place: what it has open is counted when it ends.
    2. If all others are in use, the one used now keeps none. More rollouts than have a place, that put in turns, would
       else each find that the others have just taken theirs, and nobody would find any.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._kept: OrderedDict[Holder, Kept] = OrderedDict()
        self._guard = threading.Lock()

    @property
    def total(self) -> int:
        """Descriptors kept now."""
        return self._total

    def keep(self, holder: Holder) -> None:
        """Note what a journal keeps, as the one used last, and close others' if that is too much."""
        with self._guard:
            self._note(holder, holder.open_files)
            victims = self._excess(holder)
        for victim in victims:
            victim.try_release()
            # Also if that was done: a section of it that ended meanwhile has noted what it had.
            with self._guard:
                self._note(victim, victim.open_files)

    def _excess(self, latest: Holder) -> list[Holder]:
        """Take out holders until the rest is within the limit."""
        victims = []
        while self._total > self._limit:
            oldest, kept = next(iter(self._kept.items()))
            in_use = monotonic() - kept.used < BUSY_SECONDS and latest in self._kept
            victims.append(latest if in_use else oldest)
            self._note(victims[-1], 0)
        return victims

    def forget(self, holder: Holder) -> None:
        """Note that a journal keeps nothing any more."""
        with self._guard:
            self._note(holder, 0)

    def _note(self, holder: Holder, count: int) -> None:
        before = self._kept.pop(holder, None)
        self._total += count - (before.files if before else 0)
        if count:
            self._kept[holder] = Kept(count, monotonic())


def _fulfilled(wish: Wish) -> Iterator[Wish]:
    """Go on when a wish is fulfilled."""
    yield wish
    if wish.failure:
        raise wish.failure


DESCRIPTORS_APART = 28
"""Those of the interpreter, the event loop and the readers."""
DESCRIPTORS_A_SECTION = 6
"""Lock, lines, intents, marker, state, and the state that takes its place."""


def descriptor_limit() -> int:
    """How many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def share_descriptors(limit: int) -> tuple[int, int]:
    """Tell how many descriptors to keep and how many critical sections to run at once where so many may be open."""
    free = max(0, limit - DESCRIPTORS_APART)
    return free // 3, max(1, (free - free // 3) // DESCRIPTORS_A_SECTION)


class Root:
    """The store's directory with what is shared by the journals in it."""

    def __init__(self, directory: Directory, config: StoreConfig, counters: Counters | None = None) -> None:
        self.directory = directory
        self.config = config
        self.counters = counters or Counters()
        self.prompts = PromptCache()
        self.turn = Turn()
        kept, self.sections = share_descriptors(descriptor_limit())
        self.handles = HandleBudget(min(config.max_open_files, kept))
        self._names = SharedSync(self._sync_names, "the store's directory")
        self._filesystem = SharedSync(self._sync_filesystem, "the store's file system")

    def sync(self) -> None:
        """Make the names in the directory durable: return when a sync that began after this call has ended.

        Raises:
            DurabilityError: It failed. Names live in the file system's journal, so trying again is honest.
        """
        with self.turn.away():
            self._names.wait()

    def sync_file(self, file: File) -> None:
        """Make a file durable with everything known of it, at once.

        Raises:
            OSError: It failed.
        """
        with self.turn.away(), self.counters.sync():
            file.sync()

    def ticket(self) -> int:
        """To be drawn before writing to a file that `datasync` is to make durable."""
        return self._filesystem.ticket()

    def datasync(self, file: File, ticket: int) -> Iterator[Wish]:
        """Wish that the bytes of a file become durable, and go on when they are.

        Raises:
            OSError: It failed; never sync again as if nothing had happened.
        """
        return _fulfilled(Wish(file, ticket))

    def syncing_file(self, file: File) -> Iterator[Wish]:
        """Do as `sync_file` does, in steps."""
        return _fulfilled(Wish(file, whole=True))

    def syncing(self) -> Iterator[Wish]:
        """Do as `sync` does, in steps."""
        return _fulfilled(Wish(None))

    def fulfil(self, wish: Wish) -> None:
        """Make durable what one wish is about. Whatever fails is raised where the wish came from."""
        if wish.file and not wish.whole and self.config.sync == "filesystem":
            self.fulfil_all([wish])
            return
        try:
            if wish.file is None:
                self.sync()
            elif wish.whole:
                self.sync_file(wish.file)
            else:
                with self.turn.away(), self.counters.sync():
                    wish.file.datasync()
        except BaseException as error:  # noqa: BLE001 - a section that is left at its wish would keep its lock
            wish.failure = error

    def fulfil_all(self, wishes: Sequence[Wish]) -> None:
        """Make what was written durable by one sync of the file system; if it fails, it fails all."""
        try:
            with self.turn.away():
                self._filesystem.wait(min(wish.ticket for wish in wishes))
        except BaseException as error:  # noqa: BLE001 - as above
            for wish in wishes:
                wish.failure = copy_of(error)

    def finish(self, steps: Iterable[Wish]) -> None:
        """Run a critical section to its end, its wishes one by one."""
        for wish in steps:
            self.fulfil(wish)

    def _sync_names(self) -> None:
        with self.counters.sync():
            self.directory.sync()

    def _sync_filesystem(self) -> None:
        with self.counters.sync():
            self.directory.sync_filesystem()
