"""Whose turn it is to work while others wait for the disk.

Python runs one thread at a time. Many threads that all want to run make each other, and the event loop above all, wait
for several switching intervals of 5 ms; one that runs while the others wait for the disk costs nothing, since they
could not run anyway. So a critical section is run by whoever has the turn, and leaves it for as long as it waits for a
sync, and while the file system makes a file or frees what was removed, which takes it as long.

Nothing rests on it but speed. Who has it for long, with an entry of many megabytes or a long file to be read, has it no
longer alone: the others go on without, so that nobody waits long for another rollout's work.
"""

from __future__ import annotations

import threading
import time

ALONE_SECONDS = 0.050
"""Time enough for a batch with a prompt of 131,072 tokens."""


class Turn:
    """Had by one thread at a time, as long as it is had for a short time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._alone_until = 0.0

    def away(self) -> _Away:
        """Leave it within a context, if the calling thread has it."""
        return _Away(self)

    def __enter__(self) -> None:
        while not self._lock.acquire(timeout=max(0.0, self._alone_until - time.monotonic())):
            # Of one who has just got it, this may still be the time of who had it before; going on does no harm.
            if time.monotonic() >= self._alone_until:
                return
        self._owner = threading.get_ident()
        self._alone_until = time.monotonic() + ALONE_SECONDS

    def __exit__(self, *_: object) -> None:
        if self.is_mine:
            self._owner = None
            self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread has it."""
        return self._owner == threading.get_ident()


class _Away:
    """Leaves a turn and takes it again."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._left = False

    def __enter__(self) -> None:
        self._left = self._turn.is_mine
        if self._left:
            self._turn.__exit__()

    def __exit__(self, *_: object) -> None:
        if self._left:
            self._turn.__enter__()
