"""Token ids are checked and packed, at the speed of what is not known yet."""

from __future__ import annotations

import enum
import random
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.codec.test_checks import refusal_of
from tests.samples import entry, line_of
from tokenstore.codec import KnownPrompt, check_entry, decode_line
from tokenstore.codec.checks import SLICE
from tokenstore.codec.packing import LOOKS, PACKED_SLICE, Packed, joined, pack_ids
from tokenstore.errors import InvalidEntryError

IDS = ("prompt_token_ids", "generation_token_ids")


class Token(enum.IntEnum):
    """Stands in for ids that are an int by another name."""

    EOS = 7


def with_ids(field: str, ids: Any) -> Any:
    """Make an entry with these ids in a field."""
    log_probs = [0.0] * len(ids)
    return entry(**{field: ids}, **({"generation_log_probs": log_probs} if field == IDS[1] else {}))


def known(prompt: Sequence[int], generation: Sequence[int] = ()) -> KnownPrompt:
    """Make a call that ids may begin with."""
    first, second = pack_ids(prompt, "ids", "c"), pack_ids(generation, "ids", "c")
    return KnownPrompt("c", first.ids, 0, second.ids, joined(first, second))


def problem_of(ids: Sequence[int], *calls: KnownPrompt) -> str:
    """Tell why ids are refused."""
    with pytest.raises(InvalidEntryError) as refusal:
        pack_ids(ids, "ids", "c", calls)
    return refusal.value.problem


class TestIds:
    """Token ids are ints in 0 .. 2**32 - 1."""

    @pytest.mark.parametrize("field", IDS)
    @pytest.mark.parametrize("position", [0, 1, SLICE - 1, SLICE, 2 * SLICE + 5])
    @pytest.mark.parametrize(
        ("bad", "problem"),
        [
            (True, "holds a value of type bool, ids are ints"),
            (None, "holds a value of type NoneType, ids are ints"),
            ("7", "holds a value of type str, ids are ints"),
            (1.0, "holds a value of type float, ids are ints"),
            (1.9, "holds a value of type float, ids are ints"),
            (b"7", "holds a value of type bytes, ids are ints"),
            ([7], "holds a value of type list, ids are ints"),
            (-1, "is outside 0 .. 2**32 - 1"),
            (2**32, "is outside 0 .. 2**32 - 1"),
            (2**40, "is outside 0 .. 2**32 - 1"),
            (10**400, "is outside 0 .. 2**32 - 1"),
        ],
    )
    def test_other_values_are_refused(self, field: str, position: int, bad: Any, problem: str) -> None:
        """An id that is no int, or out of range, is refused with its field and its position, in any slice."""
        error = refusal_of(with_ids(field, [*range(position), bad, 1, True]))

        assert (error.field, error.problem.split(";")[0]) == (field, f"position {position} {problem}")

    @pytest.mark.parametrize("field", IDS)
    def test_the_whole_range_is_taken(self, field: str) -> None:
        """Both ends of the range, and everything in any slice, are taken."""
        ids = [0, 2**32 - 1, *range(2 * SLICE), 2**31]

        stored = decode_line(line_of(with_ids(field, ids)), "r")

        assert getattr(stored.entry, field) == ids

    def test_arrays_of_numbers_are_numbers(self) -> None:
        """Bools that an array has turned into numbers are numbers; a list of bools is refused."""
        check_entry(with_ids(IDS[0], array("I", [True, False])))

        assert "type bool" in refusal_of(with_ids(IDS[0], [True, False])).problem

    def test_negative_numbers_of_an_array_are_refused(self) -> None:
        """An array of a wider type is looked at like a list."""
        assert "position 1 is outside" in refusal_of(with_ids(IDS[0], array("q", [0, -1]))).problem
        assert "position 1 is outside" in refusal_of(with_ids(IDS[1], np.array([0, 2**32]))).problem

    def test_named_ints_are_ints(self) -> None:
        """An int by another name is stored as the number."""
        assert decode_line(line_of(entry(prompt_token_ids=[Token.EOS])), "r").entry.prompt_token_ids == [7]

    def test_long_prompts_are_told_apart_by_position(self) -> None:
        """A bool is found at its place among more ids than are packed in one go, few of them small or many."""
        for other in (7, 0):
            ids: list[int] = [other] * (2 * PACKED_SLICE + 3)
            ids[-2] = True

            assert f"position {len(ids) - 2} holds a value of type bool" in problem_of(ids)

    def test_the_first_of_several_wrong_ids_is_named(self) -> None:
        """A bool is named before a wrong id that comes later, also where both are far apart in a long prompt."""
        for length in (4, 2 * PACKED_SLICE):
            ids: list[int] = [7] * length
            ids[1], ids[-1] = True, -1

            assert "position 1 holds a value of type bool" in problem_of(ids)


