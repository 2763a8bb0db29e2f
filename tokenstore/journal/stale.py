"""Walking through a directory, and telling files that nobody needs any more: what crashes leave.

Nothing is stale by its age against this machine's clock, which jumps: ages are against the file system's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.disk import Directory
from tokenstore.journal.layout import Names, is_temporary, rollout_of, rollout_of_lock

TEMPORARY_AGE = 3600.0
"""Seconds after which a temporary file is surely not about to be moved: a replace takes milliseconds."""


@attrs.frozen
class Seen:
    """Something to look at."""

    rollout_id: str | None
    """A rollout, or one of which perhaps only the lock file is left; None for a stale temporary state."""
    file: str
    """The name by which it was seen."""


def walk(directory: Directory, *, locks: bool) -> Iterator[Seen]:
    """Give each rollout once, and the stale temporary states; memory does not grow with their number.

    Args:
        directory: The store's directory.
        locks: Whether lock files without a rollout count.
    """
    now = directory.clock_ns()
    for name in directory.names():
        if is_temporary(name):
            if _is_old_and_ours(directory, name, now):
                yield Seen(None, name)
            continue
        rollout_id = rollout_of(name) or (rollout_of_lock(name) if locks else None)
        if rollout_id is not None and _is_first(directory, rollout_id, name):
            yield Seen(rollout_id, name)


def remove_temporary(directory: Directory, name: str) -> bool:
    """Remove a temporary state, if it is still old and ours; tell whether it was removed."""
    return is_temporary(name) and _is_old_and_ours(directory, name, directory.clock_ns()) and directory.unlink(name)


def _is_first(directory: Directory, rollout_id: str, name: str) -> bool:
    """Whether no name before this one is there: each rollout is seen once, by its lock only if it has nothing else."""
    for other in Names.of(rollout_id).evidence:
        if other == name:
            return True
        if directory.stat(other) is not None:
            return False
    return True


def _is_old_and_ours(directory: Directory, name: str, now_ns: int) -> bool:
    """Whether a temporary state is a regular file of this user that was not written for long."""
    try:
        file = directory.open(name, "read")
    except (FileNotFoundError, PermissionError, CorruptRolloutError):
        return False  # moved into place meanwhile, another user's, or nothing that a store has made
    try:
        info = file.stat()
    finally:
        file.close()
    return info.uid == os.getuid() and (now_ns - info.mtime_ns) / 1e9 > TEMPORARY_AGE
