"""Whether a file system can carry floating shards: what `check-fs` proves between two nodes.

1. A lock (flock) that a process on one node holds is refused to a process on the other, and is free when it is let go.
2. A file that one node moves over another (rename) is what the other node reads next.
3. Writing, and syncing the file and the directory, works on both, and what one has synced the other reads.

That a sync survives a power cut cannot be seen from here: it is what the maker of the file system says.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import attrs

from tokenstore.cluster.config import ClusterConfig
from tokenstore.cluster.files import read_small, replace_durably
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import Directory, File, OsDisk

FOLDER = ".check-fs"
"""Folder below the root in which it is tried."""
ROUNDS = 5
"""Times that each thing is tried, from both sides."""


class Probe:
    """One node's side, in a process there.

    Args:
        root: The directory in question.
        folder: Folder below it to work in.
    """

    def __init__(self, root: str, folder: str, disk: Any = None) -> None:
        self._path = Path(root) / FOLDER / folder
        self._disk = disk or OsDisk()
        self._lock: File | None = None

    @cached_property
    def _directory(self) -> Directory:
        """Opened at first use: what is wrong with it is then an answer, and not an actor that died."""
        found: Directory = self._disk.open_root(self._path)
        return found

    def lock(self) -> bool:
        """Try to take the lock."""
        file = self._directory.open("lock", "create")
        if not file.lock(exclusive=True):
            file.close()
            return False
        self._lock = file
        return True

    def unlock(self) -> None:
        """Let the lock go."""
        if self._lock is not None:
            self._lock.unlock()
            self._lock.close()

    def replace(self, text: bytes) -> None:
        """Put text in place of the last, durably."""
        replace_durably(self._directory, "text", text)

    def append(self, text: bytes) -> None:
        """Write to the end of a file that stays, and sync it."""
        file = self._directory.open("log", "create")
        try:
            file.write(file.stat().size, text)
            file.sync()
        finally:
            file.close()
        self._directory.sync()

    def read(self, name: str) -> bytes:
        """Read a file, opened anew."""
        return read_small(self._directory, name) or b""

    def tidy(self) -> None:
        """Remove what was made here."""
        for name in list(self._directory.names()):
            self._directory.unlink(name)


class Side(Protocol):
    """Calls a method of a probe, wherever it is, and gives what it returned. Blocks."""

    def __call__(self, method: str, *arguments: Any) -> Any:
        """Call it."""


@attrs.frozen(kw_only=True)
class Proof:
    """What came of one of the things that were tried."""

    what: str
    """What should hold."""
    problem: str = ""
    """What was seen instead; empty if it holds."""


def prove(one: Side, other: Side) -> list[Proof]:
    """Try everything between two nodes. Blocks.

    Args:
        one: A probe on one node.
        other: A probe on the other, in the same folder.
    """
    tried: Sequence[tuple[str, Callable[[Side, Side], str]]] = (
        ("a lock that one node holds is refused to the other", _locks),
        ("a file that one node moved into place is what the other reads", _renames),
        ("what one node has written and synced the other reads", _syncs),
    )
    return [Proof(what=what, problem=_tried(trial, one, other)) for what, trial in tried]


def new_folder() -> str:
    """Make up a folder for one check."""
    return secrets.token_hex(8)


def require_shared(config: ClusterConfig, proofs: Mapping[tuple[str, str], Sequence[Proof]]) -> None:
    """Refuse floating shards where something does not hold.

    Raises:
        ClusterMismatchError: It does not.
    """
    for (one, other), tried in proofs.items():
        for proof in tried:
            if proof.problem:
                where = f"{config.root} between {one} and {other}"
                raise ClusterMismatchError(where, "its file system", found=proof.problem, expected=proof.what)


def _tried(trial: Callable[[Side, Side], str], one: Side, other: Side) -> str:
    for _ in range(ROUNDS):
        for left, right in ((one, other), (other, one)):
            try:
                problem = trial(left, right)
            except OSError as error:
                problem = str(error)
            if problem:
                return problem
    return ""


def _locks(one: Side, other: Side) -> str:
    if not one("lock"):
        return "the lock was not free although nobody held it"
    both = other("lock")
    if both:
        other("unlock")
    one("unlock")
    return "both nodes held the lock at once: flock works on each node alone" if both else ""


def _renames(one: Side, other: Side) -> str:
    text = secrets.token_bytes(16)
    one("replace", text)
    return "" if other("read", "text") == text else "the other node still read the file that was replaced"


def _syncs(one: Side, other: Side) -> str:
    text = secrets.token_bytes(16)
    one("append", text)
    return "" if other("read", "log").endswith(text) else "the other node did not read what was synced"
