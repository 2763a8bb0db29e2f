"""Whatever may be stored comes back value for value, in either form, and means the same."""

from __future__ import annotations

import json
from array import array
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.sharing import LineFile, LineWriter, wandering_rollout
from tests.samples import line_of
from tokenstore.codec import check_entry, content_digest, decode_line, dumps, inspect_line, loads
from tokenstore.codec.plain import encode_entry, loads_vouched
from tokenstore.records import ENTRY_FIELDS, RESERVED_KEYS, TokenEntry
from tokenstore.testing import first_difference

EXHAUSTIVE = settings(derandomize=True, database=None, deadline=None, max_examples=40)
"""The same examples in every run."""

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
floats = st.floats(allow_nan=False, allow_infinity=False)
whole_numbers = st.integers() | st.integers(2**63 - 2, 2**64 + 2) | st.integers(-(2**64) - 2, -(2**63) + 2)
scalars = st.none() | st.booleans() | whole_numbers | floats | texts
names = texts | st.sampled_from(["prompt_token_ids", "generation_log_probs", "prompt_rest", "crc32", "model_call_id"])
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(names, inner, max_size=4)
    ),
    max_leaves=10,
)
objects = st.dictionaries(names, trees, max_size=4)
token_ids = st.lists(st.integers(0, 2**32 - 1) | st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1]), max_size=12)
log_probs = floats | floats.map(lambda value: array("f", [max(-3e38, min(3e38, value))])[0]) | st.integers(-(2**53), 0)
call_ids = st.from_regex(r"[!-~]([ -~é😊]{0,20}[!-~])?", fullmatch=True)
unknown = st.dictionaries(texts.filter(lambda name: name not in RESERVED_KEYS | {*ENTRY_FIELDS}), trees, max_size=3)


@st.composite
def entries(draw: st.DrawFn) -> TokenEntry:
    """Draw anything that may be stored."""
    generation = draw(token_ids)
    items = draw(st.lists(objects, max_size=3))
    return TokenEntry(
        rollout_id="r",
        model_call_id=draw(call_ids),
        prompt_token_ids=draw(token_ids),
        generation_token_ids=generation,
        generation_log_probs=draw(st.lists(log_probs, min_size=len(generation), max_size=len(generation))),
        model=draw(texts),
        routed_experts=draw(trees),
        output_items=items,
        token_item_index=draw(st.none() | st.integers(0, len(items) - 1)) if items else None,
        response_id=draw(st.none() | texts),
        created_at=draw(floats),
        extra=draw(unknown),
    )


@EXHAUSTIVE
@given(entries(), st.booleans())
def test_an_entry_comes_back(made: TokenEntry, checksum: bool) -> None:
    """What was written is read to the last bit, has the same content, and its line is found by its call."""
    check_entry(made)
    line = line_of(made, checksum=checksum)

    read = decode_line(line, "r").entry

    assert first_difference(made, read) is None
    assert content_digest(read) == content_digest(made)
    assert inspect_line(line, "r").model_call_id == made.model_call_id
    assert line_of(read, checksum=checksum) == line
    assert b"\n" not in line


@EXHAUSTIVE
@given(entries())
def test_both_forms_mean_the_same(made: TokenEntry) -> None:
    """The line with a checksum is the line without one, and the checksum."""
    full, checked = json.loads(line_of(made, checksum=False)), json.loads(line_of(made))

    assert checked.popitem()[0] == "crc32"
    assert checked == full
    assert full.keys() - made.extra.keys() <= {*ENTRY_FIELDS}


@EXHAUSTIVE
@given(entries())
def test_another_librarys_spelling_means_the_same(made: TokenEntry) -> None:
    """An entry that another JSON library wrote, in another order and in ASCII, has the same content."""
    members: dict[str, Any] = dict(reversed(encode_entry(made).items()))
    foreign = json.dumps(members).encode()

    read = decode_line(foreign, "r").entry

    assert first_difference(made, read) is None
    assert content_digest(read) == content_digest(made)


@EXHAUSTIVE
@given(trees)
def test_json_comes_back(tree: Any) -> None:
    """A tree that was written is read alike by the quick and the strict reader, and written in the same form again."""
    data = dumps(tree)

    assert loads(data) == loads_vouched(data) == json.loads(data)
    assert dumps(loads(data)) == dumps(loads_vouched(data)) == data


@EXHAUSTIVE
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_their_bits(number: float) -> None:
    """Every double is written so that both readers give it back."""
    assert [value.hex() for value in loads(dumps([number]))] == [number.hex()]
    assert [value.hex() for value in loads_vouched(dumps([number]))] == [number.hex()]


def test_a_hundred_thousand_float32_values_keep_their_bits() -> None:
    """Log probabilities as engines give them come back bit for bit."""
    bits = array("I", [0x80000000 + 20_771 * number for number in range(100_000)])
    values = [value for value in array("f", bits.tobytes()).tolist() if value - value == 0]
    made = TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[],
        generation_token_ids=[1] * len(values),
        generation_log_probs=values,
    )

    assert len(values) > 90_000
    for checksum in (True, False):
        assert first_difference(made, decode_line(line_of(made, checksum=checksum), "r").entry) is None


@settings(EXHAUSTIVE, max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 25), st.sampled_from([0, 700, 10**9]))
def test_a_rollout_with_shared_prompts_comes_back(seed: int, calls: int, max_tokens: int) -> None:
    """Calls with any mixture of bases come back whole, and their digests do not know how they were stored."""
    made = wandering_rollout(seed, calls)
    writer = LineWriter()
    for value in made:
        writer.write(value)

    read = [value for value in LineFile(writer.lines, max_tokens).read() if value]

    assert read == made
    assert [content_digest(value) for value in read] == [content_digest(value) for value in made]
