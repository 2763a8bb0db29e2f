"""The lock of one rollout: flock on a file of its own, which a deletion removes and the next writer makes anew.

1. Nothing here waits: who finds the lock held is told so, and tries again on the loop.
2. A lock counts only if its file is still the one at the path, because whoever held it before may have removed it.
3. Whatever goes wrong while it is taken, the lock is given back: nobody else would do it.
"""

from __future__ import annotations

from tokenstore.journal.descriptors import forks
from tokenstore.journal.disk import Access, File
from tokenstore.journal.root import Root, durable, let_go

_ATTEMPTS = 8
"""How often a lock file may be replaced under our hands before we wait as if it were held."""


class LockBusyError(Exception):
    """Somebody else holds the rollout's lock; nothing was done. The actor waits and tries again."""


class LockFile:
    """The lock file of one rollout, its descriptor kept between critical sections."""

    def __init__(self, root: Root, name: str) -> None:
        self.name = name
        self._root = root
        self._file: File | None = None
        self._identity = (0, 0)
        self._access: Access = "read"

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is kept; in a critical section, whether there is a lock to hold."""
        return self._file is not None

    def take(self, access: Access) -> None:
        """Take the lock: shared to read, exclusive otherwise. Without a lock file to open, there is nothing to take.

        Raises:
            LockBusyError: Somebody else holds it.
            DurabilityError: The disk failed.
        """
        if self._file is not None and access != "read" and self._access == "read":
            self.close()
        taken = False
        try:
            with durable("locking", self.name):
                taken = self._try(access)
        finally:
            if not taken:
                self.close()
        if not taken:
            raise LockBusyError

    def _try(self, access: Access) -> bool:
        for _ in range(_ATTEMPTS):
            file = self._open(access)
            if file is None:
                return True
            if not file.lock(exclusive=access != "read"):
                return False
            there = self._root.directory.stat(self.name)
            if there is not None and there.identity == self._identity:
                return True
            self.close()
        return False

    def _open(self, access: Access) -> File | None:
        while self._file is None:
            before = forks()
            try:
                self._file = self._root.directory.open(self.name, access)
            except FileNotFoundError:
                if access == "create":  # the directory itself is gone; nobody holds a lock that could be waited for
                    raise
                return None
            self._access = access
            self._identity = self._file.stat().identity
            if forks() != before:
                self._let_go()  # a child may have it too, and would keep what is locked with it
        return self._file

    def release(self) -> None:
        """Give the lock back and keep the descriptor."""
        if self._file is not None:
            try:
                self._file.unlock()
            except OSError:
                self._let_go()  # closing the only descriptor gives the lock back too

    def close(self) -> None:
        """Give the lock back, if it is held, and the descriptor too."""
        self.release()
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            let_go(self._file)
            self._file = None

    def unlink(self) -> None:
        """Remove the file that is locked; others who wait for it notice, because they look after they got it."""
        with durable("removal", self.name):
            self._root.directory.unlink(self.name)
        self.close()
