"""Syncs that many share: who waits for which, and whom a failure reaches."""

from __future__ import annotations

import errno
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from tests.journal.workbench import NAMES, ROOT, Process, calls
from tests.samples import entry
from tokenstore.config import StoreConfig
from tokenstore.errors import DurabilityError
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Put
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import SharedSync, Wish
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, SimulatedDisk


class Gate:
    """A sync that waits until it is let go on, and fails when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.failing: set[int] = set()
        self.syncs = 0

    def sync(self) -> None:
        """Make a sync."""
        self.syncs += 1
        number = self.syncs
        self.begun.release()
        assert self.go_on.acquire(timeout=30)
        if number in self.failing:
            raise OSError(errno.EIO, "Input/output error")


def outcome_in_thread(function: Callable[[], None], errors: list[Exception | None]) -> threading.Thread:
    """Run a function in a thread of its own, and note how it ended."""

    def run() -> None:
        try:
            function()
        except DurabilityError as error:
            errors.append(error)
        else:
            errors.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def journal_on(disk: FailingDisk | SimulatedDisk, rollout_id: str = "r") -> Journal:
    """A journal whose batches wait for syncs of the file system."""
    return Journal(Root(disk.open_root(ROOT), StoreConfig(sync="filesystem")), rollout_id)


def test_a_failure_voids_the_tickets_drawn_before() -> None:
    """Who wrote before a sync failed gets an error, also if the next one succeeds: it may have lost those bytes."""
    gate, errors = Gate(), list[Exception | None]()
    gate.failing = {1}
    sync = SharedSync(gate.sync, "the disk")
    early, late = sync.ticket(), sync.ticket()
    first = outcome_in_thread(lambda: sync.wait(early), errors)
    assert gate.begun.acquire(timeout=30)
    second = outcome_in_thread(lambda: sync.wait(late), errors)
    gate.go_on.release(2)
    first.join()
    second.join()

    assert all(isinstance(error, DurabilityError) for error in errors)
    assert len(errors) == 2


def test_a_ticket_drawn_after_a_failure_is_good() -> None:
    """What is written after a sync has failed can be made durable by the next one."""
    gate = Gate()
    gate.failing = {1}
    gate.go_on.release(2)
    sync = SharedSync(gate.sync, "the disk")

    with pytest.raises(DurabilityError, match="the disk"):
        sync.wait(sync.ticket())
    sync.wait(sync.ticket())


def test_a_sync_that_breaks_off_counts_as_failed() -> None:
    """Whatever ends a sync, also what no disk says, fails those who wait for it and voids the tickets."""
    breaking = True

    def make() -> None:
        if breaking:
            raise MemoryError

    sync = SharedSync(make, "the disk")
    ticket = sync.ticket()

    with pytest.raises(DurabilityError, match="MemoryError"):
        sync.wait()
    breaking = False
    sync.wait()
    with pytest.raises(DurabilityError):
        sync.wait(ticket)


def test_a_failure_keeps_nothing_alive() -> None:
    """What the sections whose sync failed held in memory goes with them, though the failure is remembered."""
    root = Root(
        FailingDisk(SimulatedDisk(), Fault(call="filesystem_sync")).open_root(ROOT), StoreConfig(sync="filesystem")
    )
    put = Put(entry("c0"))
    journal = Journal(root, "r")
    with pytest.raises(DurabilityError):
        journal.finish(journal.committing([put]))
    gone = weakref.ref(put)
    del put
    gc.collect()

    assert gone() is None


def test_batches_of_many_rollouts_share_one_sync() -> None:
    """Sections that have written and wish for a sync are all made durable by one."""
    disk = SimulatedDisk()
    root = Root(disk.open_root(ROOT), StoreConfig(sync="filesystem"))
    journals = {name: Journal(root, name) for name in "abc"}
    sections = [journals[name].committing([Put(entry("c0", rollout_id=name))]) for name in "abc"]

    wishes = [next(section) for section in sections]
    before = root.counters.fsyncs
    root.fulfil_all(wishes)
    shared = root.counters.fsyncs - before
    assert [next(section, None) for section in sections] == [None, None, None]

    assert shared == 1
    left = disk.after_crash(PersistencePolicy.SYNCED)
    other = Root(left.open_root(ROOT), StoreConfig())
    assert [calls(Journal(other, name).peek()) for name in "abc"] == [["c0"]] * 3


def test_a_failed_sync_of_the_file_system_is_cut_back() -> None:
    """All sections whose sync failed take their lines back, and the same puts succeed afterwards."""
    disk = FailingDisk(SimulatedDisk(), Fault(call="filesystem_sync"))
    journal = journal_on(disk)

    with pytest.raises(DurabilityError):
        journal.finish(journal.committing([Put(entry("c0"))]))
    cut_back = disk.inner.read_file(ROOT / NAMES.tokens) if isinstance(disk.inner, SimulatedDisk) else None
    journal.finish(journal.committing([Put(entry("c0"))]))

    assert cut_back == b""
    assert isinstance(disk.inner, SimulatedDisk)
    assert calls(Process(disk.inner.after_crash(PersistencePolicy.SYNCED)).peek()) == ["c0"]


def test_a_wish_holds_its_lock() -> None:
    """Until its wish is fulfilled a section keeps others out, so that cutting back is safe."""
    disk = SimulatedDisk()
    section = journal_on(disk).committing([Put(entry("c0"))])
    wish = next(section)

    assert isinstance(wish, Wish)
    lock = disk.open_root(ROOT).open(NAMES.lock, "write")
    assert not lock.lock(exclusive=True)
    wish.failure = DurabilityError("sync", "the disk", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(DurabilityError):
        next(section)
    assert lock.lock(exclusive=True)
