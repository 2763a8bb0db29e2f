"""Syncs that the kernel makes, on real files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenstore.journal.disk import OsDisk
from tokenstore.journal.kernel import KernelSyncs


def syncs_or_skip() -> KernelSyncs:
    """Give a place for syncs in flight, where the kernel has such a thing."""
    try:
        return KernelSyncs()
    except OSError as error:
        pytest.skip(f"this kernel or sandbox has no asynchronous I/O: {error}")


def all_of(syncs: KernelSyncs, count: int) -> dict[int, OSError | None]:
    """Wait for so many syncs."""
    ended: dict[int, OSError | None] = {}
    while len(ended) < count:
        ended.update(syncs.ended(wait=True))
    return ended


@pytest.mark.parametrize("whole", [True, False], ids=["fsync", "fdatasync"])
def test_every_sync_ends_under_its_key(whole: bool, tmp_path: Path) -> None:
    """Syncs of many files, begun together, all end without a failure, each under the key that was given."""
    directory = OsDisk().open_root(tmp_path)
    files = [directory.open(f"f{number}", "create") for number in range(20)]
    for file in files:
        file.write(0, b"some bytes")
    syncs_or_skip().close()
    syncs = directory.syncs()
    assert syncs is not None

    begun = syncs.begin([(1000 + number, file) for number, file in enumerate(files)], whole=whole)
    ended: dict[int, OSError | None] = {}
    while len(ended) < begun:
        ended.update(syncs.ended(wait=True))
    syncs.close()

    assert ended == dict.fromkeys(range(1000, 1020))


def test_nothing_is_waited_for_without_being_asked() -> None:
    """Asked not to wait, a place without anything in flight gives nothing at once."""
    syncs = syncs_or_skip()

    ended = syncs.ended(wait=False)
    syncs.close()

    assert ended == []


def test_who_waits_waits_a_moment() -> None:
    """Waiting comes to its end when nothing ends for a while: others may have come who need not wait for that."""
    syncs = syncs_or_skip()

    ended = syncs.ended(wait=True)
    syncs.close()

    assert ended == []


def test_what_the_kernel_does_not_take_is_told(tmp_path: Path) -> None:
    """A descriptor that cannot be synced ends the run: those before it are begun, and their number is given."""
    good = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    syncs = syncs_or_skip()

    begun = syncs.start([(1, good), (2, good), (3, 999_999), (4, good)], whole=False)
    ended = all_of(syncs, begun)
    syncs.close()
    os.close(good)

    assert begun == 2
    assert ended == {1: None, 2: None}


FORKING = """
import os
from tokenstore.journal.kernel import KernelSyncs

KernelSyncs().close()
pid = os.fork()
if not pid:
    os._exit(len(KernelSyncs().ended(wait=False)))
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_forked_child_uses_none_of_its_parents() -> None:
    """A child of a fork makes a place of its own: the kernel does not know its parent's there."""
    syncs_or_skip().close()

    child = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, timeout=30, check=False)

    assert (child.returncode, child.stderr) == (0, b"")
