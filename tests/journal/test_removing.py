"""Removal goes in durable steps, behind a fence, and whoever comes next finishes what a crash has left."""

from __future__ import annotations

import pytest

from tests.journal.workbench import LOCK, NAMES, ROOT, STATE, Process, RecordingDisk, calls, plant
from tests.samples import entry, line_of
from tokenstore.errors import DurabilityError, TokenCaptureFrozenError, TokenCaptureRetiredError
from tokenstore.journal.lifecycle import State
from tokenstore.journal.statefile import parse_state, render_state
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

LINE = line_of(entry("c0"))
FENCE = render_state(State(frozen=True, retired=True, snapshot_id="s", version=2))
FENCED = {NAMES.state, NAMES.lock}


def frozen() -> tuple[SimulatedDisk, TokenCaptureSnapshot]:
    """Freeze a rollout with lines, intents and a marker."""
    disk = SimulatedDisk()
    process = Process(disk)
    process.begin("c0", "c1")
    process.put(entry("c0"))
    process.mark("c1")
    return disk, process.freeze()


def half_removed() -> SimulatedDisk:
    """Leave what a crash leaves between fence and removal."""
    return plant(SimulatedDisk(), [LINE], state=FENCE, intents=b"c0\n", marker=b"\n")


def test_a_drop_goes_in_steps() -> None:
    """The fence is durable before the first record goes, and the removal before drop returns."""
    simulated, snapshot = frozen()
    disk = RecordingDisk(simulated)
    process = Process(disk)
    process.peek()
    assert process.drop(snapshot.snapshot_id, snapshot.version)
    record = disk.take_calls()

    fence = record.index(f"replace {NAMES.state}")
    assert record[fence + 1 :] == [
        "sync directory",
        f"unlink {NAMES.tokens}",
        f"unlink {NAMES.intents}",
        f"unlink {NAMES.marker}",
        "sync directory",
    ]
    assert simulated.files(ROOT).keys() == FENCED


def test_a_second_drop_finds_everything_done() -> None:
    """The same pair again is true and only makes sure that what it found is durable."""
    simulated, snapshot = frozen()
    Process(simulated).drop(snapshot.snapshot_id, snapshot.version)
    disk = RecordingDisk(simulated)
    process = Process(disk)

    assert process.drop(snapshot.snapshot_id, snapshot.version) is True
    assert disk.take_calls()[0] == f"sync {NAMES.state}"
    assert set(disk.take_calls()) <= {"sync directory"}
    assert process.drop(snapshot.snapshot_id, snapshot.version + 1) is False
    assert process.drop("other", snapshot.version) is False


@pytest.mark.parametrize(
    "attempt",
    [
        lambda process: process.put(entry("late")),
        lambda process: process.begin("late"),
        lambda process: process.refuse("late"),
        lambda process: process.mark("late"),
        lambda process: process.freeze(),
    ],
)
def test_the_next_writing_message_finishes_a_removal(attempt: object) -> None:
    """A rollout that was fenced before a crash loses its records with the next message, which is told it is retired."""
    disk = half_removed()

    with pytest.raises(TokenCaptureRetiredError):
        attempt(Process(disk))  # type: ignore[operator]
    assert disk.files(ROOT).keys() == FENCED
    assert disk.read_file(STATE) == FENCE


def test_a_drop_finishes_a_removal() -> None:
    """The pair that the fence holds is true and takes the leftovers away; so does a wrong pair, which is false."""
    for pair, answer in ((("s", 2), True), (("s", 3), False)):
        disk = half_removed()
        assert Process(disk).drop(*pair) is answer
        assert disk.files(ROOT).keys() == FENCED


def test_readers_leave_a_half_removed_rollout_alone() -> None:
    """A reader is told that it is retired, and repairs nothing."""
    disk = half_removed()
    before = disk.files(ROOT)

    with pytest.raises(TokenCaptureRetiredError):
        Process(disk).peek()
    assert Process(disk).journal.is_incomplete() is False
    assert disk.files(ROOT) == before


