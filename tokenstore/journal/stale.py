"""Files that nobody needs any more: what crashes leave, told by looks, without locks.

Nothing is stale by its age against this machine's clock, which jumps: ages are against the file system's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from tokenstore.journal.disk import Directory
from tokenstore.journal.layout import Names, is_temporary, rollout_of_lock

TEMPORARY_AGE = 3600.0
"""Seconds after which a temporary file is surely not about to be moved: a replace takes milliseconds."""


@attrs.frozen
class StaleFile:
    """A file that a crash has left."""

    name: str
    """Its name in the store's directory."""
    rollout_id: str | None
    """The rollout whose lock it is; None for a temporary state, which names none."""


def find_stale(directory: Directory) -> Iterator[StaleFile]:
    """Give the temporary states of this user that are older than an hour, and the locks of rollouts that are gone."""
    now = directory.clock_ns()
    for name in directory.names():
        if is_temporary(name) and _is_old_and_ours(directory, name, now):
            yield StaleFile(name, None)
        lock_of = rollout_of_lock(name)
        if lock_of is not None and not any(directory.stat(file) for file in Names.of(lock_of).evidence):
            yield StaleFile(name, lock_of)


def remove_temporary(directory: Directory, name: str) -> bool:
    """Remove a temporary state, if it is still old and ours; tell whether it was removed."""
    return is_temporary(name) and _is_old_and_ours(directory, name, directory.clock_ns()) and directory.unlink(name)


def _is_old_and_ours(directory: Directory, name: str, now_ns: int) -> bool:
    info = directory.stat(name)
    return info is not None and info.uid == os.getuid() and (now_ns - info.mtime_ns) / 1e9 > TEMPORARY_AGE
