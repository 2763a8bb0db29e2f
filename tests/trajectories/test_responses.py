"""`response`: a chain in the form that NeMo Gym's trainers read."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from tests.recordings import recording, rollouts_of
from tests.samples import data_folder, entry
from tests.trajectories.naive import snapshot_of
from tokenstore.codec import dumps
from tokenstore.testing import shaped_rollout
from tokenstore.trajectories import Trajectory, build, response


def read_as_trainers_do(answer: dict[str, Any]) -> tuple[list[int], list[int], list[float]]:
    """Walk over the items as NeMo RL does: each with tokens must begin with all tokens seen so far."""
    ids: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    for item in answer["output"]:
        if "generation_token_ids" in item:
            assert item["prompt_token_ids"][: len(ids)] == ids
            fresh = item["prompt_token_ids"][len(ids) :]
            ids += fresh + item["generation_token_ids"]
            mask += [0] * len(fresh) + [1] * len(item["generation_token_ids"])
            log_probs += [0.0] * len(fresh) + item["generation_log_probs"]
    return ids, mask, log_probs


def as_lists(trajectory: Trajectory) -> tuple[list[int], list[int]]:
    """Give ids and mask of a trajectory."""
    return trajectory.token_ids.tolist(), trajectory.loss_mask.tolist()


@pytest.mark.parametrize("shape", ["append_only", "branches", "no_items", "first_carrier", "prefix_breaks"])
def test_trainers_read_what_was_built(shape: str) -> None:
    """For every branch a trainer finds the same ids and the same mask as in the trajectory."""
    snapshot = snapshot_of(shaped_rollout(shape, "r"))

    for trajectory in build(snapshot):
        assert read_as_trainers_do(response(snapshot, trajectory))[:2] == as_lists(trajectory)


def test_the_main_chain_is_the_default() -> None:
    """Without a trajectory the response holds the chain of the earliest root."""
    snapshot = snapshot_of(shaped_rollout("branches", "r"))
    main = build(snapshot).main
    assert main is not None

    answer = response(snapshot)

    assert read_as_trainers_do(answer)[:2] == as_lists(main)
    assert json.loads(dumps(answer)) == answer


def test_recorded_responses_come_back() -> None:
    """Of a rollout recorded by NeMo Gym the items carry the fields that its own response carried."""
    calls = rollouts_of(recording(data_folder("TOKENSTORE_RECORDED_DATA") / "recorded/gym_customer_service.jsonl"))
    recorded = data_folder("TOKENSTORE_WIRE_DATA") / "nemogym/responses_messages.recorded.json"
    wanted = json.loads(recorded.read_bytes())

    answers = [response(snapshot_of(entries)) for entries in calls.values()]

    items = wanted["output"]
    (answer,) = [given for given in answers if given["output"][0]["id"] == items[0]["id"]]
    assert answer["output"][: len(items)] == items
    assert {key for key in wanted if key not in answer} == set()
    assert answer["usage"] == wanted["usage"]


def test_shared_calls_carry_tokens_in_one_branch_only() -> None:
    """Each generated token is in the response of one branch."""
    calls = shaped_rollout("branches", "r")
    snapshot = snapshot_of(calls)

    answers = [response(snapshot, trajectory) for trajectory in build(snapshot)]

    carriers = [item for answer in answers for item in answer["output"] if "generation_token_ids" in item]
    assert sum(len(item["generation_token_ids"]) for item in carriers) == sum(
        len(call.generation_token_ids) for call in calls
    )


def test_items_of_the_snapshot_stay_without_tokens() -> None:
    """The response has items of its own."""
    call = entry(routed_experts=[[1], [2]])

    answer = response(snapshot_of([call]))

    assert "prompt_token_ids" not in call.output_items[0]
    assert answer["output"][0]["routed_experts"] == [[1], [2]]


def test_an_incomplete_rollout_says_so() -> None:
    """The status of an incomplete rollout is `incomplete`; one without a trained token has no output."""
    whole, cut = snapshot_of([entry()]), snapshot_of([], incomplete=True)

    assert (response(whole)["status"], response(cut)["status"]) == ("completed", "incomplete")
    assert response(cut)["output"] == []


def test_a_trajectory_of_another_rollout_is_refused() -> None:
    """Tokens of one rollout are never given with the items of another."""
    other = build(snapshot_of([attrs.evolve(entry(), rollout_id="other")])).main

    with pytest.raises(ValueError, match="the trajectory of other is not one of rollout r"):
        response(snapshot_of([entry()]), other)
