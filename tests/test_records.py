"""A record checks kinds and lengths when it is made, takes arrays of many kinds, and shows no tokens."""

from __future__ import annotations

import ctypes
import math
from array import array
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pytest

from tests.samples import entry
from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.records import (
    ENTRY_FIELDS,
    RefusalRecord,
    TokenCaptureSnapshot,
    TokenEntry,
    removal_payload,
)

ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
INTEGERS: list[Any] = [
    *([7, 8], (7, 8)),
    *(array(code, [7, 8]) for code in "bBhHiIlLqQ"),
    *(np.array([7, 8], dtype) for dtype in ("i1", "u1", "i2", "u2", "<i4", ">i4", "u4", "<i8", ">i8", "u8")),
    np.arange(20)[7:9],
    np.arange(100).reshape(10, 10)[7:9, 0] // 10,
    (ctypes.c_int * 2)(7, 8),
    (ctypes.c_uint8 * 2)(7, 8),
    memoryview(array("i", [7, 8])),
]
FLOATS: list[Any] = [
    *([-0.5, -2.0], (-0.5, -2.0)),
    *(array(code, [-0.5, -2.0]) for code in "fd"),
    *(np.array([-0.5, -2.0], dtype) for dtype in ("f2", "f4", ">f4", "f8", ">f8")),
    (ctypes.c_double * 2)(-0.5, -2.0),
]
NO_ARRAYS: list[Any] = [
    *("78", b"78", bytearray(b"78"), "", None, 7, 7.0, {7: 8}, {7, 8}, iter([7, 8]), range(7, 9), object()),
    *(np.array([True, False]), np.array([[7, 8]]), np.array(7), np.array(["7"]), np.array([7j]), np.array([None])),
    *(np.array([7], "M8[s]"), np.zeros(2, [("a", "i4")]), memoryview(b"78").cast("c")),
]


def name_of(value: Any) -> str:
    """Name a case by its type."""
    return f"{type(value).__name__}-{getattr(value, 'dtype', getattr(value, 'typecode', ''))}"


class TestArrays:
    """What token arrays may be given as."""

    @pytest.mark.parametrize("given", INTEGERS, ids=name_of)
    def test_integer_arrays_become_lists_of_ints(self, given: Any) -> None:
        """A list, a tuple, or anything with a flat buffer of integers becomes a list of plain ints."""
        made = entry(prompt_token_ids=given, generation_token_ids=given, generation_log_probs=given)

        assert made.prompt_token_ids == made.generation_token_ids == [7, 8]
        assert {type(value) for value in made.prompt_token_ids} == {int}
        assert made.generation_log_probs == [7, 8]

    @pytest.mark.parametrize("given", FLOATS, ids=name_of)
    def test_float_arrays_become_lists_of_floats(self, given: Any) -> None:
        """Log probabilities may be any flat buffer of floats, and keep their values."""
        made = entry(generation_log_probs=given)

        assert made.generation_log_probs == [-0.5, -2.0]
        assert {type(value) for value in made.generation_log_probs} == {float}

    @pytest.mark.parametrize("field", ARRAYS[:2])
    @pytest.mark.parametrize("given", FLOATS[2:], ids=name_of)
    def test_float_arrays_are_no_ids(self, field: str, given: Any) -> None:
        """A buffer of floats is refused as token ids, with its format in the message."""
        with pytest.raises(InvalidEntryError, match=f"{field}: is an array of format .* pass a flat array of ints"):
            entry(**{field: given})

    @pytest.mark.parametrize("field", ARRAYS)
    @pytest.mark.parametrize("given", NO_ARRAYS, ids=name_of)
    def test_other_kinds_are_refused(self, field: str, given: Any) -> None:
        """Texts, bytes, bools, tables and objects are refused with the field, and their content is not shown."""
        with pytest.raises(InvalidEntryError, match=f"{field}: is .*, pass a ") as refusal:
            entry(**{field: given})
        assert refusal.value.field == field
        assert "78" not in str(refusal.value)

    @pytest.mark.parametrize("field", ARRAYS)
    def test_lists_are_copied(self, field: str) -> None:
        """The caller may change its lists once the entry is made."""
        given = [7, 8]
        made = entry(**{field: given})
        given.append(9)
        given[0] = 0

        assert getattr(made, field) == [7, 8]

    def test_buffers_are_let_go(self) -> None:
        """An array can grow again once the entry is made, so nothing of its buffer is kept."""
        given = array("I", [7, 8])
        made = entry(prompt_token_ids=given)

        given.append(9)

        assert made.prompt_token_ids == [7, 8]


