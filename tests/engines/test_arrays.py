"""Arrays and numbers of numpy and torch as ids or log probabilities work, or are refused with the remedy."""

from __future__ import annotations

from array import array
from typing import Any

import attrs
import numpy as np
import pytest

from tests.engines.dialects import DIALECTS, IDS, SMALL, Spoken
from tokenstore.engines import responses, vllm
from tokenstore.errors import EngineAnswerError

EXACT = Spoken([1, 2, 3], [5, 6, 7, 6], [-0.5, 0.0, -0.25, -2.0])
"""Log probabilities that are float16 too."""


@attrs.frozen
class Tensor:
    """Stands in for a tensor of torch: no buffer, no sequence, a `tolist`; of no dimensions it is one number."""

    value: Any

    def tolist(self) -> Any:
        """Give plain numbers."""
        return self.value


@attrs.frozen
class MetaTensor:
    """Stands in for a tensor without data."""

    def tolist(self) -> Any:
        """Fail, as torch does."""
        raise RuntimeError("Tensor on device meta is not on the expected device")


def response(**arrays: Any) -> dict[str, Any]:
    """Write a response whose arrays are of another kind."""
    body = DIALECTS["responses"].whole(EXACT)
    body["output"][1].update(arrays)
    return body


@pytest.mark.parametrize(
    "ids",
    [np.array(EXACT.ids, kind) for kind in (np.int64, np.int32, np.uint32, np.uint8)]
    + [Tensor(EXACT.ids), tuple(EXACT.ids), array("I", EXACT.ids), memoryview(array("I", EXACT.ids))]
    + [list(np.array(EXACT.ids)), [Tensor(number) for number in EXACT.ids], np.array(EXACT.ids, object)],
    ids=lambda ids: type(ids).__name__,
)
def test_ids_of_any_integer_array_work(ids: Any) -> None:
    """Ids come out as plain ints, from an array or a list of its numbers, also in the prompt."""
    made = responses.entry_from_response(response(generation_token_ids=ids), **IDS)
    repeated = Spoken(EXACT.ids, EXACT.ids, EXACT.log_probs)
    prompted = vllm.entry_from_response(DIALECTS["vllm generate"].whole(repeated), **IDS, prompt_token_ids=ids)

    assert made.generation_token_ids == EXACT.ids
    assert {type(number) for number in made.generation_token_ids} == {int}
    assert (prompted.prompt_token_ids, type(prompted.prompt_token_ids[0])) == (EXACT.ids, int)


@pytest.mark.parametrize(
    "log_probs",
    [np.array(EXACT.log_probs, kind) for kind in (np.float64, np.float32, np.float16)]
    + [Tensor(EXACT.log_probs), tuple(EXACT.log_probs), array("d", EXACT.log_probs), [-0.5, 0, -0.25, -2]]
    + [list(np.array(EXACT.log_probs, np.float32)), [Tensor(number) for number in EXACT.log_probs]],
    ids=lambda log_probs: type(log_probs).__name__,
)
def test_log_probs_of_any_float_array_work(log_probs: Any) -> None:
    """Log probabilities come out as plain floats, from an array or a list of its numbers."""
    made = responses.entry_from_response(response(generation_log_probs=log_probs), **IDS)

    assert made.generation_log_probs == EXACT.log_probs
    assert {type(number) for number in made.generation_log_probs} == {float}


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (np.array(SMALL.ids, float), r"_ids\[0\]: is of type float, an id is an int; a tensor's .tolist\(\) gives"),
        (np.array([True, False, True, True]), r"_ids\[0\]: is of type bool, an id is an int"),
        (np.array([[5, 6, 7, 6]]), r"_ids\[0\]: is of type list, an id is an int; a tensor's .tolist\(\)"),
        (np.int64(5), r"_ids: is of type int64, it must be a list; a tensor's .tolist\(\) gives plain numbers"),
        (Tensor(5), r"_ids: is of type Tensor, it must be a list"),
        (MetaTensor(), r"_ids: is of type MetaTensor whose .tolist\(\) fails with RuntimeError; pass a list"),
        ([Tensor(True), 6, 7, 6], r"_ids\[0\]: is of type Tensor, an id is an int"),
        ([Tensor([5]), 6, 7, 6], r"_ids\[0\]: is of type Tensor, an id is an int"),
        (np.array(["5", "6", "7", "6"]), r"_ids\[0\]: is of type str"),
        (np.array([5, 6, 7, -1]), r"_ids\[3\]: is outside 0 .. 2\*\*32 - 1"),
    ],
)
def test_other_arrays_are_refused_with_the_remedy(ids: Any, problem: str) -> None:
    """What is no flat array of integers is refused, and the message says what to pass."""
    with pytest.raises(EngineAnswerError, match=problem):
        responses.entry_from_response(response(generation_token_ids=ids), **IDS)


@pytest.mark.parametrize(
    ("log_probs", "problem"),
    [
        (np.array([-0.5, np.nan, 0, 0]), r"_probs\[1\]: is nan, a log prob is a finite number"),
        (np.array([-0.5, -np.inf, 0, 0]), r"_probs\[1\]: is -inf"),
        (np.array([[-0.5, 0, 0, 0]]), r"_probs\[0\]: is of type list, a log prob is a finite number; a tensor's"),
        (np.array([True, False, False, True]), r"_probs\[0\]: is of type bool"),
        ([Tensor(None), 0.0, 0.0, 0.0], r"_probs\[0\]: is of type Tensor, a log prob is a finite number; a tensor's"),
        (np.array([1, 2, 3, 4], "datetime64[s]"), r"_probs\[0\]: is of type datetime"),
        ([10**400, 0, 0, 0], r"_probs\[0\]: is an integer beyond the range of a double"),
        ([12.5, 0.0, 0.0, 0.0], r"_probs\[0\]: is 12.5, of a probability above 1; ask the engine for log probs"),
        (Tensor(-0.5), r"_probs: is of type Tensor, it must be a list; a tensor's .tolist\(\)"),
    ],
)
def test_other_log_probs_are_refused_with_the_remedy(log_probs: Any, problem: str) -> None:
    """What is no flat array of finite numbers up to 0 is refused, with the position."""
    with pytest.raises(EngineAnswerError, match=problem):
        responses.entry_from_response(response(generation_log_probs=log_probs), **IDS)


def test_the_rounding_of_a_softmax_is_no_logit() -> None:
    """A log probability a little above 0 is kept as it is."""
    made = responses.entry_from_response(response(generation_log_probs=[0.0625, -0.5, 1e-7, -0.0]), **IDS)

    assert made.generation_log_probs == [0.0625, -0.5, 1e-7, -0.0]
