"""A large line is read in slices and gives what the whole reading gives."""

from __future__ import annotations

import json
import random
from array import array
from itertools import product
from typing import Any

import pytest

from tests.samples import entry, line_of, vouched
from tokenstore.codec import DamagedLineError, LineHead, UnacceptableLineError, decode_line, inspect_line, loads
from tokenstore.codec.checks import SLICE
from tokenstore.codec.line import _LARGE_LINE
from tokenstore.records import TokenEntry
from tokenstore.testing import first_difference

KEYS = ("generation_log_probs", "generation_token_ids", "prompt_rest", "prompt_token_ids")
"""The members that are read in slices."""
PADDING = "x" * _LARGE_LINE
"""Text that makes a line large."""

NESTED: dict[str, Any] = {
    "flat": [1, 2, 3],
    "empty": [],
    "lists": [[1, 2], [3]],
    "deep": [[[[]]], []],
    "texts": ["a]b", "c"],
    "a bracket": ["]"],
    "quotes": ['"]', '\\"],"x":["'],
    "objects": [{"x": [1], "y": 2}, {"z": "]"}],
    "closers": [{"a": "]}"}, "]}]}"],
    "a key": ['],"model_call_id":"other"', 1],
    "numbers": "1,2]",
}
"""Values under one of these keys inside an item, most of which cannot be cut at the first `]`."""


def large(seed: int, *, prompt: int, generation: int, **fields: Any) -> TokenEntry:
    """Make an entry of random numbers."""
    chance = random.Random(seed)  # noqa: S311 - test data
    log_probs = array("f", [-(chance.random() ** 9) for _ in range(generation)])
    ids = array("I", chance.randbytes(4 * (prompt + generation))).tolist()
    return entry(
        prompt_token_ids=[*[number % 16 for number in ids[: prompt // 4]], *ids[prompt // 4 : prompt]],
        generation_token_ids=[number % 150_000 for number in ids[prompt:]],
        generation_log_probs=log_probs.tolist(),
        **fields,
    )


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize(
    ("prompt", "generation"),
    [(131_072, 4096), (60_000, 0), (0, 30_000), (SLICE * 9, SLICE), (SLICE * 9 + 1, SLICE + 1), (SLICE * 9 - 1, 1)],
)
def test_comes_back(prompt: int, generation: int, checksum: bool) -> None:
    """Long arrays of any length come back to the last bit, and are spelt as the short ones are."""
    made = large(prompt, prompt=prompt, generation=generation)
    line = line_of(made, checksum=checksum)
    members = loads(line)

    stored = decode_line(line, "r")

    assert len(line) > _LARGE_LINE
    assert first_difference(made, stored.entry) is None
    assert members["prompt_token_ids"] == made.prompt_token_ids
    assert members["generation_log_probs"] == made.generation_log_probs
    assert inspect_line(line, "r") == LineHead("c0", None)


@pytest.mark.parametrize("model", ["m", PADDING], ids=["small", "large"])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", NESTED.values(), ids=NESTED)
def test_keys_inside_items_are_left_alone(value: Any, key: str, model: str) -> None:
    """A value inside an item that has the name of an array is neither cut nor taken for the line's own."""
    inner = {"a": 0, key: value, "zz": 1}
    places: list[dict[str, Any]] = [
        {"output_items": [inner]},
        {"routed_experts": inner},
        {"extra": {"other": inner}},
    ]

    for place, checksum in product(places, (True, False)):
        made = large(1, prompt=300, generation=20, model=model, **place)
        line = line_of(made, checksum=checksum)
        assert first_difference(made, decode_line(line, "r").entry) is None, place
        assert inspect_line(line, "r") == LineHead("c0", None), place


def test_texts_that_look_like_arrays_are_left_alone() -> None:
    """The name of an array inside a text is text, whatever stands around it."""
    texts = [f'{{"a":0,"{key}":[1,2,3' for key in KEYS]
    made = large(2, prompt=300, generation=20, model=PADDING, output_items=[{"texts": texts}])

    assert first_difference(made, decode_line(line_of(made), "r").entry) is None


def test_an_own_array_without_an_end_is_damage() -> None:
    """A line that ends inside an array is damaged, be its checksum right."""
    line = line_of(large(3, prompt=60_000, generation=1), checksum=False)
    torn = vouched(line[: line.index(b'"prompt_token_ids"') + 100])

    for read in (decode_line, inspect_line):
        with pytest.raises(DamagedLineError):
            read(torn, "r")


@pytest.mark.parametrize("wrong", [b"[[1],[2]]", b"[1,,2]", b'["]"]', b"[null]", b"[1,]"])
def test_a_vouched_array_of_something_else_is_never_taken(wrong: bytes) -> None:
    """A large line with a right checksum over an array that is none of numbers is refused."""
    line = line_of(large(4, prompt=60_000, generation=2), checksum=False)
    start = line.index(b'"generation_token_ids":') + len(b'"generation_token_ids":')
    changed = line[:start] + wrong + line[line.index(b"]", start) + 1 :]

    with pytest.raises((DamagedLineError, UnacceptableLineError)):
        decode_line(vouched(changed), "r")


def test_the_standard_library_reads_it_too() -> None:
    """A large line is JSON for everybody."""
    made = large(5, prompt=SLICE * 9, generation=SLICE * 2)

    assert json.loads(line_of(made))["generation_token_ids"] == made.generation_token_ids
