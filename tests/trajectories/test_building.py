"""`build`: what comes out of small rollouts, one rule at a time."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import attrs
import numpy as np
import pytest

from tests.samples import entry
from tests.trajectories.naive import snapshot_of
from tokenstore import InvalidEntryError, TokenEntry
from tokenstore.testing import shaped_rollout
from tokenstore.trajectories import Reason, build


def call(name: str, prompt: list[int], generation: list[int], **fields: Any) -> TokenEntry:
    """Make a call whose log probabilities are minus its ids, over 8."""
    log_probs = [-value / 8 for value in generation]
    return entry(
        name, prompt_token_ids=prompt, generation_token_ids=generation, generation_log_probs=log_probs, **fields
    )


def fates(*calls: TokenEntry, **options: Any) -> dict[str, str]:
    """Build and give what became of each call."""
    return {found.model_call_id: found.fate for found in build(snapshot_of(calls), **options).report.fates}


ROOT = call("root", [1, 2], [3])
"""A first turn."""


def test_a_chain_is_one_trajectory() -> None:
    """Calls that extend each other become one sequence, with a mask of 1 on what they generated."""
    built = build(snapshot_of([ROOT, call("next", [1, 2, 3, 9], [4, 5])]))

    (chain,) = built
    assert chain is built.main
    assert (chain.token_ids.dtype, chain.token_ids.tolist()) == (np.int32, [1, 2, 3, 9, 4, 5])
    assert (chain.loss_mask.dtype, chain.loss_mask.tolist()) == (np.uint8, [0, 0, 1, 0, 1, 1])
    assert (chain.log_probs.dtype, chain.log_probs.tolist()) == (np.float32, [0, 0, -0.375, 0, -0.5, -0.625])
    assert [(span.model_call_id, span.start, span.stop) for span in chain.spans] == [("root", 2, 3), ("next", 4, 6)]
    assert built.report.trainable
    assert built.report.reasons == ()
    assert repr(chain) == "Trajectory(rollout_id='r', tokens=6, calls=['root', 'next'])"


def test_a_resumed_generation_goes_on() -> None:
    """A prompt that is exactly an earlier call's prompt and generation continues that call."""
    built = build(snapshot_of([ROOT, call("resumed", [1, 2, 3], [4])]))

    assert [chain.loss_mask.tolist() for chain in built] == [[0, 0, 1, 1]]
    assert built.report.breaks == ()


def test_arrays_can_be_written() -> None:
    """A trainer may change what it was given."""
    (chain,) = build(snapshot_of([ROOT]))

    chain.loss_mask[:] = 0

    assert chain.loss_mask.tolist() == [0, 0, 0]


def test_without_numpy_arrays_are_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numpy is not installed the arrays are `array.array` of the same items."""
    monkeypatch.setitem(sys.modules, "numpy", None)

    (chain,) = build(snapshot_of([ROOT]))

    assert chain.token_ids == array("i", [1, 2, 3])
    assert chain.loss_mask == array("B", [0, 0, 1])
    assert chain.log_probs == array("f", [0, 0, -0.375])


def test_branches_train_a_shared_call_once() -> None:
    """Where branches share a call, the one whose last call comes first in the file trains it."""
    left, right = call("left", [1, 2, 3, 7], [4]), call("right", [1, 2, 3, 8], [5])

    first, second = build(snapshot_of([right, left, ROOT]))

    assert (first.token_ids.tolist(), first.loss_mask.tolist()) == ([1, 2, 3, 8, 5], [0, 0, 1, 0, 1])
    assert (second.token_ids.tolist(), second.loss_mask.tolist()) == ([1, 2, 3, 7, 4], [0, 0, 0, 0, 1])
    assert second.log_probs.tolist() == [0, 0, 0, 0, -0.5]
    assert [span.trained for span in second.spans] == [False, True]
    assert [chain.trained_tokens for chain in (first, second)] == [2, 1]


def test_main_is_the_chain_of_the_earliest_root() -> None:
    """The main chain is the one that trains the first root of the file, wherever its last call is."""
    other = call("sub-agent", [5, 5], [6])
    late = call("late", [1, 2, 3, 4], [7])

    built = build(snapshot_of([ROOT, other, late]))

    assert built.report.roots == 2
    assert built.main is built[1]
    assert [span.model_call_id for span in built[1].spans] == ["root", "late"]


def test_the_retry_that_is_extended_is_kept() -> None:
    """Of calls with the same prompt those that a later call extends are trained, the others superseded."""
    retry = call("retry", [1, 2], [4])
    follow = call("follow", [1, 2, 4, 9], [5])

    assert fates(ROOT, retry, follow) == {"root": "superseded", "retry": "trained", "follow": "trained"}


def test_retries_without_a_sequel_are_unresolved() -> None:
    """If no call extends any of them, none is trained, and the rollout is not to be trained on."""
    built = build(snapshot_of([ROOT, call("retry", [1, 2], [4])]))

    assert built.report.listed("unresolved") == ("root", "retry")
    assert built.report.tokens["unresolved"] == 2
    assert (built.report.reasons, built.report.trainable) == (("unresolved", "nothing_trained"), False)
    assert (list(built), built.main) == ([], None)


def test_duplicates_can_be_kept() -> None:
    """With `duplicates="keep"` every answer to a prompt is trained, as in best of n."""
    follow = call("follow", [1, 2, 4, 9], [5])

    built = build(snapshot_of([ROOT, call("retry", [1, 2], [4]), follow]), duplicates="keep")

    assert [chain.token_ids.tolist() for chain in built] == [[1, 2, 3], [1, 2, 4, 9, 5]]
    assert built.report.trainable


def test_identical_parents_are_ambiguous_with_all_below() -> None:
    """If a prompt begins with two calls' equal tokens, both and everything below them are listed, the rest trained."""
    twins = [ROOT, attrs.evolve(ROOT, model_call_id="twin")]
    below = [call("child", [1, 2, 3, 4], [5]), call("grandchild", [1, 2, 3, 4, 5, 6], [7])]
    other = call("other", [8], [9])

    built = build(snapshot_of([*twins, *below, other]))

    assert built.report.listed("ambiguous") == ("root", "twin", "child", "grandchild")
    assert built.report.listed("trained") == ("other",)
    assert (built.report.reasons, built.report.trainable) == (("ambiguous",), False)


