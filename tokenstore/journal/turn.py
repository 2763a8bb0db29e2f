"""Whose turn it is to work while others wait for the disk.

Python runs one thread at a time. Many threads that all want to run make each other, and the event loop above all, wait
for several switching intervals of 5 ms; one that runs while the others wait for the disk costs nothing, since they
could not run anyway. So a critical section is run by whoever has the turn, and leaves it for as long as it waits for a
sync. Nobody waits for a lock of ours that is held during a sync while having the turn.
"""

from __future__ import annotations

import threading


class Turn:
    """Had by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    def away(self) -> _Away:
        """Leave it within a context, if the calling thread has it."""
        return _Away(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *_: object) -> None:
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