def test_retire_finishes_a_removal_and_tells_that_there_were_records() -> None:
    """Records behind a fence are removed, and the fence stays as it was."""
    disk = half_removed()

    assert Process(disk).retire() is True
    assert disk.files(ROOT).keys() == FENCED
    assert disk.read_file(STATE) == FENCE


class TestSteps:
    """Each step looks again under the lock, because another process may have deleted and reused the id."""

    def reused(self) -> tuple[SimulatedDisk, Process]:
        """Fence a rollout; meanwhile another process deletes it and begins a new one."""
        disk, _ = frozen()
        process = Process(disk)
        process.fence()
        other = Process(disk)
        other.delete()
        other.put(entry("new"))
        return disk, process

    @pytest.mark.parametrize("step", ["remove_records", "remove_fence", "remove_lock"])
    def test_a_new_rollout_is_left_alone(self, step: str) -> None:
        """A step of an old removal removes nothing of a rollout that is not fenced."""
        disk, process = self.reused()
        before = disk.files(ROOT)

        getattr(process.journal, step)()

        assert disk.files(ROOT) == before
        assert calls(process.peek()) == ["new"]

    def test_a_fence_that_hides_records_stays(self) -> None:
        """The fence goes only when nothing is behind it."""
        disk = half_removed()
        process = Process(disk)
        process.journal.remove_fence()
        assert NAMES.state in disk.files(ROOT)
        process.journal.remove_records()
        process.journal.remove_fence()
        assert disk.files(ROOT).keys() == {NAMES.lock}
        process.journal.remove_lock()

        assert disk.files(ROOT) == {}

    def test_a_lock_file_beside_anything_stays(self) -> None:
        """The lock file goes only when neither state nor records are there."""
        for name in (NAMES.state, *NAMES.records):
            disk = SimulatedDisk()
            disk.write_file(ROOT / name, FENCE if name == NAMES.state else b"")
            Process(disk).journal.remove_lock()
            assert LOCK.name in disk.files(ROOT)

    def test_what_cannot_be_read_can_be_removed(self) -> None:
        """A rollout that no library of ours can read is retired and deleted all the same."""
        newer = line_of(entry("c0"), checksum=False).replace(b'"schema_version":1', b'"schema_version":99')
        disk = plant(SimulatedDisk(), [newer], intents=b"\xff")

        assert Process(disk).delete() is True
        assert disk.files(ROOT) == {}

    def test_a_fence_keeps_what_was_found(self) -> None:
        """An open rollout is fenced with the version and the marks that it had, found or written."""
        disk = plant(SimulatedDisk(), [LINE], marker=b"m\n")
        Process(disk).retire()

        fence = parse_state(disk.read_file(STATE))
        assert (fence.version, fence.incomplete, fence.marked) == (2, True, ("m",))
        assert (fence.retired, fence.frozen, fence.indexed_size, fence.entry_digests) == (True, False, 0, {})
        with pytest.raises(TokenCaptureFrozenError, match="retired"):
            Process(disk).put(entry("c0"))


@pytest.mark.parametrize("call", ["unlink", "directory_sync", "replace", "sync"])
def test_a_failed_step_is_tried_again(call: str) -> None:
    """Whatever fails in a drop, it raises and never goes back; the same drop again finishes it."""
    for at in range(1, 5):
        simulated, snapshot = frozen()
        disk = FailingDisk(simulated)
        process = Process(disk)
        disk.fault = Fault(call=call, at=at)  # type: ignore[arg-type]
        try:
            assert process.drop(snapshot.snapshot_id, snapshot.version)
        except DurabilityError:
            assert disk.fired
        disk.fault = None
        assert process.drop(snapshot.snapshot_id, snapshot.version) is True
        assert simulated.files(ROOT).keys() == FENCED


def test_a_reused_id_knows_nothing_of_the_old_rollout() -> None:
    """One process deletes and reuses an id; another that knew the old rollout sees the new one alone."""
    disk, _ = frozen()
    old = Process(disk)
    assert old.peek().frozen
    Process(disk).delete()
    old.put(entry("c9"))

    assert calls(old.freeze()) == ["c9"]
    assert old.freeze().version == 2
    assert not old.freeze().incomplete
