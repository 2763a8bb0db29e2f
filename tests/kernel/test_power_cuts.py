"""Power cuts on real file systems: a loop mount whose ioctl drops all that is not synced, under load, and holes."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cases.given import own, rec
from tests.children import entry, opened, start
from tests.kernel import needs
from tokenstore.testing import first_difference

SHUTDOWN = 0x8004587D
"""The ioctl that ext4, xfs and f2fs share; 2 means without flushing the log."""
FORMATS = {"ext4": ("mkfs.ext4", "-qF"), "xfs": ("mkfs.xfs", "-qf")}


class Mount:
    """A file system in a file, whose power can be cut."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.image, self.path = folder / "image", folder / "mounted"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(320 * 1024 * 1024)
        subprocess.run([*FORMATS[kind], self.image], check=True, capture_output=True)
        self.mount()

    def mount(self) -> None:
        """Make the file system be there, recovered by its log."""
        subprocess.run(["mount", "-o", "loop", self.image, self.path], check=True)

    def unmount(self) -> None:
        """Take it away."""
        subprocess.run(["umount", self.path], check=True)

    def cut(self) -> None:
        """Drop all that is not synced, with everything failing from now on until `restart`."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", 2))
        finally:
            os.close(fd)

    def restart(self) -> None:
        """Mount again what the cut has left."""
        self.unmount()
        self.mount()


@pytest.fixture(params=FORMATS)
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mount]:
    """A file system of each kind, on a loop device."""
    needs.loop_mounts()
    needs.programs(FORMATS[request.param][0])
    with needs.mounts():
        mount = Mount(tmp_path, request.param)
        yield mount
        # Lazily, whatever a failed test has left open: pytest removes old folders, and must not find a mount in one.
        subprocess.run(["umount", "-l", mount.path], check=True)


def _cuts_under_load(mounted: Mount, cuts: int, seed: int) -> None:
    """Cut the power of a writer at random times, and hold what is left to what was acknowledged."""
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)  # noqa: S311 - replayable, not secret
    root, acked = mounted.path / "root", set[str]()
    for life in range(cuts):
        with start("put_batches", root, f"l{life}n", 400, 4) as child:
            said = [child.line() for _ in range(chance.randrange(1, 60))]
            child.stop()
            mounted.cut()
            child.process.kill()
            said += child.last_words()[1]
        acked |= {line.split()[1] for line in said if line.startswith("acked")}
        mounted.restart()
        with opened(root) as store:
            there = {each.model_call_id: each for each in store.read_entries("r")}
        assert acked - there.keys() == set()
        for call_id, each in there.items():
            assert first_difference(entry("r", call_id, number=int(call_id.split("n")[-1])), each) is None
    print(f"{cuts} cuts, {len(acked)} acked, {len(there)} there")  # noqa: T201


def test_a_power_cut_loses_nothing_acked(mounted: Mount) -> None:
    """Two power cuts under load lose nothing of what was acknowledged, on ext4 and on xfs."""
    _cuts_under_load(mounted, 2, seed=3)


@pytest.mark.kernel
@pytest.mark.timeout(300)
def test_twenty_power_cuts_lose_nothing_acked(mounted: Mount) -> None:
    """The same twenty times."""
    _cuts_under_load(mounted, 20, seed=4)


def test_a_hole_inside_a_batch_costs_its_own_lines_alone(mounted: Mount) -> None:
    """Where a cut leaves NULs between lines, the valid lines before and behind are delivered, and the hole masks."""
    root = mounted.path / "root"
    with opened(root) as store:
        store.append(entry("r", "c0"))
        path = store.path_for("r")
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("ab", buffering=0) as file, (root / "other").open("wb", buffering=0) as other:
        before = file.tell()
        file.write(b"".join(own(number, extra_text="A" * 900) + b"\n" for number in range(1, 2000)))
        half = (file.tell() - before) // 2
        assert libc.sync_file_range(file.fileno(), ctypes.c_int64(before + half), ctypes.c_int64(half), 7) == 0
        other.write(rec(1))
        os.fsync(other.fileno())
        mounted.cut()
    mounted.restart()
    nuls = path.read_bytes().count(0)

    with opened(root) as store:
        snapshot = store.freeze_now("r")

    assert nuls > 0, "the recipe left no hole"
    calls = [each.model_call_id for each in snapshot.entries]
    assert calls[0] == "c0"
    assert len(calls) > 500
    assert "c1998" in calls
    assert [reason for reason in snapshot.incomplete_reasons if not reason.startswith("damaged:")] == []
    assert snapshot.incomplete
