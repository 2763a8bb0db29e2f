"""Any bytes of a state file are understood, and what is written is read, fact for fact."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenstore.journal.lifecycle import State
from tokenstore.journal.statefile import parse_state, render_state
from tokenstore.records import RefusalRecord

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
        st.builds(
            RefusalRecord, model_call_id=st.sampled_from(["a", "b"]), code=st.none() | texts, created_at=st.just(1.5)
        ),
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
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REFERENCE, "tokenstore", "marked", "x"]), inner)
    ),
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
            *(
                ("refusals", [{"model_call_id": "c", "code": 7}]),
                ("refusals", [{"model_call_id": "c", "created_at": "x"}]),
            ),
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

    @settings(derandomize=True, database=None, deadline=None, max_examples=100)
    @given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
    def test_any_bytes_are_understood(self, data: bytes) -> None:
        """No bytes raise, and what they are taken for can be written and is read the same."""
        state = settled(parse_state(data))

        assert parse_state(render_state(state)) == state

    @settings(derandomize=True, database=None, deadline=None, max_examples=100)
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
