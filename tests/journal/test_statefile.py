"""A state is replaced whole or not at all, and read again whenever it may be another one."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from tests.journal.workbench import NAMES, ROOT, STATE, Process, RecordingDisk
from tests.samples import entry
from tokenstore.config import StoreConfig
from tokenstore.errors import CorruptRolloutError, DurabilityError
from tokenstore.journal.disk import Disk
from tokenstore.journal.layout import TEMPORARY_PREFIX
from tokenstore.journal.lifecycle import State
from tokenstore.journal.root import Root
from tokenstore.journal.statefile import StateFile, parse_state, render_state
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk


def statefile_on(disk: Disk) -> StateFile:
    """Open the rollout's state on a disk."""
    return StateFile(Root(disk.open_root(ROOT), StoreConfig()), NAMES.state)


class TestReplacing:
    """How a state gets to the disk."""

    def test_is_written_durably_in_order(self) -> None:
        """A state is written beside, synced, moved into place, and its name synced once, with the settling."""
        disk = RecordingDisk(SimulatedDisk())
        file = statefile_on(disk)
        file.write(State(version=1))
        file.settle()
        file.settle()

        assert disk.take_calls() == [
            f"create {TEMPORARY_PREFIX}",
            f"write {TEMPORARY_PREFIX}",
            f"sync {TEMPORARY_PREFIX}",
            f"replace {NAMES.state}",
            "sync directory",
        ]

    @pytest.mark.parametrize("policy", PersistencePolicy)
    def test_a_crash_leaves_the_old_state_or_the_new(self, policy: PersistencePolicy) -> None:
        """Wherever the power is cut, what is found is one of the two states, whole."""
        found = set()
        for step in range(1, 8):
            disk = SimulatedDisk()
            file = statefile_on(disk)
            file.write(State(version=1))
            file.settle()
            disk.crash_at = disk.steps + step
            with suppress(PowerCut):
                for _ in range(2):
                    file.write(State(version=2))
                    file.settle()
            assert disk.dead
            for seed in range(5):
                data = disk.after_crash(policy, seed=seed).read_file(STATE)
                found.add(parse_state(data).version)
                assert parse_state(data).damage == ()

        assert found == {1, 2}

    @pytest.mark.parametrize(
        ("fault", "there"),
        [
            (Fault(call="create_temporary", errno=errno.EMFILE), 1),
            (Fault(call="write", errno=errno.ENOSPC), 1),
            (Fault(call="sync"), 1),
            (Fault(call="replace"), 1),
            (Fault(call="file_stat"), 2),
        ],
        ids=lambda value: getattr(value, "call", ""),
    )
    def test_a_failure_leaves_a_whole_state(self, fault: Fault, there: int) -> None:
        """Whichever step fails, one of the two states is there and found again, and nothing is left behind."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        file = statefile_on(disk)
        file.write(State(version=1))
        disk.fault = fault

        with pytest.raises(DurabilityError, match=r"write of r\.tokens\.state\.json failed"):
            file.write(State(version=2))
        assert disk.fired
        assert parse_state(simulated.read_file(STATE)).version == there
        assert list(simulated.files(ROOT)) == [NAMES.state]
        file.refresh()
        assert file.state.version == there

    def test_what_cannot_be_removed_is_left(self) -> None:
        """If even the temporary file cannot be removed, the first failure is the one that is told."""
        disk = FailingDisk(SimulatedDisk(), Fault(call="unlink"))
        broken = FailingDisk(disk, Fault(call="replace", errno=errno.ENOSPC))
        file = statefile_on(broken)

        with pytest.raises(DurabilityError, match="No space left"):
            file.write(State(version=1))
        assert disk.fired


class TestLooking:
    """When a state is read again."""

    def test_a_missing_file_is_an_open_rollout(self) -> None:
        """Without a file there are no facts, and none are lost."""
        file = statefile_on(SimulatedDisk())

        assert file.refresh()
        assert (file.state, file.exists, file.is_open) == (State(), False, False)
        file.settle()

    def test_another_process_is_noticed(self) -> None:
        """A state that another process replaced is read again, and the facts are not the same."""
        disk = SimulatedDisk()
        mine, theirs = statefile_on(disk), statefile_on(disk)
        mine.write(State(version=1))
        assert theirs.refresh() is False
        theirs.write(State(version=2))

        assert mine.refresh() is False
        assert mine.state.version == 2
        assert mine.refresh() is True

    def test_a_removed_file_is_noticed(self) -> None:
        """A state that another process removed is gone here too."""
        disk = SimulatedDisk()
        mine, theirs = statefile_on(disk), statefile_on(disk)
        mine.write(State(version=1))
        theirs.refresh()
        theirs.unlink()

        assert mine.refresh() is False
        assert (mine.state, mine.exists) == (State(), False)
        assert mine.refresh() is True

    def test_without_a_descriptor_it_is_read_again(self) -> None:
        """After its descriptor was given away a file of the same number, size and time may be another one."""
        disk = SimulatedDisk(tick_ns=0)
        mine = statefile_on(disk)
        mine.write(State(version=1, snapshot_id="a"))
        mine.release()
        disk.write_file(STATE, render_state(State(version=1, snapshot_id="b")))

        assert mine.refresh() is False
        assert mine.state.snapshot_id == "b"

    def test_reading_the_same_again_is_the_same(self) -> None:
        """A state that says what it said before is no news, though it is another file."""
        disk = SimulatedDisk()
        mine, theirs = statefile_on(disk), statefile_on(disk)
        mine.write(State(version=1))
        theirs.refresh()
        theirs.write(State(version=1))

        assert mine.refresh() is True

    def test_what_was_found_is_synced_before_it_counts(self) -> None:
        """A state of another process is synced, and its name, once, before an ack rests on it."""
        simulated = SimulatedDisk()
        statefile_on(simulated).write(State(version=1))
        disk = RecordingDisk(simulated)
        mine = statefile_on(disk)
        mine.refresh()
        for _ in range(2):
            mine.settle()

        assert disk.take_calls() == [f"sync {NAMES.state}", "sync directory"]

    def test_the_directory_can_be_synced_by_the_caller(self) -> None:
        """A removal of many rollouts syncs the directory itself."""
        disk = RecordingDisk(SimulatedDisk())
        file = statefile_on(disk)
        file.write(State())
        disk.take()

        file.settle(sync_directory=False)
        assert disk.take_calls() == []
        file.settle()
        assert disk.take_calls() == ["sync directory"]

    def test_an_error_while_reading_is_raised(self) -> None:
        """A state that cannot be read is an error, and read again the next time, never taken for lost."""
        simulated = SimulatedDisk()
        statefile_on(simulated).write(State(version=1))
        for call in ("stat", "open", "read"):
            disk = FailingDisk(simulated, Fault(call=call))
            file = statefile_on(disk)
            with pytest.raises(DurabilityError):
                file.refresh()
            file.refresh()
            assert file.state.version == 1

    def test_a_monstrous_file_is_not_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A state file larger than any store writes is an error that says what to do, not a full memory."""
        monkeypatch.setattr("tokenstore.journal.statefile.MAX_STATE_BYTES", 10)
        simulated = SimulatedDisk()
        simulated.write_file(STATE, b"x" * 11)
        file = statefile_on(simulated)

        with pytest.raises(CorruptRolloutError, match="larger than any state"):
            file.refresh()
        assert not file.is_open


