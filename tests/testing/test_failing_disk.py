"""The failing disk fails the calls it was told to, and no others."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.testing.simulations import ROOT, ClosingDisk, all_outcomes
from tokenstore.journal.disk import Directory, Disk, File
from tokenstore.testing.disks import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk
from tokenstore.testing.failing_disk import CALLS, Call

Action: TypeAlias = Callable[[Directory, File], object]
ACTIONS: dict[str, Action] = {
    "open": lambda root, _: root.open("log", "create"),
    "create_temporary": lambda root, _: root.create_temporary("log"),
    "stat": lambda root, _: root.stat("log"),
    "replace": lambda root, _: root.replace("log", "log"),
    "unlink": lambda root, _: root.unlink("log"),
    "names": lambda root, _: list(root.names()),
    "directory_sync": lambda root, _: root.sync(),
    "filesystem_sync": lambda root, _: root.sync_filesystem(),
    "read": lambda _, file: file.read(0, 1),
    "write": lambda _, file: file.write(0, b"x"),
    "truncate": lambda _, file: file.truncate(0),
    "datasync": lambda _, file: file.datasync(),
    "sync": lambda _, file: file.sync(),
    "file_stat": lambda _, file: file.stat(),
    "lock": lambda _, file: file.lock(exclusive=True),
    "unlock": lambda _, file: file.unlock(),
    "close": lambda _, file: file.close(),
}


@pytest.fixture(params=["real", "simulated"])
def inner(request: pytest.FixtureRequest) -> Iterator[Disk]:
    """Make each of the disks to be wrapped."""
    if request.param == "simulated":
        yield SimulatedDisk()
        return
    with closing(ClosingDisk()) as disk:
        yield disk


@pytest.mark.parametrize("call", sorted(ACTIONS))
def test_fails_the_chosen_call_once(call: Call, inner: Disk, tmp_path: Path) -> None:
    """The k-th call raises the chosen error; those before and after it do their work."""
    disk = FailingDisk(inner)
    root = disk.open_root(tmp_path)
    file = root.open("log", "create")
    disk.fault = Fault(call=call, at=2, errno=errno.ENOSPC)

    ACTIONS[call](root, file)
    assert not disk.failures
    with pytest.raises(OSError, match="No space left") as failure:
        ACTIONS[call](root, file)
    if call != "unlink":
        ACTIONS[call](root, file)
    assert failure.value.errno == errno.ENOSPC
    assert disk.fired
    assert len(disk.failures) == 1


@pytest.mark.parametrize("call", sorted(ACTIONS))
def test_fails_for_ever_until_healed(call: Call, inner: Disk, tmp_path: Path) -> None:
    """With `repeat` the k-th call and all after it raise, until the fault is taken away; other calls work."""
    disk = FailingDisk(inner)
    root = disk.open_root(tmp_path)
    file = root.open("log", "create")
    disk.fault = Fault(call=call, repeat=True)

    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            ACTIONS[call](root, file)
    assert disk.matched == len(disk.failures) == 3
    if call != "close":
        for other in ACTIONS.keys() - {call, "close", "unlink"}:
            ACTIONS[other](root, file)
    disk.fault = None
    ACTIONS[call](root, file)


def test_every_call_can_fail() -> None:
    """The table of these tests has every call but the opening of the root, which has a test of its own."""
    assert ACTIONS.keys() | {"open_root"} == CALLS


def test_the_root_cannot_be_opened(inner: Disk, tmp_path: Path) -> None:
    """A failing `open_root` makes nothing."""
    disk = FailingDisk(inner, Fault(call="open_root", errno=errno.EROFS))

    with pytest.raises(OSError, match="Read-only"):
        disk.open_root(tmp_path / "root")
    assert not (tmp_path / "root").exists()
    assert list(disk.open_root(tmp_path / "root").names()) == []


def test_a_failing_call_has_no_effect(inner: Disk, tmp_path: Path) -> None:
    """What failed was not done."""
    disk = FailingDisk(inner)
    root = disk.open_root(tmp_path)
    file = root.open("log", "create")
    file.write(0, b"kept")
    failing: tuple[Call, ...] = ("open", "create_temporary", "replace", "unlink", "write", "truncate", "lock")
    actions: dict[str, Action] = {**ACTIONS, "open": lambda root, _: root.open("new", "create")}

    for call in failing:
        disk.fault = Fault(call=call)
        with pytest.raises(OSError, match="Input/output error"):
            actions[call](root, file)
    disk.fault = None
    assert list(root.names()) == ["log"]
    assert file.read(0, 9) == b"kept"
    assert root.open("log", "write").lock(exclusive=True)


def test_a_failed_close_has_closed(inner: Disk, tmp_path: Path) -> None:
    """A close that raises frees the descriptor and its lock all the same."""
    root = FailingDisk(inner, Fault(call="close")).open_root(tmp_path)
    file = root.open("log", "create")
    file.lock(exclusive=True)

    with pytest.raises(OSError, match="Input/output error"):
        file.close()
    assert root.open("log", "write").lock(exclusive=True)


def test_a_short_write_lets_some_bytes_in(inner: Disk, tmp_path: Path) -> None:
    """A short write takes the first bytes and raises nothing; a write that is no longer than that is whole."""
    disk = FailingDisk(inner, Fault(call="write", short=7, repeat=True))
    file = disk.open_root(tmp_path).open("log", "create")

    assert file.write(0, b"0123456789") == 7
    assert file.write(7, memoryview(b"789")) == 3
    assert file.read(0, 99) == b"0123456789"
    assert disk.failures == ["write log", "write log"]


def test_counts_only_names_that_end_so(inner: Disk, tmp_path: Path) -> None:
    """With a suffix, calls on other names neither fail nor count; a replace goes by its target."""
    disk = FailingDisk(inner, Fault(call="datasync", at=2, name_suffix=".jsonl"))
    root = disk.open_root(tmp_path)
    lines, other = root.open("r.jsonl", "create"), root.open("r.intents", "create")

    for file in (lines, other, other):
        file.datasync()
    assert (disk.matched, disk.calls["datasync"], disk.fired) == (1, 3, False)
    with pytest.raises(OSError, match=r"r\.jsonl"):
        lines.datasync()
    assert disk.failures == ["datasync r.jsonl"]
    disk.fault = Fault(call="replace", name_suffix=".jsonl")
    root.replace("r.jsonl", "r.old")
    with pytest.raises(OSError, match=r"r\.jsonl"):
        root.replace("r.intents", "r.jsonl")


def test_counts_without_a_fault(tmp_path: Path) -> None:
    """Without a fault it only counts, so that a search knows how many calls there are to fail."""
    disk = FailingDisk(SimulatedDisk())
    root = disk.open_root(tmp_path)
    for _ in range(3):
        root.open("log", "create").close()

    assert disk.calls == {"open_root": 1, "open": 3, "close": 3}
    assert not disk.fired


def test_two_faults_by_wrapping_twice(tmp_path: Path) -> None:
    """A short write with the next one out of space is two failing disks, one over the other."""
    outer = Fault(call="write", at=2, errno=errno.ENOSPC)
    disk = FailingDisk(FailingDisk(SimulatedDisk(), Fault(call="write", short=3)), outer)
    file = disk.open_root(tmp_path).open("log", "create")

    assert file.write(0, b"whole") == 3
    with pytest.raises(OSError, match="No space left"):
        file.write(3, b"le")


def test_a_cut_passes_through(tmp_path: Path) -> None:
    """A power cut of the disk below is seen by who uses the failing one."""
    root = FailingDisk(SimulatedDisk(crash_at=2)).open_root(tmp_path)

    with pytest.raises(PowerCut):
        root.open("log", "create")


@pytest.mark.parametrize("call", ["datasync", "sync"])
@pytest.mark.parametrize("wraps", [1, 2])
def test_a_failed_sync_forgets_what_was_dirty(call: Call, wraps: int) -> None:
    """After a failed sync the next one succeeds and makes only what was written since durable."""
    simulated = SimulatedDisk()
    disk: Disk = simulated
    for fault in [Fault(call=call, at=2), None][:wraps]:
        disk = FailingDisk(disk, fault)
    root = disk.open_root(ROOT)
    file = root.open("log", "create")
    root.sync()
    file.write(0, b"kept ")
    ACTIONS[call](root, file)
    file.write(5, b"lost ")
    with pytest.raises(OSError, match="Input/output error"):
        ACTIONS[call](root, file)
    file.write(10, b"again")

    ACTIONS[call](root, file)
    assert file.read(0, 99) == b"kept lost again"
    assert all_outcomes(simulated) == {b"kept \0\0\0\0\0again"}


def test_a_failed_directory_sync_forgets_nothing() -> None:
    """Names are still there for the next sync of the directory, which makes them durable."""
    simulated = SimulatedDisk()
    root = FailingDisk(simulated, Fault(call="directory_sync")).open_root(ROOT)
    root.open("log", "create")

    with pytest.raises(OSError, match="Input/output error"):
        root.sync()
    assert simulated.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {}
    root.sync()
    assert simulated.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"log": b""}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"call": "fsync"}, "Fault.call is 'fsync', one of close, create_temporary"),
        ({"at": 0}, "Fault.at is 0, an int from 1 on"),
        ({"at": True}, "Fault.at is True"),
        ({"errno": 99999}, "Fault.errno is 99999, a code of the errno module"),
        ({"short": 0}, "Fault.short is 0, an int from 1 on"),
        ({"call": "read", "short": 7}, "only a write can be short, not read"),
    ],
)
def test_a_wrong_fault_is_refused(wrong: dict[str, Any], message: str) -> None:
    """A fault that cannot be is a ValueError that names the field and what is allowed."""
    with pytest.raises(ValueError, match=message):
        Fault(**{"call": "write", **wrong})
