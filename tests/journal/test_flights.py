"""Wishes on their way: each is fulfilled once, by its own sync, with its own failure."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from tokenstore.config import StoreConfig
from tokenstore.errors import DurabilityError
from tokenstore.journal.disk import Directory, File
from tokenstore.journal.flights import KernelFlight, SharedFlight, flight_for
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Wish
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

ROOT = Path("/root-of-the-store")


class PlayedSyncs:
    """Syncs that end when the test says so."""

    size = 4

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.kinds: list[bool] = []
        self.takes = self.size
        self.outcomes: list[list[tuple[int, OSError | None]]] = []
        self.broken: OSError | None = None
        self.closed = False

    def begin(self, files: Sequence[tuple[int, File]], *, whole: bool) -> int:
        """Take the first ones."""
        taken = [key for key, _ in files][: self.takes]
        self.keys += taken
        self.kinds += [whole] * len(taken)
        return len(taken)

    def end(self, *ended: tuple[int, OSError | None]) -> None:
        """Have some of those that were begun, by their number, end together."""
        self.outcomes.append([(self.keys[number], failure) for number, failure in ended])

    def ended(self, *, wait: bool) -> list[tuple[int, OSError | None]]:
        """Give those that end next."""
        if self.broken:
            raise self.broken
        assert self.outcomes or not wait, "this would wait for ever"
        return self.outcomes.pop(0) if self.outcomes else []

    def close(self) -> None:
        """Take note."""
        self.closed = True


def setting(sync: str = "file") -> tuple[Root, list[Wish], Directory]:
    """A root and three wishes of files in it."""
    directory = SimulatedDisk().open_root(ROOT)
    root = Root(directory, StoreConfig(sync=sync))  # type: ignore[arg-type]
    return root, [Wish(directory.open(name, "create"), 0) for name in "abc"], directory


def test_wishes_are_fulfilled_as_their_syncs_end() -> None:
    """Whatever ends first is given first, with its own failure; the others stay on their way."""
    root, (a, b, c), _ = setting()
    syncs = PlayedSyncs()
    flight = KernelFlight(root, syncs)

    assert flight.fulfil([a, b, c], wait=False) == []
    failure = OSError(errno.EIO, "input/output error")
    syncs.end((2, None), (0, failure))
    first = flight.fulfil([], wait=True)
    left = flight.pending
    syncs.end((1, None))
    second = flight.fulfil([], wait=True)

    assert (first, left, second, flight.pending) == ([c, a], 1, [b], 0)
    assert [a.failure, b.failure, c.failure] == [failure, None, None]
    assert root.counters.fsyncs == sum(root.counters.fsync_seconds.read().counts) == 3


def test_one_alone_is_synced_at_once() -> None:
    """A single wish, with nothing else to do, does not go through the kernel's threads."""
    root, (a, *_), _ = setting()
    syncs = PlayedSyncs()

    assert KernelFlight(root, syncs).fulfil([a], wait=True) == [a]
    assert syncs.keys == []
    assert root.counters.fsyncs == 1


def test_what_the_kernel_does_not_take_is_synced_at_once() -> None:
    """Wishes that the kernel has no room for are fulfilled by the thread itself, before it waits for the others."""
    root, (a, b, c), _ = setting()
    syncs = PlayedSyncs()
    syncs.takes = 1
    flight = KernelFlight(root, syncs)

    assert flight.fulfil([a, b, c], wait=True) == [b, c]
    syncs.end((0, None))
    assert flight.fulfil([], wait=True) == [a]
    assert root.counters.fsyncs == 3


def test_a_place_that_breaks_fails_all() -> None:
    """If the kernel cannot say what became of the syncs, every wish on its way has failed."""
    root, (a, b, c), _ = setting()
    syncs = PlayedSyncs()
    flight = KernelFlight(root, syncs)
    flight.fulfil([a, b], wait=False)
    syncs.broken = OSError(errno.EINVAL, "invalid argument")

    assert flight.fulfil([c], wait=True) == [a, b, c]
    assert {wish.failure for wish in (a, b, c)} == {syncs.broken}
    assert flight.pending == 0


