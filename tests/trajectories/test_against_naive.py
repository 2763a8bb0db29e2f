"""`build` against the naive builder: random trees of calls, and every recording."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import recording, rollouts_of
from tests.samples import data_folder
from tests.trajectories.naive import Naive, naive, plain, snapshot_of, whole
from tokenstore import TokenEntry
from tokenstore.testing import SHAPES, shaped_rollout
from tokenstore.trajectories import Duplicates, build

IDS = st.lists(st.integers(0, 2), max_size=3)
"""So few ids that branches meet again, and prompts come about twice in different ways."""


@st.composite
def trees(draw: st.DrawFn) -> list[TokenEntry]:
    """Make calls that extend, retry, repeat and leave each other, or generate nothing; in any order of capture."""
    wholes: list[list[int]] = [[]]
    prompts: list[list[int]] = [[]]
    answers: list[list[int]] = []
    for _ in range(draw(st.integers(1, 14))):
        how = draw(st.sampled_from(["extend", "extend", "retry", "repeat", "cut"]))
        generation = draw(IDS)
        if how == "extend":
            prompt = draw(st.sampled_from(wholes)) + draw(IDS)
        elif how == "cut":  # an altered history
            seen = draw(st.sampled_from(wholes))
            prompt = seen[: draw(st.integers(0, len(seen)))] + draw(IDS)
        else:
            at = draw(st.integers(0, len(prompts) - 1))
            prompt = prompts[at]
            if how == "repeat" and at:
                generation = answers[at - 1]
        prompts.append(prompt)
        answers.append(generation)
        wholes.append(prompt + generation)
    calls = list(zip(prompts[1:], answers, strict=True))
    order = draw(st.permutations(range(len(calls))))
    return [call(number, *calls[number]) for number in order]


def call(number: int, prompt: list[int], generation: list[int]) -> TokenEntry:
    """Make a call whose log probabilities are like no other's."""
    return TokenEntry(
        rollout_id="r",
        model_call_id=f"c{number}",
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=[-(number + (at + 1) / 16) for at in range(len(generation))],
    )


def accounted(built: Naive) -> Counter[float]:
    """Count the log probabilities of trained tokens in the trajectories."""
    return Counter(
        value for _, mask, log_probs, _ in built.trajectories for value, on in zip(log_probs, mask, strict=True) if on
    )


@pytest.mark.parametrize("duplicates", ["supersede", "keep"])
@settings(max_examples=50, deadline=None)
@given(entries=trees())
def test_random_trees(duplicates: Duplicates, entries: list[TokenEntry]) -> None:
    """Fates, breaks, masks, log probabilities and token order are those of the naive builder."""
    built = build(snapshot_of(entries), duplicates=duplicates)

    assert plain(built) == naive(entries, duplicates=duplicates)


@settings(max_examples=25, deadline=None)
@given(entries=trees(), seed=st.integers(0, 2**32))
def test_order_of_capture_changes_no_fate(entries: list[TokenEntry], seed: int) -> None:
    """Who extends whom, and what becomes of each call, is the same in whatever order calls were captured."""
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)  # noqa: S311 - test data

    before, after = (build(snapshot_of(given)).report for given in (entries, shuffled))

    assert {fate.model_call_id: fate.fate for fate in before.fates} == {
        fate.model_call_id: fate.fate for fate in after.fates
    }
    assert (before.tokens, before.roots, before.chains) == (after.tokens, after.roots, after.chains)


@settings(max_examples=25, deadline=None)
@given(entries=trees())
def test_every_token_has_one_fate(entries: list[TokenEntry]) -> None:
    """Each trained token is in one trajectory, with its own log probability; all others are listed once."""
    built = build(snapshot_of(entries))
    fates = {fate.model_call_id: fate.fate for fate in built.report.fates}
    trained = [entry for entry in entries if fates[entry.model_call_id] == "trained"]

    assert accounted(plain(built)) == Counter(value for entry in trained for value in entry.generation_log_probs)
    assert sum(built.report.tokens.values()) == sum(len(entry.generation_token_ids) for entry in entries)
    assert all(
        list(each.token_ids) == whole(entries[at]) for each, at in zip(built, _leaves(entries, built), strict=True)
    )


def _leaves(entries: list[TokenEntry], built: object) -> list[int]:
    """Find the last call of each trajectory."""
    places = {entry.model_call_id: at for at, entry in enumerate(entries)}
    return [places[trajectory.spans[-1].model_call_id] for trajectory in built]  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - {"edge_values"}))
def test_shapes(shape: str) -> None:
    """Every kind of rollout of the generator is built as the naive builder builds it."""
    entries = shaped_rollout(shape, "r")

    assert plain(build(snapshot_of(entries))) == naive(entries)


@pytest.mark.parametrize(
    "file",
    [
        "recorded/gym_round_trip",
        "recorded/gym_workplace_assistant",
        "recorded/atropos_rubiks.synthlp",
        "odd/prefix_break_merged_tokens_nemorl",
    ],
)
def test_recordings_that_break(file: str) -> None:
    """Breaks, retries and agreeing tokens of recordings that break the prefix equal those of the naive builder."""
    entries = recording(data_folder("TOKENSTORE_RECORDED_DATA") / f"{file}.jsonl")

    found, expected = plain(build(snapshot_of(entries))), naive(entries)

    assert found.breaks
    assert found == expected


def test_all_recordings() -> None:
    """Of every recorded rollout each generated token is delivered once or listed, as the naive builder does."""
    folder = data_folder("TOKENSTORE_RECORDED_DATA")
    trainable = 0
    for path in [*sorted(folder.glob("recorded/*.jsonl")), *sorted(folder.glob("odd/empty_*.jsonl"))]:
        for entries in rollouts_of(recording(path)).values():
            built = build(snapshot_of(entries))

            assert plain(built) == naive(entries), (path.name, entries[0].rollout_id)
            if built.report.trainable:
                trainable += 1
                generated = [value for entry in entries for value in entry.generation_log_probs]
                assert accounted(plain(built)) == Counter(array("f", generated))

    assert trainable > 50
