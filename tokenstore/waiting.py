"""How a thread waits for a store without ever waiting for itself.

A signal handler comes between any two steps of the main thread, a destructor between any two of the thread on which the
garbage collector happens to run. Either may call a blocking twin. So:

1. What a caller's thread holds, be it for a moment, is never needed by the store's own threads, nor by another call on
   the same thread: lone operations of built-in containers instead of a lock, a lock that its owner may take again, and
   a latch instead of `threading.Event`, which has a lock inside.
2. A store's own threads wait for no store.
3. When the interpreter shuts down, daemon threads do not run any more, so nobody waits for one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from tokenstore.errors import StoreClosedError

T = TypeVar("T")


class Latch:
    """An event that happens once, for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_set = False

    @property
    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """Let everybody go on who waits; from one thread only, again is a no-op."""
        if not self._is_set:
            self._is_set = True
            self._lock.release()

    def wait(self) -> None:
        """Block until it has happened."""
        if not self._is_set:
            # Passed from one who waits to the next; a call that comes in between on this thread finds it set.
            with self._lock:
                pass


class _Here(threading.local):
    """What is known of the calling thread."""

    is_own = False


_here = _Here()


def is_own_thread() -> bool:
    """Whether the calling thread is a store's, now."""
    return _here.is_own


def own_this_thread() -> None:
    """Note that the calling thread is a store's, and stays so."""
    _here.is_own = True


def run_as_own(function: Callable[[], T], *, stays: bool) -> T:
    """Run a function for a store in the calling thread.

    Args:
        function: What is to be run.
        stays: Whether the thread works for nobody else, so that it is the store's between two functions too.
    """
    _here.is_own = True
    try:
        return function()
    finally:
        _here.is_own = stays


def check_may_wait() -> None:
    """Raise where waiting for a store would never end.

    Raises:
        StoreClosedError: This is a thread of a store, or the interpreter is shutting down.
    """
    if _here.is_own:
        raise StoreClosedError(
            f"a store was called on a store's own thread {threading.current_thread().name!r}, perhaps by a destructor "
            "that the garbage collector ran there; it would wait for itself, so nothing was done. Call from a thread "
            "of your own: what must be stored at the end belongs in a `with` block or a method, not in `__del__`"
        )
    if sys.is_finalizing():
        raise StoreClosedError(
            "the interpreter is shutting down, and the store's thread does not run any more; nothing was done. Call "
            "before, or from a function given to `atexit.register`"
        )
