"""The lock is held inside one critical section, is the one at its path, and never stays behind."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal.workbench import LOCK, NAMES, ROOT, Process, calls
from tests.samples import entry
from tokenstore import StoreConfig
from tokenstore.errors import DurabilityError
from tokenstore.journal.disk import Access, OsDisk
from tokenstore.journal.journal import Journal
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.journal.requests import Put
from tokenstore.journal.root import Root
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk
from tokenstore.testing.simulated_files import SimulatedDirectory, SimulatedFile


def is_free(disk: SimulatedDisk) -> bool:
    """Tell whether another process could take the rollout's lock."""
    lock = disk.open_root(ROOT).open(NAMES.lock, "create")
    try:
        return lock.lock(exclusive=True)
    finally:
        lock.close()


OPERATIONS: dict[str, Callable[[Process], object]] = {
    "put": lambda process: process.put(entry("new")),
    "begin": lambda process: process.begin("new"),
    "refuse": lambda process: process.refuse("new"),
    "mark": lambda process: process.mark("new"),
    "freeze": Process.freeze,
    "peek": Process.peek,
    "is_incomplete": lambda process: process.journal.is_incomplete(),
    "cursor": lambda process: process.journal.open_cursor(),
    "drop": lambda process: process.drop("s", 1),
    "fence": Process.fence,
    "remove_records": lambda process: process.journal.remove_records(),
    "remove_fence": lambda process: process.journal.remove_fence(),
    "remove_lock": lambda process: process.journal.remove_lock(),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_the_lock_is_given_back(operation: Callable[[Process], object]) -> None:
    """After any operation the lock is free."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"))
    operation(process)

    assert is_free(disk)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_held_lock_changes_nothing(operation: Callable[[Process], object]) -> None:
    """While another holds the lock an operation does nothing but say so, and holds no descriptor of it."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"))
    held = disk.open_root(ROOT).open(NAMES.lock, "create")
    held.lock(exclusive=True)
    before = disk.files(ROOT)

    for _ in range(3):
        with pytest.raises(LockBusyError):
            operation(process)
    assert disk.files(ROOT) == before
    assert not process.journal._files.lock.is_open
    held.close()
    operation(process)


@pytest.mark.parametrize(
    "call", ["stat", "open", "file_stat", "lock", "read", "write", "datasync", "directory_sync", "sync"]
)
@pytest.mark.parametrize("operation", ["put", "mark", "freeze", "peek", "fence", "drop"])
def test_the_lock_is_given_back_after_a_failure(operation: str, call: str) -> None:
    """Whatever call fails inside a section, the lock is free afterwards, and the operation works when it is over."""
    for at in range(1, 9):
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        process = Process(disk)
        process.put(entry("c0"))
        disk.fault = Fault(call=call, at=at)  # type: ignore[arg-type]
        try:
            OPERATIONS[operation](process)
        except DurabilityError:
            assert disk.fired
        disk.fault = None
        assert is_free(simulated), f"{call} {at}"
        OPERATIONS[operation](process)


