"""Cases 12 to 18: values that are refused, values that come back bit for bit, bytes that are never taken for them."""

from __future__ import annotations

import json
import math
import struct
from array import array
from typing import Any

import pytest

from tests.cases.given import (
    TOKENS,
    assert_same,
    calls,
    entry,
    frozen,
    own,
    planted,
    rec,
    refused,
    store_on,
)
from tokenstore import (
    ConflictingEntryError,
    TokenCaptureStore,
    TokenEntry,
)
from tokenstore.testing import SimulatedDisk, agent_rollout, shaped_rollout

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("line", [rec, own], ids=["reference", "ours"])
@pytest.mark.parametrize("numbers", [b"[-,-0.2]", b"[-0.1,-]", b"[-0.1,-0.]", b"[-.1,-0.2]", b"[-0.1-0.2]"])
async def test_case_12_a_digit_turned_into_a_minus_is_damage(line: Any, numbers: bytes) -> None:
    """A log probability that is no number any more makes its line damaged, and is never read as 0.0."""
    changed = line(2).replace(b"[-0.1,-0.2]", numbers)
    disk = planted(line(1), changed, line(3))

    snapshot = await frozen(disk)

    assert changed != line(2)
    assert_same(snapshot.entries, entry(1), entry(3))
    assert snapshot.incomplete_reasons == (f"damaged:{len(line(1)) + 1}+{len(changed) + 1}",)


@pytest.mark.parametrize("bit", [0, 3, 7])
async def test_case_12_any_flipped_bit_of_our_line_masks(bit: int) -> None:
    """Whichever bit of a line of ours has flipped, its entry is not delivered as good and its neighbours are."""
    line = own(2)
    for position in range(bit, len(line), 8):
        flipped = bytearray(line)
        flipped[position] ^= 1 << bit
        disk = planted(own(1), bytes(flipped), own(3))

        snapshot = await frozen(disk)

        assert_same([snapshot.entries[0], snapshot.entries[-1]], entry(1), entry(3))
        assert (len(snapshot.entries), snapshot.incomplete) == (2, True), position


@pytest.mark.parametrize("sealed", [False, True])
async def test_case_12_a_changed_digit_in_a_covered_line_of_the_reference_masks(sealed: bool) -> None:
    """A line without a checksum that is still well-formed is damaged if a digest covers it and disagrees."""
    disk = SimulatedDisk()
    async with store_on(disk, prompt_storage="full") as store:
        for number in (1, 2, 3):
            await store.put(entry(number))
        await store.mark_incomplete("r", "c9")
    if sealed:
        await frozen(disk)
    disk.write_file(TOKENS, disk.read_file(TOKENS).replace(b"70002", b"70005"))

    snapshot = await frozen(disk)

    assert calls(snapshot) == ["c1", "c3"]
    assert any(reason.startswith("damaged:") for reason in snapshot.incomplete_reasons)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"created_at":1.5', b'"created_at":01'),
        (b'"created_at":1.5', b'"created_at":1.'),
        (b'"created_at":1.5', b'"created_at":.5'),
        (b'"created_at":1.5', b'"created_at":+1'),
        (b'"created_at":1.5', b'"created_at":1e400'),
        (b'"created_at":1.5', b'"created_at":NaN'),
        (b'"created_at":1.5', b'"created_at":-Infinity'),
        (b"[-0.1,-0.2]", b"[NaN,-0.2]"),
        (b"[-0.1,-0.2]", b"[-0.1,-1e999]"),
        (b"[-0.1,-0.2]", b"[-0.1,-0.2,]"),
        (b"[-0.1,-0.2]", b"[-00.1,-0.2]"),
        (b'"answer 2"', b'"answer\t2"'),
        (b'"answer 2"', b'"answer\r2"'),
        (b'"answer 2"', b'"answer\x002"'),
        (b'"answer 2"', b'"answer\xff2"'),
        (b'"answer 2"', b'"answer\\x2"'),
        (b'"answer 2"', b"'answer 2'"),
        (b'"token_item_index":0', b'"token_item_index":0x0'),
        (b'"token_item_index":0}', b'"token_item_index":0}}'),
        (b'"token_item_index":0}', b'"token_item_index":0} {}'),
        (b'"routed_experts":null', b'"routed_experts":None'),
        (b'{"created_at"', b'\xef\xbb\xbf{"created_at"'),
    ],
)
async def test_case_13_a_foreign_line_that_is_no_strict_json_is_damaged(old: bytes, new: bytes) -> None:
    """What lenient parsers let pass is damage in a line without a checksum."""
    changed = rec(2).replace(old, new)
    disk = planted(rec(1), changed, rec(3))

    snapshot = await frozen(disk)

    assert changed != rec(2)
    assert_same(snapshot.entries, entry(1), entry(3))
    assert snapshot.incomplete
    assert all(reason.startswith("damaged:") for reason in snapshot.incomplete_reasons)


