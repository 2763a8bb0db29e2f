"""What a layer needs of the machine: where that is missing it is skipped, with the reason.

With TOKENSTORE_KERNEL=required, as in continuous integration, it fails instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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
