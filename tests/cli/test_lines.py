"""JSONL to numbered lines and entries, without files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenstore import TokenEntry
from tokenstore.cli.lines import Line, LineSplitter, Refusal, decode

ENTRY: dict[str, Any] = {
    "rollout_id": "r",
    "model_call_id": "c",
    "prompt_token_ids": [1, 2],
    "generation_token_ids": [3],
    "generation_log_probs": [-0.5],
}


def split(*chunks: bytes, limit: int = 100) -> list[Line]:
    """Feed chunks to a splitter and take all it gives."""
    splitter = LineSplitter(limit)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*lines, *splitter.end()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines_do_not_depend_on_chunks(size: int) -> None:
    """Lines have the same numbers and bytes wherever the chunks end; blank ones count but are not given."""
    text = b"one\n\n  \r\ntwo\r\nthree"
    chunks = [text[start : start + size] for start in range(0, len(text), size)]

    assert split(*chunks) == [Line(1, b"one"), Line(4, b"two\r"), Line(5, b"three")]


def test_a_long_line_costs_no_memory() -> None:
    """Of a line beyond the limit only its number is kept, and the lines after it are whole."""
    splitter = LineSplitter(10)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 9)) == []
        assert sum(map(len, splitter._parts)) <= 10

    assert list(splitter.feed(b"\nnext\n")) == [Line(1, None), Line(2, b"next")]


def test_a_line_at_the_limit_is_kept() -> None:
    """The limit itself is allowed, also without a newline at the end."""
    assert split(b"x" * 10, limit=10) == [Line(1, b"x" * 10)]
    assert split(b"x" * 11, limit=10) == [Line(1, None)]


def test_an_object_becomes_an_entry() -> None:
    """Declared fields are taken as they are, unknown ones are kept."""
    entry = decode(Line(1, json.dumps({**ENTRY, "group": 7}).encode()), 100)

    assert entry == TokenEntry(**ENTRY, extra={"group": 7})


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "longer than 100 bytes"),
        (b"{", "not JSON"),
        (b"nonsense", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a":NaN}', "not JSON"),
        (b"[]", "entry"),
        (b'"text"', "entry"),
        (b"{}", "rollout_id"),
        (json.dumps({**ENTRY, "crc32": 7}).encode(), "crc32"),
        (json.dumps({**ENTRY, "prompt_base": {}, "prompt_rest": []}).encode(), "prompt_base, prompt_rest"),
        (json.dumps({**ENTRY, "generation_log_probs": []}).encode(), "0 values for 1"),
        (json.dumps({**ENTRY, "rollout_id": "../up"}).encode(), "rollout id"),
        (json.dumps({**ENTRY, "model_call_id": "a\nb"}).encode(), "control character"),
        (json.dumps({**ENTRY, "schema_version": 99}).encode(), "99"),
        (json.dumps({**ENTRY, "prompt_token_ids": "12"}).encode(), "prompt_token_ids"),
    ],
)
def test_a_bad_line_says_what_is_wrong(data: bytes | None, problem: str) -> None:
    """Whatever a line holds, the answer is a refusal with its number that names the problem, never an exception."""
    refusal = decode(Line(7, data), 100)

    assert isinstance(refusal, Refusal)
    assert refusal.line == 7
    assert problem in refusal.problem