class TestFields:
    """What the other fields may be."""

    @pytest.mark.parametrize(("ids", "log_probs"), [(1000, 999), (0, 1), (1, 0), (2, 3)])
    def test_lengths_must_agree(self, ids: int, log_probs: int) -> None:
        """A log probability too many or too few is refused with both numbers and the call."""
        message = f"call 'c0', generation_log_probs: has {log_probs} values for {ids} generation_token_ids"

        with pytest.raises(InvalidEntryError, match=message):
            entry(generation_token_ids=[7] * ids, generation_log_probs=[-0.5] * log_probs)

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("model", None, "is None, it must be a string"),
            ("model", 7, "is 7, it must be a string"),
            ("model", b"m", "is of type bytes, it must be a string"),
            ("response_id", 7, "is 7, it must be a string"),
            ("output_items", None, "is None, it must be a list of objects"),
            ("output_items", {"a": 1}, "is of type dict, it must be a list of objects"),
            ("output_items", [{}, "text"], "item 1 is of type str, it must be a dict"),
            ("output_items", [None], "item 0 is None"),
            ("token_item_index", 1, "is 1, but there are 1 output_items"),
            ("token_item_index", -1, "is -1, but there are 1 output_items"),
            ("token_item_index", True, "is True, it must be an int or None"),
            ("token_item_index", 0.0, "is 0.0, it must be an int or None"),
            ("created_at", None, "is None, it must be a finite number"),
            ("created_at", True, "is True, it must be a finite number"),
            ("created_at", "now", "is of type str, it must be a finite number"),
            ("created_at", math.nan, "is nan, it must be a finite number"),
            ("created_at", -math.inf, "is -inf, it must be a finite number"),
            ("created_at", 10**400, "is an integer beyond the range of a double"),
            ("created_at", Fraction(1, 2), "is of type Fraction, it must be a finite number"),
            ("schema_version", 99, "is 99, this library knows up to 1; upgrade it"),
            ("schema_version", 0, "is 0, it must be an int from 1 on"),
            ("schema_version", True, "is True, it must be an int from 1 on"),
            ("schema_version", "1", "is of type str, it must be an int from 1 on"),
            ("extra", None, "is None, it must be a dict"),
            ("extra", [("a", 1)], "is of type list, it must be a dict"),
            ("extra", {7: 1}, "holds a key of type int, keys are strings"),
            ("extra", {"crc32": 1}, "holds the key 'crc32', which is a field of the store itself"),
            ("extra", {"prompt_base": 1}, "holds the key 'prompt_base'"),
            ("extra", {"prompt_rest": 1}, "holds the key 'prompt_rest'"),
            ("extra", {"model": "m"}, "holds the key 'model'"),
        ],
    )
    def test_kinds_are_checked(self, field: str, value: Any, message: str) -> None:
        """A field of the wrong kind is refused when the entry is made, with its name and what it must be."""
        with pytest.raises(InvalidEntryError, match=rf"{field}: {message}") as refusal:
            entry(**{field: value})
        assert refusal.value.field == field

    def test_ids_are_checked(self) -> None:
        """An entry cannot be made for ids that cannot name files or lines."""
        with pytest.raises(InvalidRolloutIdError, match="'a/b'"):
            entry(rollout_id="a/b")
        with pytest.raises(InvalidEntryError, match="model_call_id: it holds a control character"):
            entry("a\nb")

    def test_defaults(self) -> None:
        """Ids, tokens and log probabilities are needed; everything else has the default of the contract."""
        made = TokenEntry(
            rollout_id="r", model_call_id="c", prompt_token_ids=[], generation_token_ids=[], generation_log_probs=[]
        )

        assert made == entry(
            "c",
            prompt_token_ids=[],
            generation_token_ids=[],
            generation_log_probs=[],
            model="",
            routed_experts=None,
            output_items=[],
            token_item_index=None,
            response_id=None,
            created_at=0.0,
            schema_version=1,
            extra={},
        )
        assert made.extra is not entry("d").extra
        with pytest.raises(TypeError, match="prompt_token_ids"):
            TokenEntry(rollout_id="r", model_call_id="c", generation_token_ids=[], generation_log_probs=[])  # type: ignore[call-arg]

    def test_whole_seconds_become_a_float(self) -> None:
        """An int is taken as the float of `created_at`."""
        assert entry(created_at=7) == entry(created_at=7.0)
        assert isinstance(entry(created_at=7).created_at, float)

    def test_cannot_be_changed(self) -> None:
        """Entries are values: their fields cannot be set."""
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            entry().model = "other"  # type: ignore[misc]

    def test_declared_fields_are_those_of_the_contract(self) -> None:
        """The keys of a stored line are the fields of the contract, `extra` apart."""
        assert " ".join(sorted(ENTRY_FIELDS)) == (
            "created_at generation_log_probs generation_token_ids model model_call_id output_items prompt_token_ids "
            "response_id rollout_id routed_experts schema_version token_item_index"
        )


