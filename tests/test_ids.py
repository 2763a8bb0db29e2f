"""Rollout ids name files safely, model call ids are lines."""

from __future__ import annotations

from typing import Any

import pytest

from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.ids import recordable_call_id, validate_model_call_id, validate_rollout_id, validate_rollout_ids
from tokenstore.journal.layout import Names

GOOD_ROLLOUT_IDS = ["r", ".x", "x.", "..x", "a-b_c.d", "-rf", "0", "CON", "r.tokens.jsonl", "a" * 237]
BAD_ROLLOUT_IDS: list[Any] = [
    *(
        "",
        ".",
        "..",
        "...",
        "a/b",
        "/",
        "a\\b",
        "é",
        "ａ",
        "a b",
        " a",
        "a\n",
        "\na",
        "a\0",
        "*",
        "~",
        "a:b",
        "x" * 238,
    ),
    *(None, 7, b"r", ["r"], True),
]
GOOD_CALL_IDS = ["c", "-c1", "c 1", "模型", "é", "😊", "a\u200bb", "a/b", '"', "\\", "c" * 512, "é" * 512, "\ufffd"]
BAD_CALL_IDS: list[Any] = [
    *("", " ", " x ", " x", "x ", "\tx", "x\u2003", "\u00a0x", "x\u2028", "a\nb", "a\rb", "a\0b", "a\x1fb", "a\x7fb"),
    *("a\x85b", "a\x9fb", "\ud800", "a\udfff", "c" * 513, "c" * 10_000, None, 7, b"c", True),
]


@pytest.mark.parametrize("rollout_id", GOOD_ROLLOUT_IDS)
def test_takes_plain_rollout_ids(rollout_id: str) -> None:
    """Up to 237 plain characters that are not dots alone are a rollout id, and each file name fits a directory."""
    assert validate_rollout_id(rollout_id) == rollout_id
    assert max(map(len, (*Names.of(rollout_id).evidence, Names.of(rollout_id).lock))) <= 255


@pytest.mark.parametrize("rollout_id", BAD_ROLLOUT_IDS, ids=ascii)
def test_refuses_other_rollout_ids(rollout_id: Any) -> None:
    """Whatever else could leave the directory, hide, or be no file name is refused, alone and in a batch."""
    with pytest.raises(InvalidRolloutIdError, match="1 to 237 characters"):
        validate_rollout_id(rollout_id)
    with pytest.raises(InvalidRolloutIdError, match="1 to 237 characters"):
        validate_rollout_ids(["good", rollout_id])


def test_says_how_long_a_rollout_id_is() -> None:
    """The message has the number of characters."""
    with pytest.raises(InvalidRolloutIdError, match="it has 238 characters"):
        validate_rollout_id("x" * 238)


def test_batches_count_duplicates_once() -> None:
    """A batch keeps its order, and an id that stands twice where it stands first."""
    assert validate_rollout_ids(["b", "a", "b", "c", "a"]) == ["b", "a", "c"]
    assert validate_rollout_ids(("a",)) == ["a"]
    assert validate_rollout_ids([]) == []


@pytest.mark.parametrize("text", ["abc", b"abc", bytearray(b"abc"), ""])
def test_a_bare_string_is_no_batch(text: Any) -> None:
    """A string given as a batch is a TypeError that says what to pass."""
    with pytest.raises(TypeError, match=r"pass \[rollout_id\]"):
        validate_rollout_ids(text)


@pytest.mark.parametrize("batch", [None, 7])
def test_a_batch_is_a_list(batch: Any) -> None:
    """What cannot hold ids is a TypeError that names its type."""
    with pytest.raises(TypeError, match=f"a list of strings, not a {type(batch).__name__}"):
        validate_rollout_ids(batch)


@pytest.mark.parametrize("call_id", GOOD_CALL_IDS, ids=ascii)
def test_takes_printable_call_ids(call_id: str) -> None:
    """Up to 512 characters without control characters or white space at an end are a model call id."""
    assert validate_model_call_id(call_id) == call_id
    assert recordable_call_id(call_id) == call_id


@pytest.mark.parametrize("call_id", BAD_CALL_IDS, ids=lambda value: ascii(value)[:20])
def test_refuses_other_call_ids(call_id: Any) -> None:
    """What could break a line of a file is refused, and recorded as blank where refusing is not possible."""
    with pytest.raises(InvalidEntryError, match="model_call_id") as refusal:
        validate_model_call_id(call_id)
    assert refusal.value.field == "model_call_id"
    assert len(str(refusal.value)) < 200
    assert recordable_call_id(call_id) == ""
