"""Wishes on their way to the disk, of one thread that takes the critical sections of many rollouts there together.

With `sync="filesystem"` one sync fulfils all that have come. With `sync="file"` each file has a sync of its own, many
at a time, made by the kernel (`kernel`); the names in the directory have one for all that have come.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import count
from typing import Protocol

from tokenstore.errors import copy_of
from tokenstore.journal.disk import File, Syncs
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Wish


class Flight(Protocol):
    """The wishes of one thread."""

    @property
    def size(self) -> int:
        """How many may be on their way."""
        ...

    def fulfil(self, wishes: Sequence[Wish], *, wait: bool) -> list[Wish]:
        """Send wishes off and give those that are fulfilled, or have failed.

        Args:
            wishes: More of them, maybe none.
            wait: Whether to wait for at least one, if any is on its way; if the disk is slow, a moment only.
        """
        ...

    def close(self) -> None:
        """End it, when nothing is on its way."""
        ...


class SharedFlight:
    """One sync of the file system for all."""

    size = sys.maxsize
    """As many as there are."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def fulfil(self, wishes: Sequence[Wish], *, wait: bool) -> list[Wish]:  # noqa: ARG002 - they always wait
        """Make one sync for the wishes, and give all of them."""
        if wishes:
            self._root.fulfil_all(wishes)
        return list(wishes)

    def close(self) -> None:
        """There is nothing to be given back."""


class LoneFlight:
    """A sync for each, made by the thread itself, one after the other."""

    size = 1
    """Nobody waits while another's is made."""

    def __init__(self, root: Root) -> None:
        self._root = root

    def fulfil(self, wishes: Sequence[Wish], *, wait: bool) -> list[Wish]:  # noqa: ARG002 - they always wait
        """Make the syncs, and give all of the wishes."""
        for wish in wishes:
            self._root.fulfil(wish)
        return list(wishes)

    def close(self) -> None:
        """There is nothing to be given back."""


PATIENT_SECONDS = 0.020
"""How long those who wish for the names wait for others at most."""
_keys = count()
"""Of all flights, since a context goes from one to the next: what ends late is taken for nothing else."""


class KernelFlight:
    """A sync for each, by the kernel, while the thread does something else."""

    def __init__(self, root: Root, syncs: Syncs) -> None:
        self._root = root
        self._syncs = syncs
        self.size = syncs.size
        self._pending: dict[int, tuple[Wish, float]] = {}
        self._names: list[Wish] = []
        self._before_names: set[int] = set()
        self._names_since = 0.0

    @property
    def pending(self) -> int:
        """How many are on their way."""
        return len(self._pending) + len(self._names)

    def fulfil(self, wishes: Sequence[Wish], *, wait: bool) -> list[Wish]:
        """Send wishes off, and give those whose syncs have ended."""
        fulfilled = []
        if wishes:
            if wait and len(wishes) == 1 and not self.pending:
                self._root.fulfil(wishes[0])  # alone, the way through the kernel's threads would only be longer
                return list(wishes)
            fulfilled = self._send(wishes)
        if self._names and self._names_are_due:
            fulfilled += self._sync_names()
        if self._pending:
            fulfilled += self._ended(wait=wait and not fulfilled)
        return fulfilled

    def _send(self, wishes: Sequence[Wish]) -> list[Wish]:
        """Begin the syncs of files, and give those wishes that are fulfilled already."""
        fulfilled = []
        for whole in (False, True):
            files = [(next(_keys), wish.file, wish) for wish in wishes if wish.file and wish.whole is whole]
            fulfilled += self._begin(files, whole=whole)
        self._add_names([wish for wish in wishes if wish.file is None])
        return fulfilled

    def _begin(self, files: Sequence[tuple[int, File, Wish]], *, whole: bool) -> list[Wish]:
        """Begin some syncs of one kind; those that the kernel does not take are made at once."""
        if not files:
            return []
        now = time.perf_counter()
        begun = self._syncs.begin([(key, file) for key, file, _ in files], whole=whole)
        self._root.counters.fsyncs += begun
        self._pending.update((key, (wish, now)) for key, _, wish in files[:begun])
        left = [wish for _, _, wish in files[begun:]]
        for wish in left:
            self._root.fulfil(wish)
        return left

    def _add_names(self, wishes: Sequence[Wish]) -> None:
        """Keep wishes for the names until what is on its way now has ended: most of it will wish for them too."""
        if wishes and not self._names:
            self._before_names = set(self._pending)
            self._names_since = time.perf_counter()
        self._names += wishes

    @property
    def _names_are_due(self) -> bool:
        """Whether nothing is waited for any more, or what is takes too long: it may be another rollout's trouble."""
        waited = time.perf_counter() - self._names_since
        return waited >= PATIENT_SECONDS or self._before_names.isdisjoint(self._pending)

    def _sync_names(self) -> list[Wish]:
        """Make one sync of the directory for all who wish for it."""
        wishes, self._names = self._names, []
        self._root.fulfil(wishes[0])
        for wish in wishes[1:]:
            wish.failure = copy_of(wishes[0].failure)
        return wishes

    def _ended(self, *, wait: bool) -> list[Wish]:
        try:
            ended = self._syncs.ended(wait=wait)
        except OSError as error:  # not to be expected, and nothing can be said of any
            ended = [(key, error) for key in self._pending]
        now = time.perf_counter()
        fulfilled = []
        for key, failure in ended:
            if key in self._pending:
                wish, began = self._pending.pop(key)
                wish.failure = failure
                self._root.counters.fsync_seconds.observe(now - began)
                fulfilled.append(wish)
        return fulfilled

    def close(self) -> None:
        """Leave the kernel's part to the next flight."""
        self._syncs.close()


def flight_for(root: Root) -> Flight | None:
    """Give a thread what it sends its wishes with; None if there is nothing better than a thread for each."""
    if root.config.sync == "filesystem":
        return SharedFlight(root)
    syncs = root.directory.syncs()
    return KernelFlight(root, syncs) if syncs is not None else None
