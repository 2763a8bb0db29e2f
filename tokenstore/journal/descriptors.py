"""Descriptors that are closed once, and closed by a forked child: a lock never outlives the process that took it."""

from __future__ import annotations

import os

_inheritable: set[int] = set()
_forks = 0


def forks() -> int:
    """Tell how often this process has forked: a child has all that was being opened meanwhile, and does not know it."""
    return _forks


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - of the process, as its forks are
    _forks += 1


def _close_inherited() -> None:
    """Close, in a child of a fork, the descriptors of the parent; unlocking would take the parent's locks away."""
    while _inheritable:
        os.close(_inheritable.pop())


os.register_at_fork(before=_count_fork, after_in_child=_close_inherited)


class Descriptor:
    """Owns a descriptor of this process."""

    _fd = -1

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        _inheritable.add(fd)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close it; again is a no-op, and in a forked child too."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._pid == os.getpid():
            _inheritable.discard(fd)
            os.close(fd)