async def test_case_13_a_raw_newline_in_a_string_makes_one_damaged_range() -> None:
    """A line that a raw newline cuts in two is one damaged range between good lines."""
    changed = rec(2).replace(b"answer 2", b"answer\n2")
    disk = planted(rec(1), changed, rec(3))
    start = len(rec(1)) + 1

    snapshot = await frozen(disk)

    assert calls(snapshot) == ["c1", "c3"]
    assert snapshot.incomplete_reasons == (f"damaged:{start}+{len(changed) + 1}",)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, True, "-0.5", 10**400, -0.5j, [-0.5]])
@pytest.mark.parametrize("position", [0, 20_000])
async def test_case_14_a_log_prob_that_is_no_finite_number_is_refused(value: Any, position: int) -> None:
    """A log probability that is not finite is refused with its call and position, and other entries stay readable."""
    log_probs = [-0.5] * position + [value, -0.25]

    error = await refused({"generation_token_ids": [1] * (position + 2), "generation_log_probs": log_probs})

    assert "'c2'" in str(error)
    assert "generation_log_probs" in str(error)
    assert f"position {position} " in str(error)


@pytest.mark.parametrize("storage", ["shared", "full"])
async def test_case_14_unusual_log_probs_are_kept_bit_for_bit(storage: str) -> None:
    """The ends of the doubles and both zeros come back with their 64 bits, an int as the float it is."""
    log_probs = [
        -9999.0,
        0,
        -0.0,
        5e-324,
        -5e-324,
        -1e-5,
        -1.25e-5,
        -9.999e-5,
        -1e-4,
        1.7976931348623157e308,
        0.1 + 0.2,
    ]
    ids = list(range(len(log_probs)))
    disk = SimulatedDisk()

    async with store_on(disk, prompt_storage=storage) as store:
        await store.put(entry(1, generation_token_ids=ids, generation_log_probs=log_probs))
        snapshot = await store.freeze("r")

    given = snapshot.entries[0].generation_log_probs
    assert struct.pack(f"<{len(ids)}d", *given) == struct.pack(f"<{len(ids)}d", *log_probs)
    assert set(map(type, given)) == {float}


@pytest.mark.parametrize("value", ["12", 1.9, 1.0, True, False, -1, 2**32, 2**40, 10**30, None, [1], b"1"])
@pytest.mark.parametrize("field", ["prompt_token_ids", "generation_token_ids"])
@pytest.mark.parametrize("position", [0, 9_000])
async def test_case_15_what_is_no_token_id_is_refused(value: Any, field: str, position: int) -> None:
    """A token id is an int in 0 .. 2**32 - 1 and nothing that merely looks like one."""
    ids = [7] * position + [value, 8]

    error = await refused({field: ids, "generation_log_probs": [-0.5] * (position + 2 if "gen" in field else 2)})

    assert field in str(error)
    assert f"position {position} " in str(error)


@pytest.mark.parametrize(
    "value",
    ["123", b"123", bytearray(b"123"), 5, None, {1, 2}, {"a": 1}, iter([1]), memoryview(b"ab").cast("B", (1, 2))],
    ids=lambda value: type(value).__name__,
)
async def test_case_15_what_is_no_list_is_refused(value: Any) -> None:
    """A whole list that is text, raw bytes or no flat array is refused with the field."""
    error = await refused({"prompt_token_ids": value})

    assert "prompt_token_ids" in str(error)


@pytest.mark.parametrize(
    "given",
    [
        {"output_items": [{"text": "a\ud800"}]},
        {"output_items": [{}, {"\udfff": 1}]},
        {"output_items": [{"deep": [[{"x": "\ud83d"}]]}]},
        {"model": "\ud800"},
        {"response_id": "\udc00"},
        {"extra": {"\ud800": 1}},
        {"extra": {"x": ["\ud800"]}},
        {"routed_experts": "\ud800"},
        {"model_call_id": "c\ud800"},
    ],
    ids=str,
)
async def test_case_16_a_lone_surrogate_is_refused(given: dict[str, Any]) -> None:
    """Text that UTF-8 cannot carry is refused before a byte is written."""
    error = await refused(given)

    assert "surrogate" in str(error)


async def test_case_16_a_surrogate_pair_is_a_character() -> None:
    """A character beyond the first plane is kept as it is."""
    disk = SimulatedDisk()
    given = entry(1, output_items=[{"text": "\U0001f600\u2028\x7f\x00"}])

    async with store_on(disk) as store:
        await store.put(given)

    assert_same((await frozen(disk)).entries, given)


