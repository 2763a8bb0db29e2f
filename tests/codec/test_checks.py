"""What may be stored is told from what may not, with the field and the position, and without text or tokens."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import pytest

from tests.samples import LIMIT, entry, line_of, nested
from tokenstore.codec import check_entry, check_text, decode_line, prepare
from tokenstore.codec.checks import MAX_NESTING, SLICE
from tokenstore.errors import InvalidEntryError
from tokenstore.testing import first_difference

JSON_FIELDS = ("output_items", "extra", "routed_experts")


def with_json(field: str, value: Any) -> Any:
    """Make an entry that holds a JSON value somewhere in a field."""
    wrapped = {"output_items": [{}, {"a": value}], "extra": {"a": value}, "routed_experts": value}[field]
    return entry(**{field: wrapped})


def refusal_of(value: Any) -> InvalidEntryError:
    """Tell why an entry is refused."""
    with pytest.raises(InvalidEntryError) as refusal:
        check_entry(value)
    assert refusal.value.model_call_id == "c0"
    return refusal.value


class TestLogProbs:
    """Log probabilities are finite real numbers."""

    @pytest.mark.parametrize("position", [0, 1, SLICE, SLICE + 1])
    @pytest.mark.parametrize(
        ("bad", "problem"),
        [
            (None, "holds None, it must be a finite number"),
            (math.nan, "holds nan, it must be finite"),
            (math.inf, "holds inf, it must be finite"),
            (-math.inf, "holds -inf, it must be finite"),
            (True, "holds a value of type bool, it must be a finite number"),
            ("-0.5", "holds a value of type str, it must be a finite number"),
            ([0.0], "holds a value of type list, it must be a finite number"),
            (1j, "holds a value of type complex, it must be a finite number"),
            (np.float32(-0.5), "holds a value of type float32, it must be a finite number"),
            (10**400, "holds an integer beyond the range of a double"),
        ],
    )
    def test_other_values_are_refused(self, position: int, bad: Any, problem: str) -> None:
        """What is no finite real number is refused with its position, in any slice."""
        log_probs = [-0.5] * position + [bad, math.nan]

        error = refusal_of(entry(generation_token_ids=[1] * len(log_probs), generation_log_probs=log_probs))

        assert (error.field, error.problem.split(";")[0]) == ("generation_log_probs", f"position {position} {problem}")

    def test_whole_numbers_are_floats(self) -> None:
        """An int is taken as the float of the same value, wherever it stands."""
        log_probs = [0, -1, -9999, *[-0.5] * SLICE, -(2**60)]
        made = entry(generation_token_ids=[1] * len(log_probs), generation_log_probs=log_probs)

        stored = decode_line(line_of(made), "r").entry.generation_log_probs

        assert {type(value) for value in stored} == {float}
        assert stored == log_probs

    def test_doubles_of_numpy_are_floats(self) -> None:
        """A double of numpy is a float already, and is stored as one."""
        made = entry(generation_log_probs=[np.float64(-0.5), np.float64(-1.0)])

        assert decode_line(line_of(made), "r").entry.generation_log_probs == [-0.5, -1.0]


class TestJson:
    """Items, routed experts and unknown fields are plain JSON."""

    @pytest.mark.parametrize("field", JSON_FIELDS)
    @pytest.mark.parametrize(
        ("bad", "problem"),
        [
            ("\ud800", "holds a lone surrogate at position 0 of a string"),
            (["", {"k": "text\udfff"}], "holds a lone surrogate at position 4 of a string"),
            ({"text\ud800": 1}, "holds a lone surrogate at position 4 of a string"),
            ({7: "text"}, "holds an object key of type int, keys are strings"),
            ({None: "text"}, "holds an object key of type NoneType, keys are strings"),
            ([{"k": {("text",): 1}}], "holds an object key of type tuple, keys are strings"),
            (b"text", "holds a value of type bytes, which is not JSON"),
            ({"text"}, "holds a value of type set, which is not JSON"),
            ([1, 2, 3j], "holds a value of type complex, which is not JSON"),
            (np.int64(7), "holds a value of type int64, which is not JSON"),
            (np.array([7]), "holds a value of type ndarray, which is not JSON"),
            ([0.5, math.nan], "holds nan, which is not JSON"),
            ({"text": -math.inf}, "holds -inf, which is not JSON"),
        ],
        ids=ascii,
    )
    def test_other_values_are_refused(self, field: str, bad: Any, problem: str) -> None:
        """What JSON or UTF-8 cannot carry is refused with the field, and the text is not shown."""
        error = refusal_of(with_json(field, bad))

        assert error.field == ("output_items[1]" if field == "output_items" else field)
        assert error.problem.startswith(problem)
        assert "text" not in error.problem

    @pytest.mark.parametrize("field", ["model", "response_id"])
    def test_surrogates_in_texts_are_refused(self, field: str) -> None:
        """A lone surrogate is refused in every text of an entry, and in the name of an unknown field."""
        assert refusal_of(entry(**{field: "a\ud83d"})).field == field
        assert refusal_of(entry(extra={"\ud83d": 1})).field == "extra"

    @pytest.mark.parametrize("field", JSON_FIELDS)
    def test_nesting_ends_at_512(self, field: str) -> None:
        """512 levels are taken and come back, one more and any deeper are refused, counted within each value."""
        inner = MAX_NESTING - (field == "output_items")
        made = with_json(field, nested(inner))

        assert decode_line(line_of(made), "r").entry == made
        assert decode_line(line_of(made, checksum=False), "r").entry == made
        for levels in (inner + 1, 1025, 100_000):
            assert refusal_of(with_json(field, nested(levels))).problem == "is nested deeper than 512 levels"

    def test_cycles_are_refused(self) -> None:
        """A value that holds itself is refused as too deep, however often it does."""
        cycle: list[Any] = []
        cycle += [cycle, cycle]
        item: dict[str, Any] = {}
        item["self"] = [item]

        assert "deeper than 512" in refusal_of(entry(extra={"cycle": cycle})).problem
        assert "deeper than 512" in refusal_of(entry(output_items=[item])).problem

    @pytest.mark.parametrize(
        "value", [2**63 - 1, 2**63, 2**64, -(2**63), 10**400, -(10**4299)], ids=lambda value: str(value)[:20]
    )
    @pytest.mark.parametrize("checksum", [True, False])
    def test_large_integers_come_back(self, value: int, checksum: bool) -> None:
        """An integer as long as JSON readers take is stored digit for digit."""
        made = entry(extra={"number": value}, output_items=[{"numbers": [value] * 3}])

        assert decode_line(line_of(made, checksum=checksum), "r").entry == made

    def test_too_long_integers_are_refused(self) -> None:
        """An integer that no JSON reader would take back is refused with its field."""
        error = refusal_of(entry(extra={"number": 10**5000}))

        assert error.field == "number"
        assert "cannot be written as JSON" in error.problem

    @pytest.mark.parametrize("checksum", [True, False])
    def test_lists_of_plain_numbers_come_back(self, checksum: bool) -> None:
        """Tables of ints, bools and nulls keep their kinds."""
        made = entry(routed_experts=[[[0, 1, 2], [True, None, 7]], [[]], [[2**31]]])

        assert first_difference(made, decode_line(line_of(made, checksum=checksum), "r").entry) is None


class TestSize:
    """A line is at most as long as the configuration allows."""

    def test_the_longest_line_is_taken(self) -> None:
        """A line of just `max_entry_bytes` is taken; with a byte less, it is refused with both numbers."""
        length = len(line_of(entry()))

        check_entry(entry(), max_entry_bytes=length)
        with pytest.raises(InvalidEntryError, match=f"takes {length} bytes .*max_entry_bytes allows {length - 1}$"):
            check_entry(entry(), max_entry_bytes=length - 1)

    def test_nothing_is_checked_twice(self) -> None:
        """A draft holds the packed ids, so that whoever finishes the line need not look at them again."""
        draft = prepare(entry(), max_entry_bytes=LIMIT)

        assert draft.prompt == array("I", [1, 2, 3]).tobytes()
        assert draft.generation == array("I", [4, 5]).tobytes()


@pytest.mark.parametrize("code", [None, "", "context_length_exceeded", "é"])
def test_codes_are_texts(code: str | None) -> None:
    """The code of a refusal is None or a text."""
    check_text(code, "code", "c0")


@pytest.mark.parametrize(
    ("code", "problem"), [(400, "is of type int, it must be a string or None"), ("\ud800", "holds")]
)
def test_other_codes_are_refused(code: Any, problem: str) -> None:
    """Another kind of code, or one that UTF-8 cannot carry, is refused."""
    with pytest.raises(InvalidEntryError, match=f"call 'c0', code: {problem}"):
        check_text(code, "code", "c0")
