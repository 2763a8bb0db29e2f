"""The comparison of entries sees every bit and tells nothing of the content."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tokenstore.records import TokenEntry
from tokenstore.testing import SHAPES, first_difference, shaped_rollout

ENTRY = TokenEntry(
    rollout_id="r",
    model_call_id="c1",
    prompt_token_ids=[1],
    generation_token_ids=[2, 3],
    generation_log_probs=[0.0, -0.5],
    output_items=[{"text": "secret", "parts": [1, True, None]}],
    created_at=1.0,
    extra={"reward": 1.0},
)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"model_call_id": "c2"}, "model_call_id"),
        ({"created_at": 2.0}, "created_at"),
        ({"prompt_token_ids": [1, 1]}, "prompt_token_ids (its length)"),
        ({"prompt_token_ids": [True]}, "prompt_token_ids[0]"),
        ({"generation_token_ids": [2, 4]}, "generation_token_ids[1]"),
        ({"generation_log_probs": [-0.0, -0.5]}, "generation_log_probs[0]"),
        ({"generation_log_probs": [0, -0.5]}, "generation_log_probs[0]"),
        ({"token_item_index": 0}, "token_item_index"),
        ({"response_id": ""}, "response_id"),
        ({"output_items": [{"text": "other", "parts": [1, True, None]}]}, "output_items[0]['text']"),
        ({"output_items": [{"text": "secret", "parts": [1, 1, None]}]}, "output_items[0]['parts'][1]"),
        ({"output_items": [{"text": "secret", "parts": None}]}, "output_items[0]['parts']"),
        ({"output_items": [{"text": "secret"}]}, "output_items[0] (its keys)"),
        ({"extra": {"reward": 1}}, "extra['reward']"),
        ({"extra": {"reward": 1.0, "null": None}}, "extra (its keys)"),
    ],
)
def test_difference_is_found(changes: dict[str, Any], place: str) -> None:
    """Each difference is named by its place."""
    assert first_difference(ENTRY, attrs.evolve(ENTRY, **changes)) == place


@pytest.mark.parametrize(
    "changes",
    [
        {"output_items": ({"parts": (1, True, None), "text": "secret"},)},
        {"prompt_token_ids": (1,)},
        {"created_at": 1},
    ],
)
def test_equal_entries(changes: dict[str, Any]) -> None:
    """Tuples are lists, and key order does not count."""
    assert first_difference(ENTRY, attrs.evolve(ENTRY, **changes)) is None


def test_whole_log_probs_are_expected_as_floats() -> None:
    """An entry put with whole log probabilities is expected back with floats."""
    assert first_difference(attrs.evolve(ENTRY, generation_log_probs=[0, -1]), ENTRY) == "generation_log_probs[1]"
    assert first_difference(attrs.evolve(ENTRY, generation_log_probs=[0, -0.5]), ENTRY) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_equal_themselves(shape: str) -> None:
    """A rollout made twice is the same to the last bit."""
    for first, second in zip(shaped_rollout(shape, "r"), shaped_rollout(shape, "r"), strict=True):
        stored = attrs.evolve(second, generation_log_probs=[float(value) for value in second.generation_log_probs])
        assert first_difference(first, stored) is None