class TestShown:
    """What records look like in logs."""

    def test_an_entry_shows_no_tokens(self) -> None:
        """The repr of an entry names the call and its lengths, and neither ids, text nor log probabilities."""
        made = entry(prompt_token_ids=[77_777] * 3, output_items=[{"text": "secret"}], model="secret")

        shown = repr(made)

        assert shown == "TokenEntry(rollout_id='r', model_call_id='c0', prompt=3 ids, generation=2 ids)"
        assert "TokenEntry(" in f"{[made]} {made}"

    def test_a_snapshot_shows_no_tokens(self) -> None:
        """The repr of a snapshot names the rollout and its counts."""
        snapshot = TokenCaptureSnapshot(
            rollout_id="r", entries=(entry(),), incomplete=True, snapshot_id="s", version=2, incomplete_reasons=("x",)
        )

        assert repr(snapshot) == (
            "TokenCaptureSnapshot(rollout_id='r', entries=1, incomplete=True, snapshot_id='s', version=2, "
            "incomplete_reasons=('x',), frozen=True)"
        )

    def test_a_snapshot_is_frozen_unless_it_says_so(self) -> None:
        """What the seed's snapshot did not have is complete, empty and frozen by default."""
        snapshot = TokenCaptureSnapshot(rollout_id="r", entries=(), incomplete=False, snapshot_id="s", version=1)

        assert snapshot.frozen
        assert (snapshot.refusals, snapshot.incomplete_reasons, snapshot.open_calls) == ((), (), ())


class TestOtherRecords:
    """Refusals and what removals tell."""

    def test_a_refusal_checks_its_call(self) -> None:
        """A refusal is of a valid call, with a code that is text or None."""
        odd: Any = 400

        assert RefusalRecord(model_call_id="c").code is None
        with pytest.raises(InvalidEntryError, match="model_call_id"):
            RefusalRecord(model_call_id="a\nb")
        with pytest.raises(TypeError, match="code"):
            RefusalRecord(model_call_id="c", code=odd)

    def test_a_removal_tells_ids_in_order(self) -> None:
        """Ids whose records existed are removed, others absent, unfinished ones in neither, all in the order given."""
        payload = removal_payload({"a": True, "b": False, "c": True}, ["c", "b", "d", "a"])

        assert payload == {"removed": ["c", "a"], "absent": ["b"]}
