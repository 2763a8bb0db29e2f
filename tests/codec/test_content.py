"""Two entries mean the same, or do not, whoever wrote them and however they are stored."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from tests.samples import entry, line_of
from tokenstore.codec import content_digest, decode_line, dumps, encode_entry, loads, prepare
from tokenstore.codec.plain import decode_entry
from tokenstore.records import TokenEntry


def same(first: TokenEntry, second: TokenEntry) -> bool:
    """Tell whether two entries mean the same."""
    return content_digest(first) == content_digest(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"created_at": 1.0}, {"created_at": 2.0}),
        ({"extra": {"a": 1, "b": {"c": 2, "d": 3}}}, {"extra": {"b": {"d": 3, "c": 2}, "a": 1}}),
        ({"output_items": [{"a": [1, [2]]}]}, {"output_items": ({"a": (1, (2,))},)}),
        ({"routed_experts": ((1,), (2,))}, {"routed_experts": [[1], [2]]}),
        ({"generation_log_probs": [0, -1]}, {"generation_log_probs": [0.0, -1.0]}),
        ({"prompt_token_ids": [1, 2]}, {"prompt_token_ids": (1, 2)}),
        ({}, {"schema_version": 1, "routed_experts": None, "token_item_index": None, "response_id": None, "extra": {}}),
        ({"extra": {"text": "é/"}}, {"extra": {"text": "\u00e9\u002f"}}),
        ({"extra": {"x": 1e-5}}, {"extra": {"x": float("0.00001")}}),
    ],
    ids=str,
)
def test_same_content(first: dict[str, Any], second: dict[str, Any]) -> None:
    """When it was made, the order of keys, tuples or lists, and the spelling of numbers do not count."""
    assert same(entry(**first), entry(**second))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"rollout_id": "r"}, {"rollout_id": "s"}),
        ({"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [2, 1]}),
        ({"prompt_token_ids": []}, {"prompt_token_ids": [0]}),
        ({"generation_token_ids": [1, 2]}, {"generation_token_ids": [1, 3]}),
        ({"generation_log_probs": [0.0, -1.0]}, {"generation_log_probs": [-0.0, -1.0]}),
        ({"generation_log_probs": [0.0, -1.0]}, {"generation_log_probs": [5e-324, -1.0]}),
        ({"generation_log_probs": [-0.1, 0.0]}, {"generation_log_probs": [-0.10000000000000002, 0.0]}),
        ({"model": "m"}, {"model": ""}),
        ({"response_id": None}, {"response_id": ""}),
        ({"token_item_index": None}, {"token_item_index": 0}),
        ({"output_items": []}, {"output_items": [{}]}),
        ({"routed_experts": None}, {"routed_experts": []}),
        ({"extra": {"x": 1}}, {"extra": {"x": 1.0}}),
        ({"extra": {"x": 1}}, {"extra": {"x": True}}),
        ({"extra": {"x": 0}}, {"extra": {"x": False}}),
        ({"extra": {"x": 0.0}}, {"extra": {"x": -0.0}}),
        ({"extra": {"x": 1}}, {"extra": {"x": "1"}}),
        ({"extra": {"x": None}}, {"extra": {}}),
        ({"extra": {"x": []}}, {"extra": {"x": {}}}),
        ({"extra": {"x": "é"}}, {"extra": {"x": "e\u0301"}}),
        ({"extra": {"x": [[1], 2]}}, {"extra": {"x": [[1, 2]]}}),
        ({"output_items": [{"a": None}]}, {"output_items": [{}]}),
    ],
    ids=str,
)
def test_other_content(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Any other difference counts: one bit of a float, the kind of a number, a key that is there and null."""
    assert not same(entry(**first), entry(**second))


def test_calls_differ() -> None:
    """The call's id is content."""
    assert not same(entry("c0"), entry("c1"))


def test_ids_do_not_run_into_each_other() -> None:
    """The same ids cut into prompt and generation at another place are other content."""
    first = entry(prompt_token_ids=[1, 2], generation_token_ids=[3], generation_log_probs=[0.0])
    second = entry(prompt_token_ids=[1], generation_token_ids=[2, 3], generation_log_probs=[0.0, 0.0])

    assert not same(first, second)


@pytest.mark.parametrize("checksum", [True, False])
def test_is_the_same_after_storage(checksum: bool) -> None:
    """An entry that comes back from a line, with or without checksum, has the content that it had."""
    made = entry(
        generation_log_probs=[-1.25e-5, -0.0],
        routed_experts=((1, 2), (3,)),
        output_items=[{"b": 1, "a": (1.0, True, None)}],
        extra={"z": {"y": 1e-7, "x": 2**70}},
    )

    assert same(made, decode_line(line_of(made, checksum=checksum), "r").entry)
    assert prepare(made, max_entry_bytes=10_000).content == content_digest(made)


def test_is_the_same_after_json() -> None:
    """An entry that went through anybody's JSON, with `/` escaped and floats spelt out, has the content that it had."""
    made = entry(generation_log_probs=[-1.25e-5, -3.3e-5], output_items=[{"text": "a/b é"}], extra={"x": 1.25e-5})
    text = dumps(encode_entry(made)).decode()

    foreign = text.replace("/", "\\/").replace("é", "\\u00e9").replace("-1.25e-5", "-0.0000125")

    assert foreign != text
    assert same(made, decode_entry(loads(foreign)))


def test_is_what_the_contract_says() -> None:
    """The digest is sha256 over ids as uint32, log probabilities as float64 and the rest as canonical JSON."""
    made = entry(prompt_token_ids=[1, 2**32 - 1], extra={"a": 1})
    rest = (
        b'{"a":1,"model":"m","model_call_id":"c0","output_items":[{"text":"hello","type":"message"}],"response_id":null,'
        b'"rollout_id":"r","routed_experts":null,"schema_version":1,"token_item_index":null}'
    )
    parts = (struct.pack("<2I", 1, 2**32 - 1), struct.pack("<2I", 4, 5), struct.pack("<2d", -0.5, -1.25), rest)

    expected = hashlib.sha256(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()

    assert content_digest(made) == expected