def test_calls_that_generated_nothing_are_listed() -> None:
    """An empty generation is no token to train, no retry, and no parent."""
    empty = call("empty", [1, 2], [])
    follow = call("follow", [1, 2, 3, 4], [5])

    built = build(snapshot_of([empty, ROOT, follow]))

    assert built.report.listed("empty") == ("empty",)
    assert [chain.token_ids.tolist() for chain in built] == [[1, 2, 3, 4, 5]]
    assert built.report.trainable


@pytest.mark.parametrize("calls", [[], [call("empty", [], [])], [call("a", [1], []), call("b", [1], [])]])
def test_nothing_to_train(calls: list[TokenEntry]) -> None:
    """A rollout without a generated token gives no trajectory and is not to be trained on."""
    built = build(snapshot_of(calls))

    assert (len(built), built.main) == (0, None)
    assert (built.report.calls, built.report.roots, built.report.reasons) == (len(calls), 0, ("nothing_trained",))
    assert not built.report.trainable


def test_incomplete_rollouts_are_not_trainable_unless_allowed() -> None:
    """A reason stands against training until `allow` names it; what it was stays in the report."""
    snapshot = snapshot_of([ROOT], incomplete=True)

    choices: list[tuple[Reason, ...]] = [(), ("incomplete",), ("ambiguous",)]

    reports = [build(snapshot, allow=allow).report for allow in choices]

    assert [report.trainable for report in reports] == [False, True, False]
    assert {report.reasons for report in reports} == {("incomplete",)}


def test_open_calls_are_incomplete() -> None:
    """A rollout that was only peeked at while a call was in flight, or lost, is not to be trained on."""
    snapshot = attrs.evolve(snapshot_of([ROOT]), frozen=False, open_calls=("next",))

    report = build(snapshot).report

    assert (report.reasons, report.trainable) == (("incomplete",), False)


def test_per_call_gives_each_call_alone() -> None:
    """The other strategy gives the same calls with the same fates, each as a trajectory of its own."""
    calls = [ROOT, call("next", [1, 2, 3, 9], [4, 5]), call("a", [7], [1]), call("b", [7], [2])]

    built = build(snapshot_of(calls), "per_call")

    assert [chain.token_ids.tolist() for chain in built] == [[1, 2, 3], [1, 2, 3, 9, 4, 5]]
    assert [chain.loss_mask.tolist() for chain in built] == [[0, 0, 1], [0, 0, 0, 0, 1, 1]]
    assert built.main is built[0]
    assert built.report.fates == build(snapshot_of(calls)).report.fates


