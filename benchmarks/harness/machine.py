"""Where it was measured. Nothing that names the machine or its folders: results are meant to be shown."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

PACKAGES = (
    "tokenstore",
    "anyio",
    "aiofiles",
    "attrs",
    "cattrs",
    "ujson",
    "trio",
    "uvloop",
    "aiosqlite",
    "lmdb",
    "orjson",
    "nemo-gym",
    "matplotlib",
)
"""Whose versions matter."""


def describe(folder: Path) -> dict[str, str]:
    """Say what the machine is, and what the file system of a folder is."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": file_system(folder, Path("/proc/self/mountinfo").read_text()),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "load before": load(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def load() -> str:
    """Average number of processes that wanted to run, over the last minute; the benchmark's own among them."""
    return f"{os.getloadavg()[0]:.2f}"


def file_system(folder: Path, mounts: str) -> str:
    """Tell the file system of a folder and how it is mounted.

    Args:
        folder: It must exist.
        mounts: The text of `/proc/self/mountinfo`.
    """
    best, found = -1, "unknown"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point, options = left.split()[4:6]
        if folder.resolve().is_relative_to(point) and len(point) >= best:  # the last of the same point is on top
            best, found = len(point), f"{right.split()[0]} ({options})"
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
