"""Whether a file system can carry floating shards is proved between two sides, and refused where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.given import config
from tokenstore.cluster.deploying import check_fs
from tokenstore.cluster.probing import Probe, Proof, prove, require_shared
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import File, OsDirectory, OsDisk


class LocalLocks(Probe):
    """A node whose locks no other node sees, as Lustre's are with `localflock`."""

    def lock(self) -> bool:
        """Take a lock that always is free."""
        return True

    def unlock(self) -> None:
        """Let it go."""


class Stale(Probe):
    """A node that goes on reading what it read first, as a cache does that nobody invalidates."""

    def __init__(self, root: str, folder: str) -> None:
        super().__init__(root, folder)
        self._known: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        """Read a file once."""
        return self._known.setdefault(name, super().read(name))


class Failing(Probe):
    """A node that cannot sync."""

    def append(self, text: bytes) -> None:
        """Fail."""
        raise OSError(5, f"no sync of {len(text)} bytes")


class NoLocks(OsDisk):
    """A disk without locks."""

    def open_root(self, path: Path) -> OsDirectory:
        """Open a directory without looking at its locks."""
        path.mkdir(parents=True, exist_ok=True)
        return OsDirectory(path)


def side(probe: Probe) -> Callable[..., Any]:
    """Call a probe of this process."""
    return lambda method, *arguments: getattr(probe, method)(*arguments)


def proved(root: Path, one: type[Probe] = Probe, other: type[Probe] = Probe) -> list[str]:
    """Try everything between two kinds of node, and give what does not hold."""
    sides = [side(kind(str(root), "folder")) for kind in (one, other)]
    found = prove(*sides)
    assert len(found) == 3
    return [proof.problem for proof in found]


def test_a_local_file_system_passes(tmp_path: Path) -> None:
    """Two processes on one file system see each other's locks, renames and writes; nothing is left there."""
    assert proved(tmp_path) == ["", "", ""]

    Probe(str(tmp_path), "folder").tidy()
    assert list((tmp_path / ".check-fs" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "problems"),
    [
        (LocalLocks, [True, False, False]),
        (Stale, [False, True, True]),
        (Failing, [False, False, True]),
    ],
)
def test_what_does_not_hold_is_named(kind: type[Probe], problems: list[bool], tmp_path: Path) -> None:
    """A node whose locks, reads or syncs are its own is found out, on whichever side it is."""
    assert [bool(problem) for problem in proved(tmp_path, Probe, kind)] == problems
    assert [bool(problem) for problem in proved(tmp_path / "turned", kind, Probe)] == problems


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """Where the directory cannot even be made, each thing that was tried says why."""
    (tmp_path / "file").touch()

    problems = proved(tmp_path / "file")

    assert all("Not a directory" in problem for problem in problems)
    with pytest.raises(ValueError, match="relative path 'captures'"):
        check_fs("captures", [])


def test_a_lock_that_is_never_free_is_named(tmp_path: Path) -> None:
    """A lock that nobody holds and nobody gets is no lock."""
    holder: File = NoLocks().open_root(tmp_path / ".check-fs" / "folder").open("lock", "create")
    assert holder.lock(exclusive=True)

    assert "was not free" in proved(tmp_path)[0]


def test_floating_is_refused_where_it_fails(tmp_path: Path) -> None:
    """A store of floating shards is not deployed where something does not hold, and the error names it."""
    wanted = config(tmp_path, placement="floating")
    good = Proof(what="locks")
    require_shared(wanted, {("a", "b"): [good]})

    with pytest.raises(ClusterMismatchError, match="between a and c: its file system is both held it"):
        require_shared(wanted, {("a", "b"): [good], ("a", "c"): [good, Proof(what="locks", problem="both held it")]})