class TestTooLarge:
    """A state that nobody could read back is never written."""

    def test_an_open_one_goes_without_its_index(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Facts of a rollout with too many calls for an index are kept, the version too, and all works on."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.put(*[entry(f"c{number}") for number in range(40)])
        monkeypatch.setattr("tokenstore.journal.statefile.MAX_STATE_BYTES", 2000)

        process.mark("c1")
        process.put(entry("c40"))
        here, there = process.journal.peek(), Process(disk).journal.peek()

        assert (here.version, len(here.entries), here.incomplete_reasons) == (42, 41, ("marked:c1",))
        assert here == there

    def test_a_seal_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What cannot be sealed stays open and readable, the error says so, and it can be removed."""
        process = Process(SimulatedDisk())
        process.put(*[entry(f"c{number}") for number in range(40)])
        monkeypatch.setattr("tokenstore.journal.statefile.MAX_STATE_BYTES", 2000)
        before = process.journal.peek()

        with pytest.raises(CorruptRolloutError, match="bytes, a state may take 2000; nothing was changed"):
            process.freeze()

        assert process.journal.peek() == before
        assert process.fence()

    def test_a_fence_goes_without_its_reasons(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rollout with more marks than its state can hold refuses to go on, and can be removed."""
        disk = SimulatedDisk()
        process = Process(disk)
        monkeypatch.setattr("tokenstore.journal.statefile.MAX_STATE_BYTES", 600)
        with suppress(CorruptRolloutError):
            for number in range(100):
                process.mark(f"{number}" * 20)

        with pytest.raises(CorruptRolloutError):
            process.put(entry())
        existed = Process(disk).fence()

        assert existed
        assert parse_state(disk.read_file(STATE)).retired
