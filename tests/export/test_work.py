"""The files of an unfinished export: whatever cuts it off, nothing half is under the name, and the next run goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import pytest

from tokenstore.export import jsonl
from tokenstore.export.work import ExportBusyError, Stamp, Work
from tokenstore.testing.disks import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk

ROOT = Path("/exports")
PLAN = {"export": {"format": "jsonl"}}
NOW: dict[str, Stamp] = {"r1": ("open", 1, 10, False), "r2": ("open", 2, 20, False), "r3": ("frozen", 3, 30, True)}
LOG = ".out.progress"
WHOLE = b"r1 open\nr2 open\nr3 frozen\n"


def export(
    disk: Any, now: Mapping[str, Stamp] = NOW, plan: Mapping[str, Any] = PLAN, *, stop_after: int | None = None
) -> list[str]:
    """Export each rollout as a line in a part of its own, and name those that were written in this run."""
    work = Work(disk.open_root(ROOT), "out", plan)
    try:
        work.keep(now)
        done = {name for part in work.parts for name in part.rollouts}
        written = [name for name in now if name not in done][:stop_after]
        for name in written:
            work.add({name: now[name]}, 1, partial(write_line, f"{name} {now[name][0]}\n"))
        if stop_after is None:
            work.finish(jsonl.merge)
        return written
    finally:
        work.close()


def write_line(line: str, file: BufferedIOBase) -> None:
    """Write a part of one line."""
    file.write(line.encode())


def files(disk: SimulatedDisk) -> dict[str, bytes]:
    """Give what is in the directory."""
    return disk.files(ROOT)


def prepared() -> SimulatedDisk:
    """Make a disk on which an older export is under the name."""
    disk = SimulatedDisk()
    disk.write_file(ROOT / "out", b"older\n")
    return disk


def crashes() -> list[SimulatedDisk]:
    """Give the disk as it is before each step of an export."""
    found: list[SimulatedDisk] = []
    disk = SimulatedDisk(before_step=lambda _: found.append(disk.clone()))
    disk.write_file(ROOT / "out", b"older\n")
    found.clear()
    export(disk)
    return found


def test_a_finished_export_leaves_nothing_else() -> None:
    """The file is whole, and the hidden files are gone."""
    disk = prepared()

    export(disk)

    assert files(disk) == {"out": WHOLE}


@pytest.mark.parametrize("policy", PersistencePolicy)
def test_a_finished_export_is_durable(policy: PersistencePolicy) -> None:
    """When the run has returned, a power cut takes nothing away."""
    disk = prepared()

    export(disk)

    for seed in range(20 if policy.by_chance else 1):
        assert files(disk.after_crash(policy, seed=seed)) == {"out": WHOLE}


@pytest.mark.parametrize("policy", PersistencePolicy)
def test_power_cuts(policy: PersistencePolicy) -> None:
    """After a power cut at any step the older file or the whole new one is there, and the next run makes it whole.

    Unless it is whole already, the next run does again at most the part that was being written.
    """
    points = crashes()
    assert len(points) > 20

    for point in points:
        for seed in range(4 if policy.by_chance else 1):
            disk = point.after_crash(policy, seed=seed)
            assert files(disk)["out"] in (b"older\n", WHOLE)
            left = 0 if files(disk)["out"] == WHOLE else files(point).get(LOG, b"").count(b'"part"')

            again = export(disk)

            assert files(disk) == {"out": WHOLE}
            assert len(again) <= 4 - left


@pytest.mark.parametrize("hidden", [".out.part-000000", ".out.whole"])
def test_what_was_left_over_is_no_part(hidden: str) -> None:
    """A longer file at a hidden name, of a run of which nothing else is left, gives nothing to the new one."""
    disk = prepared()
    disk.write_file(ROOT / hidden, b"left over\n" * 100)

    export(disk)

    assert files(disk) == {"out": WHOLE}


@pytest.mark.parametrize("hole", [b"\0" * 300 + b"\n", b"\0" * 300, b'{"part":0,"roll'])
def test_a_log_with_a_hole(hole: bytes) -> None:
    """What stands behind a hole in the log does not count, and is cut off before the log goes on."""
    disk = prepared()
    export(disk, stop_after=2)
    plan, *lines = files(disk)[LOG].splitlines(keepends=True)
    disk.write_file(ROOT / LOG, plan + hole + b"".join(lines))

    written = export(disk, stop_after=1)

    assert written == ["r1"]
    assert files(disk)[LOG] == plan + lines[0]
    assert export(disk) == ["r2", "r3"]
    assert files(disk) == {"out": WHOLE}


def test_kills() -> None:
    """After a kill at any step the same holds, and what was in a whole part is not exported again."""
    again = []
    for point in crashes():
        disk = point.after_kill()
        assert files(disk)["out"] in (b"older\n", WHOLE)

        again.append(len(export(disk)))

        assert files(disk) == {"out": WHOLE}
    assert {0, 1, 2, 3} == set(again)


def test_a_power_cut_stops_everything() -> None:
    """A cut in the middle of a run is no success."""
    with pytest.raises(PowerCut):
        export(SimulatedDisk(crash_at=9))


@pytest.mark.parametrize("call", ["open", "write", "truncate", "sync", "directory_sync", "replace", "lock"])
def test_failing_disks(call: Any) -> None:
    """Whatever call fails, the run fails, the older file stays, and the next run goes on."""
    for at in range(1, 30):
        inner = prepared()
        disk = FailingDisk(inner, Fault(call=call, at=at))
        try:
            export(disk)
        except OSError:
            assert files(inner)["out"] in (b"older\n", WHOLE)
        finally:
            fired = disk.fired
        if not fired:
            break
        assert files(inner)["out"] == b"older\n" or call == "directory_sync"

        export(inner)

        assert files(inner) == {"out": WHOLE}
    assert at > 1


def test_a_full_disk_is_told_by_its_file() -> None:
    """A failed write, which itself names no file, names the one that was asked for: the store's disk is another."""
    work = Work(SimulatedDisk().open_root(ROOT), "out", PLAN)

    with pytest.raises(OSError, match="No space left") as caught:
        work.add({}, 0, full)

    assert caught.value.filename == "out"
    work.close()


def full(_: BufferedIOBase) -> None:
    """Fail as `pwrite` does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_rollout_that_changed_is_exported_again() -> None:
    """Parts with a rollout that is not what it was, or that is gone, are made anew."""
    disk = prepared()
    export(disk, stop_after=3)
    changed = {"r1": NOW["r1"], "r2": ("frozen", 9, 90, False)}

    written = export(disk, changed)

    assert written == ["r2"]
    assert files(disk) == {"out": b"r1 open\nr2 frozen\n"}


def test_another_export_begins_anew() -> None:
    """What another plan left is not gone on with, and removed."""
    disk = prepared()
    export(disk, stop_after=3)

    written = export(disk, plan={"export": {"format": "parquet"}})

    assert written == ["r1", "r2", "r3"]
    assert files(disk) == {"out": WHOLE}


def test_two_at_once_are_refused() -> None:
    """While one run is at work on a file, another is told so."""
    disk = SimulatedDisk()
    work = Work(disk.open_root(ROOT), "out", PLAN)

    with pytest.raises(ExportBusyError, match="out: another export to this file is running"):
        Work(disk.open_root(ROOT), "out", PLAN)

    work.close()
    assert export(disk) == ["r1", "r2", "r3"]
