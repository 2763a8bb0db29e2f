"""System calls that fail once, or lie, under a real process: by strace; and files that cannot be changed."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from tests.children import entry, opened, start
from tests.kernel import needs
from tests.kernel.test_kills import STRACE
from tokenstore import DurabilityError
from tokenstore.testing import first_difference

COUNT = 12
"""Entries that a child puts; what fails is tried again."""
FAILURES = {
    "a full disk": ("pwrite64", "error=ENOSPC:when=4", "r.tokens.jsonl", errno.ENOSPC),
    "a broken write": ("pwrite64", "error=EIO:when=4", "r.tokens.jsonl", errno.EIO),
    "a failed sync": ("fdatasync", "error=EIO:when=4", "r.tokens.jsonl", errno.EIO),
    "a full disk at the sync": ("fdatasync", "error=ENOSPC:when=4", "r.tokens.jsonl", errno.ENOSPC),
    "a directory that is not synced": ("fsync", "error=EIO:when=2", "", errno.EIO),
    "no descriptors": ("openat", "error=EMFILE:when=3", ".", errno.EMFILE),
    "no locks for a moment": ("flock", "error=ENOLCK:when=5", "", errno.ENOLCK),
}
"""What is injected: the call, how, for which file of the root (none is for all), and the error that the caller gets.

Counts are of each thread: a worker opens the root, the lock and then the lines.
"""


def _put(root: Path, call: str, how: str, file: str) -> list[str]:
    """Run a child that puts entries with a call tampered with, and give what it said."""
    root.mkdir()
    wrap = [*STRACE, "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{how}"]
    wrap += ["-P", str(root / file)] if file else []
    with start("put_many", root, "c", COUNT, wrap=wrap) as child:
        return child.finish()


@pytest.mark.kernel
@pytest.mark.parametrize("failure", FAILURES)
def test_a_call_that_fails_once_costs_one_try(failure: str, tmp_path: Path) -> None:
    """The put that met the failure raises and works when it is tried again; every entry is there once, unmasked."""
    needs.programs("strace")
    call, how, file, code = FAILURES[failure]
    root = tmp_path / "root"

    said = _put(root, call, how, file)

    with opened(root) as store:
        snapshot = store.freeze_now("r")
    # Calls are counted by thread, and a second worker may come to the same number.
    assert {line for line in said if line.startswith("failed")} == {f"failed {code}"}
    assert [each.model_call_id for each in snapshot.entries] == [f"c{number}" for number in range(COUNT)]
    assert (snapshot.version, snapshot.incomplete) == (COUNT + 1, False)


@pytest.mark.kernel
def test_a_write_that_lies_is_never_delivered_as_good(tmp_path: Path) -> None:
    """Bytes that the kernel said it took and did not are no entry: that call is masked, and all others are there."""
    needs.programs("strace")
    root = tmp_path / "root"

    said = _put(root, "pwrite64", "retval=7:when=4", "r.tokens.jsonl")

    with opened(root) as store:
        snapshot = store.freeze_now("r")
    there = {each.model_call_id: each for each in snapshot.entries}
    assert len(said) == COUNT
    assert len(there) == COUNT - 1
    assert snapshot.incomplete
    for call_id, each in there.items():
        assert first_difference(entry("r", call_id, number=int(call_id[1:])), each) is None


def test_a_file_that_may_not_be_changed_is_an_error_until_it_may(tmp_path: Path) -> None:
    """While the lines are immutable a put raises and reading works; afterwards the same put works."""
    needs.root()
    needs.programs("chattr")
    with opened(tmp_path) as store:
        store.append(entry("r", "c1", number=1))
        path = store.path_for("r")
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        with opened(tmp_path) as store:
            with pytest.raises(DurabilityError) as caught:
                store.append(entry("r", "c2", number=2))
            read = [each.model_call_id for each in store.read_entries("r")]
    finally:
        subprocess.run(["chattr", "-i", path], check=True)

    with opened(tmp_path) as store:
        store.append(entry("r", "c2", number=2))
        snapshot = store.freeze_now("r")
    assert caught.value.errno == errno.EPERM
    assert read == ["c1"]
    assert [each.model_call_id for each in snapshot.entries] == ["c1", "c2"]
