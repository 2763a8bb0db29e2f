"""Syncs that many share: of the directory's names, and of the whole file system.

1. Who waits returns when a sync that began after the call has ended; whoever comes while one is running shares the
   next one.
2. A failed sync fails all who waited for it.
3. A sync of a file system that fails may have marked clean, unwritten, what others had written before it ended. They
   must not believe a later one. So who will wait draws a ticket before writing; it is void once a sync has failed.
4. A critical section that need not wait alone is a generator. It yields a wish and goes on when that is fulfilled, its
   lock held all the while, so that one thread can take the sections of many rollouts to the disk together. What it
   returns is kept by `Steps`.
"""

from __future__ import annotations

import errno
import platform
import re
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Generic, TypeVar

import attrs

from tokenstore.errors import DurabilityError, copy_of
from tokenstore.journal.disk import File

T = TypeVar("T")
_SYNCFS_TELLS_ERRORS = (5, 8)


def filesystem_sync_problem() -> str | None:
    """Why this machine's `syncfs` cannot be relied on; None if it can. Older kernels hide the errors of writing."""
    system, release = platform.system(), platform.release()
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if system != "Linux" or numbers < _SYNCFS_TELLS_ERRORS:
        return f"sync='filesystem' needs Linux 5.8 or newer, this is {system} {release}; use sync='file'"
    return None


@attrs.define(eq=False)
class Wish:
    """That something become durable: bytes of a file, a whole file, or the names in the directory."""

    file: File | None
    """None for the names."""
    ticket: int = 0
    """Drawn before the bytes were written."""
    whole: bool = False
    """Whether everything known of the file is meant (`fsync`), or the bytes alone (`fdatasync`)."""
    failure: BaseException | None = None
    """Why it did not; set by whoever fulfils it."""


class Steps(Generic[T]):
    """A critical section in steps, and what came of it when it has come to its end."""

    result: T

    def __init__(self, section: Generator[Wish, None, T]) -> None:
        self._section = section

    def __iter__(self) -> Iterator[Wish]:
        self.result = yield from self._section


class SharedSync:
    """One kind of sync of a directory, shared by all who want it at the same time.

    Args:
        sync: Makes it.
        what: What it makes durable, for messages.
    """

    def __init__(self, sync: Callable[[], None], what: str) -> None:
        self._sync = sync
        self._what = what
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self._begun = 0
        self._failure: tuple[int, DurabilityError] | None = None
        self._failures = 0

    def ticket(self) -> int:
        """To be drawn before writing what a sync is to make durable."""
        return self._failures

    def wait(self, ticket: int | None = None) -> None:
        """Return when a sync that began after this call has ended.

        Args:
            ticket: Drawn before writing; without one a failed sync is one that may be tried again.

        Raises:
            DurabilityError: That sync failed, or one since the ticket was drawn.
        """
        with self._guard:
            wanted = self._begun + 1
        with self._turn:
            if self._begun < wanted:
                self._begin()
            if self._failure is None:
                return
            number, failure = self._failure
            if number >= wanted or ticket not in (None, self._failures):
                raise copy_of(failure)

    def _begin(self) -> None:
        with self._guard:
            self._begun += 1
        try:
            self._sync()
        except Exception as error:  # noqa: BLE001 - others wait for this sync, and must not take it for a good one
            cause = error if isinstance(error, OSError) else OSError(errno.EIO, repr(error))
            self._failures += 1
            self._failure = self._begun, DurabilityError("sync", self._what, cause)
