"""What a layer needs of the machine: it is skipped, with the reason, where that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def programs(*names: str) -> None:
    """Skip where a program is missing."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install strace xfsprogs libfaketime util-linux")


def root() -> None:
    """Skip where this is not root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


def loop_mounts() -> None:
    """Skip where no file can be mounted."""
    root()
    if not Path("/dev/loop-control").exists():
        pytest.skip("needs /dev/loop-control")


def namespaces() -> None:
    """Skip where nobody can mount a tmpfs of one's own."""
    programs("unshare")
    done = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs user namespaces: {done.stderr.decode().strip()}")


def faketime() -> str:
    """Find libfaketime, or skip."""
    found = [*Path("/usr/lib").glob("*/faketime/libfaketime.so.1")]
    if not found:
        pytest.skip("needs libfaketime: apt-get install libfaketime")
    return str(found[0])
