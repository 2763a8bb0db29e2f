"""When the state is written as an index, and that nothing depends on it."""

from __future__ import annotations

import pytest

from tests.journal.workbench import NAMES, ROOT, STATE, TOKENS, Process, RecordingDisk
from tests.samples import entry
from tokenstore.journal import journal as journal_module
from tokenstore.journal.layout import TEMPORARY_PREFIX
from tokenstore.journal.statefile import parse_state
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk


class TestIndexing:
    """When the state is written as an index."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lower the bounds so that a few lines are many."""
        monkeypatch.setattr(journal_module, "INDEX_AFTER", 500)
        monkeypatch.setattr(journal_module, "INDEX_ALWAYS_AFTER", 2000)

    def test_the_hot_path_writes_no_state(self) -> None:
        """Puts and begins alone leave no state file."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.begin("c0")
        process.put(entry("c0"))

        assert NAMES.state not in disk.files(ROOT)

    def test_a_retiring_actor_leaves_an_index(self) -> None:
        """Above the bound the offered index is taken: digests and size of all lines, the version of all calls."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.put(entry("c0"))
        process.journal.offer_index()
        assert NAMES.state not in disk.files(ROOT)
        process.put(entry("c1"))
        process.journal.offer_index()
        state = parse_state(disk.read_file(STATE))

        assert (state.version, state.indexed_size) == (2, len(disk.read_file(TOKENS)))
        assert state.entry_digests.keys() == {"c0", "c1"}
        assert (state.frozen, state.incomplete) == (False, False)
        assert Process(disk).peek().version == 2

    def test_an_index_is_left_once(self) -> None:
        """What is indexed is not indexed again."""
        disk = RecordingDisk(SimulatedDisk())
        process = Process(disk)
        process.put(entry("c0"), entry("c1"))
        process.journal.offer_index()
        disk.take()
        process.journal.offer_index()

        assert disk.take() == []

    def test_a_busy_actor_leaves_one_too(self) -> None:
        """A rollout that grows without end is indexed now and then, so that a restart does not read it all."""
        disk = SimulatedDisk()
        process = Process(disk)
        for number in range(10):
            process.put(entry(f"c{number}"))
        size = parse_state(disk.read_file(STATE)).indexed_size

        assert size is not None
        assert 0 < len(disk.read_file(TOKENS)) - size <= 2000
        assert process.peek().version == Process(disk).peek().version == 10

    def test_a_held_lock_or_a_failing_disk_skips_it(self) -> None:
        """An index is best effort: whatever stands in its way, nothing is raised and the rollout goes on."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        process = Process(disk)
        process.put(entry("c0"), entry("c1"))
        held = simulated.open_root(ROOT).open(NAMES.lock, "create")
        held.lock(exclusive=True)
        process.journal.offer_index()
        held.close()
        for call in ("create_temporary", "write", "sync", "replace", "stat", "lock"):
            disk.fault = Fault(call=call)
            process.journal.offer_index()
        disk.fault = None

        assert not [name for name in simulated.files(ROOT) if name.startswith(TEMPORARY_PREFIX)]
        assert NAMES.state not in simulated.files(ROOT)
        process.put(entry("c2"))
        process.journal.offer_index()
        assert parse_state(simulated.read_file(STATE)).version == 3

    def test_frozen_rollouts_are_not_indexed(self) -> None:
        """A seal is an index already."""
        disk = RecordingDisk(SimulatedDisk())
        process = Process(disk)
        process.put(entry("c0"), entry("c1"))
        process.freeze()
        disk.take()
        process.journal.offer_index()

        assert disk.take() == []

    def test_a_lost_index_costs_nothing(self) -> None:
        """The name of an index may be lost in a power cut: the lines tell the same."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.put(entry("c0"), entry("c1"))
        before = process.peek()
        process.journal.offer_index()
        disk.open_root(ROOT).unlink(NAMES.state)

        assert Process(disk).peek() == before
        process.put(entry("c2"))
        assert process.peek().version == 3
