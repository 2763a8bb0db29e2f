"""Any bytes of a state file are understood, and a state is replaced whole or not at all."""

from __future__ import annotations

import errno
import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.journal.workbench import NAMES, ROOT, STATE, RecordingDisk
from tokenstore.config import StoreConfig
from tokenstore.errors import CorruptRolloutError, DurabilityError
from tokenstore.journal.disk import Disk
from tokenstore.journal.layout import TEMPORARY_PREFIX
from tokenstore.journal.lifecycle import State
from tokenstore.journal.root import Root
from tokenstore.journal.statefile import StateFile, parse_state, render_state
from tokenstore.records import RefusalRecord
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, SimulatedDisk

LOST = State(incomplete=True, damage=("state_lost",))
REFERENCE: dict[str, Any] = {
    "entry_digests": {"c0": "d0"},
    "frozen": False,
    "incomplete": False,
    "indexed_size": 9,
    "refusals": [{"model_call_id": "c1", "code": "x", "created_at": 1.5}],
    "retired": False,
    "snapshot_id": "",
    "version": 2,
}
"""A state as the reference writes it."""

texts = st.text(max_size=8)
counts = st.integers(0, 2**63 - 1)
states = st.builds(
    State,
    frozen=st.booleans(),
    retired=st.booleans(),
    incomplete=st.booleans(),
    snapshot_id=texts,
    version=counts,
    entry_digests=st.dictionaries(texts, texts, max_size=3),
    indexed_size=counts,
    refusals=st.lists(
        st.builds(RefusalRecord, model_call_id=st.sampled_from(["a", "b"]), code=st.none() | texts, created_at=st.just(1.5)),
        max_size=2,
    ).map(tuple),
    marked=st.lists(texts, max_size=3).map(tuple),
    conflicts=st.lists(texts, max_size=3).map(tuple),
    damage=st.lists(texts, max_size=3).map(tuple),
    verdict=st.none() | st.lists(texts, max_size=3).map(tuple),
    unknown=st.dictionaries(st.sampled_from(["theirs", "other"]), st.none() | counts | st.lists(texts), max_size=2),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REFERENCE, "tokenstore", "marked", "x"]), inner),
    max_leaves=12,
)


def settled(state: State) -> State:
    """Fill in what a section finds out before it writes a state: the marks that are counted, and the lines."""
    return attrs.evolve(state, marked=state.marked or (), indexed_size=state.indexed_size or 0)


def parsed(**changes: Any) -> State:
    """Parse the reference's state with other values."""
    return parse_state(json.dumps({**REFERENCE, **changes}).encode())


