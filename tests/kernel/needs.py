"""What a layer needs of the machine: where that is missing it is skipped, with the reason.

With TOKENSTORE_KERNEL=required, as in continuous integration, it fails instead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip; where nothing may be missing, as in continuous integration, fail."""
    if os.environ.get("TOKENSTORE_KERNEL") == "required":
        pytest.fail(f"{reason}, and TOKENSTORE_KERNEL=required allows no skip")
    pytest.skip(reason)


def programs(*names: str) -> None:
    """Skip where a program is missing."""
    absent = [name for name in names if shutil.which(name) is None]
    if absent:
        missing(f"needs {', '.join(absent)}: apt-get install strace xfsprogs fuse3 libfaketime util-linux")


def root() -> None:
    """Skip where this is not root."""
    if os.geteuid() != 0:
        missing("needs root")


def loop_mounts() -> None:
    """Skip where no file can be mounted."""
    root()
    if not Path("/dev/loop-control").exists():
        missing("needs /dev/loop-control")


def fuse() -> None:
    """Skip where no process can serve a file system."""
    root()
    if not Path("/dev/fuse").exists():
        pytest.skip("needs /dev/fuse, which not every machine gives away")
    programs("fusermount3")


@contextmanager
def mounts(*, copied: bool = False) -> Iterator[None]:
    """Keep those who unmount apart from those, in other workers, who copy all mounts into a namespace of their own.

    While there is a copy, a file system that was cut off and unmounted is not gone, and mounting it again gives the
    one that fails.
    """
    with (Path(tempfile.gettempdir()) / "tokenstore-tests-mounts").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if copied else fcntl.LOCK_SH)
        yield


def namespaces() -> None:
    """Skip where nobody can mount a tmpfs of one's own."""
    programs("unshare")
    done = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if done.returncode:
        missing(f"needs user namespaces: {done.stderr.decode().strip()}")


def faketime() -> str:
    """Find libfaketime, or skip."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not found:
        missing("needs libfaketime: apt-get install libfaketime")
    return str(found[0])