def test_what_ends_late_is_taken_for_nothing_else() -> None:
    """The end of a sync that was given up already fulfils no wish of a later flight in the same place."""
    root, (a, b, c), _ = setting()
    syncs = PlayedSyncs()
    before = KernelFlight(root, syncs)
    before.fulfil([a, b], wait=False)
    syncs.broken = OSError(errno.EINVAL, "invalid argument")
    before.fulfil([], wait=True)
    syncs.broken = None
    flight = KernelFlight(root, syncs)
    flight.fulfil([c, a], wait=False)

    syncs.end((0, None), (1, None))
    assert flight.fulfil([], wait=True) == []
    assert flight.pending == 2


def test_names_wait_for_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wishes for the names shares one sync with those whose files were on their way when the first one came."""
    monkeypatch.setattr("tokenstore.journal.flights.PATIENT_SECONDS", 60.0)
    root, (a, b, c), _ = setting()
    syncs = PlayedSyncs()
    flight = KernelFlight(root, syncs)
    flight.fulfil([a, b], wait=False)
    first, second = Wish(None), Wish(None)

    flight.fulfil([first], wait=False)
    syncs.end((0, None))
    early = flight.fulfil([second, c], wait=True)
    syncs.end((1, None))
    last = flight.fulfil([], wait=True)
    made = root.counters.fsyncs
    named = flight.fulfil([], wait=False)

    assert (early, last, named) == ([a], [b], [first, second])
    assert root.counters.fsyncs - made == 1
    assert (flight.pending, first.failure, second.failure) == (1, None, None)


def test_names_do_not_wait_long_for_a_slow_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file that was on its way takes long, the names are made durable without it."""
    monkeypatch.setattr("tokenstore.journal.flights.PATIENT_SECONDS", 0.0)
    root, (a, *_), _ = setting()
    names = Wish(None)
    flight = KernelFlight(root, PlayedSyncs())

    first = flight.fulfil([a], wait=False)
    second = flight.fulfil([names], wait=False)

    assert (first, second, flight.pending) == ([], [names], 1)


def test_a_failed_sync_of_names_fails_all_who_shared_it() -> None:
    """Everybody who wished for the names gets a failure of his own."""
    disk = FailingDisk(SimulatedDisk(), Fault(call="directory_sync"))
    root = Root(disk.open_root(ROOT), StoreConfig())
    wishes = [Wish(None), Wish(None)]

    assert KernelFlight(root, PlayedSyncs()).fulfil(wishes, wait=True) == wishes
    assert [type(wish.failure) for wish in wishes] == [DurabilityError] * 2
    assert wishes[0].failure is not wishes[1].failure


def test_a_whole_file_is_not_synced_by_its_bytes() -> None:
    """Files of which everything is to be durable go to the kernel apart from those of which the bytes are."""
    root, (a, b, c), _ = setting()
    a.whole = c.whole = True
    syncs = PlayedSyncs()

    KernelFlight(root, syncs).fulfil([a, b, c], wait=False)

    assert syncs.kinds == [False, True, True]


def test_a_flight_gives_its_place_back() -> None:
    """A flight that is over leaves its place to others."""
    root, _, _ = setting()
    syncs = PlayedSyncs()

    KernelFlight(root, syncs).close()

    assert syncs.closed


def test_one_sync_of_the_file_system_fulfils_all() -> None:
    """Where syncs are shared, all wishes are fulfilled by one."""
    root, wishes, _ = setting("filesystem")
    flight = flight_for(root)
    assert isinstance(flight, SharedFlight)

    assert flight.fulfil([], wait=True) == []
    assert flight.fulfil(wishes, wait=True) == wishes
    flight.close()
    assert root.counters.fsyncs == 1


def test_without_the_kernel_there_is_none() -> None:
    """Where the system makes no syncs for others, each file's is made by a thread."""
    root, _, _ = setting()

    assert flight_for(root) is None