def test_a_failing_unlock_closes_the_lock() -> None:
    """If the lock cannot be given back, closing its descriptor gives it back."""
    simulated = SimulatedDisk()
    process = Process(FailingDisk(simulated, Fault(call="unlock", repeat=True)))
    process.put(entry("c0"))

    assert is_free(simulated)
    process.put(entry("c1"))
    assert calls(process.peek()) == ["c0", "c1"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_an_error(code: int) -> None:
    """A lock that cannot be had at all is an error that names the file, never a mode without locks."""
    simulated = SimulatedDisk()
    process = Process(FailingDisk(simulated, Fault(call="lock", errno=code, repeat=True)))

    with pytest.raises(DurabilityError, match=r"locking of r\.tokens\.lock failed"):
        process.put(entry("c0"))
    assert NAMES.tokens not in simulated.files(ROOT)


def test_a_lock_file_that_was_removed_is_made_anew() -> None:
    """A process that keeps the descriptor of a removed lock file notices, and locks the one at the path."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.put(entry("c0"))
    disk.open_root(ROOT).unlink(NAMES.lock)
    process.put(entry("c1"))

    assert disk.read_file(LOCK) == b""
    held = disk.open_root(ROOT).open(NAMES.lock, "create")
    held.lock(exclusive=True)
    with pytest.raises(LockBusyError):
        process.put(entry("c2"))


class LockThief(SimulatedDirectory):
    """A directory in which the lock file is replaced between opening and locking, some times."""

    times = 0

    def open(self, name: str, access: Access) -> SimulatedFile:
        """Open a file, and put another one in its place."""
        file = super().open(name, access)
        if name == NAMES.lock and self.times:
            self.times -= 1
            self.unlink(name)
            super().open(name, "create").close()
        return file


class ThievishDisk(SimulatedDisk):
    """A disk on which somebody deletes and makes the rollout again and again."""

    def open_root(self, path: Path) -> SimulatedDirectory:
        """Open a root."""
        return LockThief(self, self._root(path))


@pytest.mark.parametrize(("times", "busy"), [(1, False), (7, False), (8, True), (99, True)])
def test_a_lock_file_replaced_under_our_hands_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, times: int, busy: bool
) -> None:
    """The lock of a file that is not at its path any more is the lock of nothing; after eight we wait like others."""
    process = Process(ThievishDisk())
    monkeypatch.setattr(LockThief, "times", times)

    if busy:
        with pytest.raises(LockBusyError):
            process.put(entry("c0"))
    else:
        process.put(entry("c0"))


@pytest.mark.parametrize("warm", [False, True])
def test_a_store_whose_directory_is_gone_says_so_at_once(warm: bool, tmp_path: Path) -> None:
    """Where no lock file can be made any more, nobody holds the lock, and nothing is waited for."""
    root = Root(OsDisk().open_root(tmp_path / "store"), StoreConfig())
    journal = Journal(root, "r")
    if warm:
        journal.finish(journal.committing([Put(entry("c0"))]))
    shutil.rmtree(tmp_path / "store")

    with pytest.raises(DurabilityError, match=r"locking of .* failed: No such file") as failure:
        journal.finish(journal.committing([Put(entry("c1"))]))
    assert failure.value.errno == errno.ENOENT
    journal.close()


def test_descriptors_can_be_taken_away_between_sections() -> None:
    """A journal without descriptors opens them again and knows its files by their last lines."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.begin("c0", "c1", "open")
    process.put(entry("c0"))
    process.mark("m")
    for do in (lambda: process.put(entry("c1")), process.peek, process.freeze, process.peek):
        process.release()
        assert process.journal._files.open_files == 0
        do()

    assert process.peek() == Process(disk).peek()
    assert process.peek().version == 4


def test_a_running_section_keeps_its_descriptors() -> None:
    """Descriptors are not taken out of a section's hands."""
    process = Process(SimulatedDisk())
    process.put(entry("c0"))

    with process.journal._files.exclusive():
        assert process.journal._files.try_release() is False
    assert process.journal._files.try_release() is True


def test_the_budget_takes_from_the_one_that_waited_longest() -> None:
    """With a small budget the journal used last keeps its descriptors, and another's use is not disturbed."""
    process = Process(SimulatedDisk(), max_open_files=3)
    process.put(entry("c0"))
    first = process.journal._files.open_files
    process.begin("c1")

    assert process.root.handles.total <= 3
    assert first <= 3
    process.put(entry("c1"))
    assert calls(process.peek()) == ["c0", "c1"]


def test_a_reader_makes_no_lock_file_and_a_writer_after_it_does() -> None:
    """The same journal reads without a lock where none is, and takes one as soon as it writes."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.peek()
    assert disk.files(ROOT) == {}
    process.put(entry("c0"))
    process.peek()
    process.put(entry("c1"))

    assert disk.files(ROOT).keys() == {NAMES.tokens, NAMES.lock}
