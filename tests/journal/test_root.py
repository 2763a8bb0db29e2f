"""What journals share: one sync of the directory for many, a budget of descriptors, errors that say what failed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from tests.journal.workbench import ROOT, RecordingDisk
from tokenstore.config import StoreConfig
from tokenstore.errors import CorruptRolloutError, DurabilityError
from tokenstore.journal import root as root_module
from tokenstore.journal.disk import Disk
from tokenstore.journal.root import BUSY_SECONDS, Counters, HandleBudget, Root, durable, share_descriptors
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk


class StoppableDisk(SimulatedDisk):
    """A disk whose next sync of a directory waits until it is let go on."""

    def __init__(self) -> None:
        super().__init__(before_step=self._wait)
        self.waiting = threading.Event()
        self.go_on = threading.Event()
        self.syncs = 0

    def _wait(self, step: str) -> None:
        if step.startswith("directory_sync"):
            self.syncs += 1
            if self.syncs == 1:
                self.waiting.set()
                assert self.go_on.wait(30)


def root_on(disk: Disk) -> Root:
    """Open the root on a disk."""
    return Root(disk.open_root(ROOT), StoreConfig())


class Threads:
    """Runs functions in threads of their own and gathers what they raise."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def start(self, function: Callable[[], object]) -> None:
        """Run a function in a new thread."""

        def run() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> None:
        """Wait for all."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()


class TestSyncing:
    """One sync of the directory serves all who came before it began."""

    def test_each_sync_alone_is_one(self) -> None:
        """Without company each call is a sync of its own."""
        disk = RecordingDisk(SimulatedDisk())
        root = root_on(disk)
        for _ in range(3):
            root.sync()

        assert disk.take_calls() == ["sync directory"] * 3
        assert root.counters.fsyncs == 3

    def test_who_waits_shares_the_next_one(self) -> None:
        """All who come while a sync is running are served by later ones, since that one may have begun too early."""
        disk = StoppableDisk()
        root = root_on(disk)
        threads = Threads()
        threads.start(root.sync)
        assert disk.waiting.wait(30)
        arrived = threading.Barrier(6)

        def sync() -> None:
            arrived.wait(30)
            root.sync()

        for _ in range(5):
            threads.start(sync)
        arrived.wait(30)
        disk.go_on.set()
        threads.join()

        assert threads.errors == []
        assert 2 <= disk.syncs <= 6
        assert root.counters.fsyncs == disk.syncs

    def test_a_failure_is_for_all_who_waited_and_no_longer(self) -> None:
        """A failed sync raises, and the next one is a new one, since names live in the file system's journal."""
        root = root_on(FailingDisk(SimulatedDisk(), Fault(call="directory_sync", errno=errno.EIO)))

        with pytest.raises(DurabilityError, match="sync of the store's directory failed") as failure:
            root.sync()
        assert failure.value.errno == errno.EIO
        root.sync()

    def test_counters_can_be_shared(self) -> None:
        """Two hosts of one store count together."""
        counters = Counters()
        for _ in range(2):
            Root(SimulatedDisk().open_root(ROOT), StoreConfig(), counters).sync()

        assert counters.fsyncs == 2


class KeptJournal:
    """A journal that keeps some descriptors and counts how often they were taken; a busy one keeps them."""

    def __init__(self, open_files: int, *, busy: bool = False) -> None:
        self.open_files = open_files
        self.taken = 0
        self.busy = busy

    def try_release(self) -> bool:
        """Close them unless busy."""
        if self.busy:
            return False
        self.taken += 1
        self.open_files = 0
        return True


class EndingJournal(KeptJournal):
    """A journal of which a section ends just before its descriptors are taken."""

    def __init__(self, open_files: int, budget: HandleBudget) -> None:
        super().__init__(open_files)
        self._budget = budget

    def try_release(self) -> bool:
        """End the section with two descriptors, and close them."""
        self.open_files = 2
        self._budget.keep(self)
        return super().try_release()


class Clock:
    """Tells a time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that stands still, in place of the machine's."""
    clock = Clock()
    monkeypatch.setattr(root_module, "monotonic", clock)
    return clock