def respelt(given: TokenEntry) -> TokenEntry:
    """The same entry after it went through other libraries: keys turned round, `/` escaped, another time."""
    names = ("model", "routed_experts", "output_items", "token_item_index", "response_id", "extra")
    rest = json.dumps({name: getattr(given, name) for name in names}, sort_keys=True).replace("/", "\\/")
    turned = json.loads(rest, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
    log_probs = [float(f"{log_prob:.17f}") if log_prob > -1e-3 else log_prob for log_prob in given.generation_log_probs]
    if log_probs != given.generation_log_probs:
        log_probs = [float(format(log_prob, ".25e")) for log_prob in given.generation_log_probs]
    return TokenEntry(
        rollout_id=given.rollout_id,
        model_call_id=given.model_call_id,
        prompt_token_ids=tuple(given.prompt_token_ids),
        generation_token_ids=array("I", given.generation_token_ids),
        generation_log_probs=array("d", log_probs),
        created_at=given.created_at + 1000,
        **turned,
    )


@pytest.mark.parametrize("storage", ["shared", "full"])
@pytest.mark.parametrize("state", ["open", "restarted", "frozen"])
async def test_case_17_an_entry_spelt_otherwise_is_the_same(storage: str, state: str) -> None:
    """The same content put again is a no-op however it is spelt, also after a restart and as a shared prompt."""
    rollout = [*agent_rollout("r", turns=3, first_prompt=400, item_chars=60), *shaped_rollout("edge_values", "r")]
    disk = SimulatedDisk()

    async with store_on(disk, prompt_storage=storage) as first:
        for each in rollout:
            await first.put(each)
        if state == "frozen":
            await first.freeze("r")
        if state == "open":
            await _put_again(first, rollout)
    async with store_on(disk, prompt_storage=storage) as second:
        await _put_again(second, rollout)
        snapshot = await second.freeze("r")

    assert_same(snapshot.entries, *rollout)
    assert not snapshot.incomplete
    assert (b"prompt_base" in disk.read_file(TOKENS)) == (storage == "shared")


async def _put_again(store: TokenCaptureStore, rollout: list[TokenEntry]) -> None:
    for each in reversed(rollout):
        await store.put(respelt(each))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[-0.1,-0.2]", b"[-1e-1,-20.0E-2]"),
        (b'"answer 1"', b'"\\u0061nswer\\u00201"'),
        (b'"type":"message"', b'"type" : "mess\\u0061ge"'),
        (b'"created_at":1.5', b'"created_at":1600'),
        (b'"response_id":"resp-1",', b'"response_id": "resp-1" , '),
        (b'"extra', b'"extra'),
    ],
)
async def test_case_17_a_line_of_another_spelling_is_the_same(old: bytes, new: bytes) -> None:
    """A stored line of another writer, spelt in its way, is the same call as our entry."""
    disk = planted(rec(1).replace(old, new))

    async with store_on(disk) as store:
        await store.put(entry(1))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, snapshot.entries[0])
    assert not snapshot.incomplete
    assert snapshot.version == 2


@pytest.mark.parametrize(
    "other",
    [
        {"generation_log_probs": [-0.1, -0.20000000000000004]},
        {"generation_log_probs": [-0.2, -0.1]},
        {"prompt_token_ids": [1, 151_644]},
        {"model": "M"},
        {"output_items": [{"type": "message", "text": "answer 1", "n": None}]},
        {"output_items": [{"type": "message", "text": "answer 1"}, {}]},
        {"extra": {"n": None}},
        {"extra": {"n": 1}},
        {"response_id": None},
        {"token_item_index": None},
        {"routed_experts": []},
    ],
    ids=str,
)
async def test_case_17_another_content_is_a_conflict(other: dict[str, Any]) -> None:
    """What differs in anything but the time of its making is a conflict, which masks the rollout."""
    disk = planted(rec(1))

    async with store_on(disk) as store:
        with pytest.raises(ConflictingEntryError):
            await store.put(entry(1, **other))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1))
    assert snapshot.incomplete_reasons == ("conflict:c1",)


async def test_case_18_float32_log_probs_are_bit_equal() -> None:
    """A hundred thousand log probabilities that are float32 values come back bit for bit."""
    rollout = agent_rollout("r", seed=18, turns=1, generated=100_000)
    disk = SimulatedDisk()

    async with store_on(disk) as store:
        await store.put(rollout[0])
        snapshot = await store.freeze("r")

    given = array("d", snapshot.entries[0].generation_log_probs)
    assert given.tobytes() == array("d", rollout[0].generation_log_probs).tobytes()
    assert array("d", array("f", given)).tobytes() == given.tobytes()