def test_a_break_says_where_and_what() -> None:
    """A prompt that leaves an earlier call's tokens is reported with the place, the call, and both tokens."""
    calls = [ROOT, call("rewritten", [1, 2, 5, 6], [7]), call("shorter", [1], [8])]

    rewritten, shorter = build(snapshot_of(calls)).report.breaks

    assert (rewritten.model_call_id, rewritten.against, rewritten.agrees) == ("rewritten", "root", 2)
    assert (rewritten.inside, rewritten.expected, rewritten.found) == ("generation", 3, 5)
    assert (shorter.agrees, shorter.inside, shorter.expected, shorter.found) == (1, "prompt", 2, None)


def test_a_break_beyond_the_parent() -> None:
    """A call that extends one call and alters a later one is a break of the later one."""
    later = call("later", [1, 2, 3, 4], [5, 6])
    altered = call("altered", [1, 2, 3, 4, 5, 9], [7])

    (found,) = build(snapshot_of([ROOT, later, altered])).report.breaks

    assert (found.model_call_id, found.against, found.agrees) == ("altered", "later", 5)


def test_what_spans_and_trajectories_know() -> None:
    """Weight versions, reward, group and routed experts come from the calls; experts only if all calls have them."""
    first = attrs.evolve(ROOT, routed_experts=[[1]], extra={"weight_version": 7, "reward": 0.5, "group_id": "g"})
    second = call("next", [1, 2, 3], [4], routed_experts=[[2]], extra={"weight_version": 8, "reward": 1.0})
    third = call("bare", [1, 2, 3, 4], [5])

    (whole,), (longer,) = build(snapshot_of([first, second])), build(snapshot_of([first, second, third]))

    assert [span.weight_version for span in longer.spans] == [7, 8, None]
    assert (whole.reward, whole.group_id, whole.routed_experts) == (1.0, "g", ([[1]], [[2]]))
    assert longer.routed_experts is None
    report = build(snapshot_of([first, second])).report
    assert (report.weight_versions, report.mixed_weight_versions) == ((7, 8), True)


def test_ids_beyond_int32_are_refused() -> None:
    """An id that trainers cannot take is named by call, field and position."""
    with pytest.raises(InvalidEntryError, match="'c', generation_token_ids: position 1 is beyond int32") as caught:
        build(snapshot_of([call("c", [1], [2, 2**31])]))

    assert caught.value.model_call_id == "c"


def test_log_probs_beyond_float32_are_refused() -> None:
    """A log probability that would become infinite is named by call, field and position."""
    value = entry("c", generation_token_ids=[1, 2], generation_log_probs=[-1.0, -1e300])

    with pytest.raises(InvalidEntryError, match="'c', generation_log_probs: position 1 is beyond the range of float32"):
        build(snapshot_of([value]))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"strategy": "best"}, "strategy: 'best' is not known, there are prefix, per_call"),
        ({"duplicates": "drop"}, "duplicates: 'drop' is not known, there are supersede, keep"),
        ({"allow": ("lost",)}, "allow: 'lost' is not known, there are incomplete"),
    ],
)
def test_unknown_choices_are_refused(arguments: dict[str, Any], problem: str) -> None:
    """A choice that is not there is refused with those that are."""
    with pytest.raises(ValueError, match=problem):
        build(snapshot_of([ROOT]), **arguments)


def test_a_bare_string_is_no_collection_of_reasons() -> None:
    """`allow="incomplete"` would be taken letter by letter."""
    with pytest.raises(TypeError, match=r"pass \('incomplete',\)"):
        build(snapshot_of([ROOT]), allow="incomplete")  # type: ignore[arg-type]


def test_five_thousand_turns() -> None:
    """A chain of 5,000 calls is built without recursion, also if it was captured backwards."""
    ids = list(range(5001))
    calls = [call(f"c{turn}", ids[: turn + 1], [turn + 1]) for turn in range(5000)]

    (chain,) = build(snapshot_of(calls[::-1]))

    assert chain.token_ids.tolist() == ids
    assert chain.trained_tokens == 5000


def test_the_same_call_id_twice_is_two_calls() -> None:
    """A snapshot made by hand may hold an id twice; each entry has its own fate."""
    built = build(snapshot_of([ROOT, call("root", [1, 2, 3, 4], [5])]))

    assert [found.tokens for found in built.report.fates] == [1, 1]
    assert len(built) == 1


def test_a_snapshot_is_not_changed() -> None:
    """Building leaves the entries as they are."""
    calls = shaped_rollout("branches", "r")

    build(snapshot_of(calls))

    assert calls == shaped_rollout("branches", "r")