class TestParsing:
    """What bytes mean."""

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b"\0" * 64, b"\0", b"\n", b"{", b'{"frozen":tr', b"[]", b"null", b"7", b'"text"', b"{}{}", b"NaN"),
            *(b"\xff\xfe", b'{"a":1}\0', b"\xef\xbb\xbf{}", b'{"version":1e999}', b'{"version":NaN}', b"[" * 100_000),
            json.dumps(REFERENCE).encode()[:-1],
            json.dumps(REFERENCE).encode()[1:],
        ],
        ids=lambda data: repr(data)[:20],
    )
    def test_bytes_that_are_no_object_are_a_lost_state(self, data: bytes) -> None:
        """Empty, torn, NULs, anything but a JSON object: the rollout is open and masked, and nothing is believed."""
        assert parse_state(data) == LOST

    def test_the_references_state_is_understood(self) -> None:
        """A state of the reference gives its facts, and tells that its marks were not listed."""
        assert parsed() == State(
            version=2,
            entry_digests={"c0": "d0"},
            indexed_size=9,
            refusals=(RefusalRecord(model_call_id="c1", code="x", created_at=1.5),),
            marked=None,
        )
        assert parsed(frozen=True, retired=True, incomplete=True, snapshot_id="s").status == "retired"

    @pytest.mark.parametrize("missing", ["indexed_size", "entry_digests"])
    def test_an_older_reference_covers_the_whole_file(self, missing: str) -> None:
        """A state without the size or the digests of an index covers all lines, and is not lost."""
        state = parse_state(json.dumps({name: value for name, value in REFERENCE.items() if name != missing}).encode())

        assert (state.indexed_size, state.entry_digests, state.damage, state.version) == (None, {}, (), 2)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("frozen", 1), ("retired", "no"), ("incomplete", None), ("snapshot_id", None), ("snapshot_id", 7)),
            *(("version", -1), ("version", True), ("version", "2"), ("version", 2.0), ("version", 10**30)),
            *(("indexed_size", "9"), ("indexed_size", -1), ("indexed_size", 9.0), ("indexed_size", 10**30)),
            *(("entry_digests", []), ("entry_digests", {"c0": 7}), ("entry_digests", "x")),
            *(("refusals", {}), ("refusals", [7]), ("refusals", [{}]), ("refusals", [{"model_call_id": "a\nb"}])),
            *(("refusals", [{"model_call_id": "c", "code": 7}]), ("refusals", [{"model_call_id": "c", "created_at": "x"}])),
            *(("tokenstore", []), ("tokenstore", {"marked": "x"}), ("tokenstore", {"damage": [7]})),
        ],
        ids=str,
    )
    def test_a_value_of_the_wrong_kind_is_left_out_and_masks(self, name: str, value: Any) -> None:
        """A known key with a value that cannot be is not believed, the others are, and the rollout is masked."""
        state = parsed(**{name: value})

        assert state.damage == ("state_lost",)
        assert state.incomplete
        assert state.version == (0 if name == "version" else 2)
        assert not state.frozen
        render_state(state)

    def test_unknown_keys_are_kept(self) -> None:
        """Keys of other writers come back, also beside ours under our own key."""
        state = parsed(theirs={"a": [1]}, tokenstore={"marked": ["m"], "later": {"b": 2}})

        written = json.loads(render_state(state))

        assert written["theirs"] == {"a": [1]}
        assert written["tokenstore"]["later"] == {"b": 2}
        assert written["tokenstore"]["marked"] == ["m"]

    @pytest.mark.parametrize("value", ["\ud800", {"\udfff": 1}, [["\ud800"]]])
    def test_what_cannot_be_written_again_is_left_out(self, value: Any) -> None:
        """An unknown value that no later state could hold is dropped and masks, so that the rollout goes on."""
        state = settled(parsed(theirs=value))

        assert json.loads(render_state(state)).keys() == {*REFERENCE, "tokenstore"}
        assert parse_state(render_state(state)) == state
        assert state.damage == ("state_lost",)

    @settings(derandomize=True, database=None, deadline=None, max_examples=200)
    @given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
    def test_any_bytes_are_understood(self, data: bytes) -> None:
        """No bytes raise, and what they are taken for can be written and is read the same."""
        state = settled(parse_state(data))

        assert parse_state(render_state(state)) == state

    @settings(derandomize=True, database=None, deadline=None, max_examples=200)
    @given(states)
    def test_a_state_comes_back(self, state: State) -> None:
        """What is written is read, fact for fact."""
        assert parse_state(render_state(state)) == state

    def test_a_state_has_one_form(self) -> None:
        """A state is one line of sorted keys, the reference's and ours under one key."""
        data = render_state(State(version=2, entry_digests={"b": "1", "a": "2"}, indexed_size=9, verdict=()))

        assert data.decode() == (
            '{"entry_digests":{"a":"2","b":"1"},"frozen":false,"incomplete":false,"indexed_size":9,"refusals":[],'
            '"retired":false,"snapshot_id":"","tokenstore":{"conflicts":[],"damage":[],"marked":[],"verdict":[]},"version":2}\n'
        )


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
            with pytest.raises(BaseException, match="power was cut"):
                while True:
                    file.write(State(version=2))
                    file.settle()
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

        with pytest.raises(DurabilityError, match=rf"write of r\.tokens\.state\.json failed"):
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
        assert not mine.refresh() is False

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
            disk = FailingDisk(simulated, Fault(call=call))  # type: ignore[arg-type]
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