class TestBeginnings:
    """What is known of a call is not looked for again in ids that begin with it."""

    def test_a_bool_is_refused_wherever_it_is(self) -> None:
        """A bool in the place of a known 0 or 1, or behind what is known, is refused with its position."""
        ids = [5, 1, 9, 0, 8, 1, 7, 0, 3]
        call = known(ids[:4], ids[4:6])
        small = [at for at, value in enumerate(ids) if value < 2]
        for at in small:
            assert f"position {at} holds a value of type bool" in problem_of(
                [bool(value) if place == at else value for place, value in enumerate(ids)], call
            )

        assert sorted(pack_ids(ids, "ids", "c", [call]).small or ()) == small

    def test_the_longest_call_that_fits_is_taken(self) -> None:
        """Calls that the ids do not begin with are passed over: longer ones, and one that ends otherwise."""
        ids = [5, 1, 9, 0, 8]
        calls = [known([*ids, 6]), known(ids[:3], [7]), known(ids[:2], ids[2:3]), known([])]

        assert "position 1 " in problem_of([5, True, 9, 0, 8], *calls)
        assert "position 3 " in problem_of([5, 1, 9, False, 8], *calls)
        assert sorted(pack_ids(ids, "ids", "c", calls).small or ()) == [1, 3]

    def test_is_the_same_as_without(self) -> None:
        """Whatever is known, the bytes are the same, and so are the places, while there are few."""
        rng = random.Random(3)  # noqa: S311 - repeatable
        for _ in range(300):
            ids = [rng.choice((0, 1, 2, 256, 2**16, 2**24, 2**32 - 1)) for _ in range(rng.randrange(60))]
            cuts = sorted(rng.randrange(len(ids) + 1) for _ in range(2))
            whole = pack_ids(ids, "ids", "c")
            told = pack_ids(ids, "ids", "c", [known(ids[: cuts[0]], ids[cuts[0] : cuts[1]])])
            places = [at for at, value in enumerate(ids) if value < 2]

            assert told.ids == whole.ids == b"".join(value.to_bytes(4, "little") for value in ids)
            assert told.small is None or sorted(told.small) == places
            assert whole.small is None or sorted(whole.small) == places

    @pytest.mark.parametrize("number", [0, 1, 256])
    def test_many_small_ids_are_told_by_the_types_of_all(self, number: int) -> None:
        """Of more places than are looked at one by one none is kept, and a bool among them is refused all the same."""
        ids = [number] * (4 * LOOKS)
        call = known(ids)

        assert call.small is None
        assert pack_ids([*ids, 9], "ids", "c", [call]).small is None
        assert f"position {len(ids)} " in problem_of([*ids, True], call)
        assert "position 1 " in problem_of([2**8, True, *ids], call)

    def test_places_of_two_runs_are_put_together(self) -> None:
        """The places of the second run follow the ids of the first; too many together are none."""
        first = Packed(bytes(4 * 3), (0, 2))

        assert joined(first, Packed(b"", ())) == (0, 2)
        assert joined(first, Packed(bytes(8), (1,))) == (0, 2, 4)
        assert joined(first, Packed(bytes(4 * LOOKS), tuple(range(LOOKS)))) is None
        assert joined(first, Packed(b"", None)) is joined(Packed(b"", None), first) is None