class TestHandles:
    """The journals used last keep their descriptors."""

    def test_within_the_limit_all_are_kept(self) -> None:
        """Nothing is closed as long as all together stay within the limit."""
        budget = HandleBudget(10)
        journals = [KeptJournal(5), KeptJournal(5)]
        for journal in journals * 3:
            budget.keep(journal)

        assert budget.total == 10
        assert [journal.taken for journal in journals] == [0, 0]

    def test_the_least_recently_used_goes_first(self, clock: Clock) -> None:
        """Above the limit, those that were not used for the longest time are closed, as many as needed."""
        budget = HandleBudget(10)
        first, second, third, big = (KeptJournal(count) for count in (3, 3, 3, 6))
        for journal in (first, second, third, first):
            budget.keep(journal)
        clock.now += BUSY_SECONDS
        budget.keep(big)

        assert [journal.taken for journal in (first, second, third, big)] == [0, 1, 1, 0]
        assert budget.total == 9

    def test_more_than_have_a_place_take_turns_and_most_keep_theirs(self, clock: Clock) -> None:
        """Where all are used again and again, those that have a place keep it, and one that is left alone loses it."""
        budget = HandleBudget(6)
        journals = [KeptJournal(2) for _ in range(4)]
        for _ in range(5):
            for journal in journals:
                journal.open_files = 2
                budget.keep(journal)
                clock.now += BUSY_SECONDS / 8
        assert [journal.taken for journal in journals] == [0, 0, 0, 5]
        clock.now += BUSY_SECONDS
        for journal in (journals[1], journals[3]):
            journal.open_files = 2
            budget.keep(journal)

        assert [journal.taken for journal in journals] == [1, 0, 0, 5]
        assert budget.total == 6

    def test_a_busy_journal_keeps_its_own(self, clock: Clock) -> None:
        """A running section is not waited for; what it holds is counted again when it ends."""
        budget = HandleBudget(4)
        busy, other = KeptJournal(3, busy=True), KeptJournal(3)
        budget.keep(busy)
        clock.now += BUSY_SECONDS
        budget.keep(other)
        assert budget.total == 6
        busy.busy = False
        clock.now += BUSY_SECONDS
        budget.keep(busy)

        assert budget.total == 3
        assert other.taken == 1

    def test_a_section_that_ends_before_its_files_are_taken_counts_for_nothing(self, clock: Clock) -> None:
        """A journal that notes its files after it was chosen, and then loses them, is not counted with them."""
        budget = HandleBudget(4)
        ending, other = EndingJournal(3, budget), KeptJournal(2)
        budget.keep(ending)
        clock.now += BUSY_SECONDS
        budget.keep(other)

        assert (ending.taken, ending.open_files) == (1, 0)
        assert budget.total == other.open_files

    def test_one_journal_above_the_limit_gives_its_own(self) -> None:
        """A limit below what one journal holds leaves none kept, and the journal works on."""
        budget = HandleBudget(1)
        journal = KeptJournal(4)
        budget.keep(journal)

        assert (budget.total, journal.taken) == (0, 1)

    def test_who_keeps_nothing_is_not_known(self) -> None:
        """A journal that was closed, or holds nothing, does not count."""
        budget = HandleBudget(10)
        journal = KeptJournal(5)
        budget.keep(journal)
        journal.open_files = 0
        budget.keep(journal)
        assert budget.total == 0
        budget.forget(journal)
        assert budget.total == 0

    @pytest.mark.parametrize("limit", [0, 20, 64, 256, 1024, 2**63])
    def test_descriptors_are_shared_out(self, limit: int) -> None:
        """What is kept and what runs at once fit into the process's limit, if it is one to live with."""
        kept, sections = share_descriptors(limit)

        assert sections >= 1
        assert kept >= 0
        assert limit < 64 or kept + 6 * sections < limit


class TestErrors:
    """An error of the operating system says what failed."""

    def test_an_os_error_becomes_a_durability_error(self) -> None:
        """The error names operation, file and reason, and keeps its cause."""
        cause = OSError(errno.ENOSPC, "No space left on device")

        with (
            pytest.raises(DurabilityError, match=r"write of f failed: No space left on device") as failure,
            durable("write", "f"),
        ):
            raise cause
        assert failure.value.__cause__ is cause

    @pytest.mark.parametrize("error", [CorruptRolloutError("f", "x"), ValueError("x"), KeyboardInterrupt()])
    def test_other_errors_pass(self, error: BaseException) -> None:
        """What is no error of the operating system, or one of ours already, passes as it is."""
        with pytest.raises(type(error)) as passed, durable("write", "f"):
            raise error
        assert passed.value is error

    def test_one_of_ours_that_is_an_os_error_passes(self) -> None:
        """An error that says already what failed is not wrapped again."""
        inner = DurabilityError("sync", "g", OSError(errno.EIO, "x"))

        with pytest.raises(DurabilityError) as passed, durable("write", "f"):
            raise inner
        assert passed.value is inner
