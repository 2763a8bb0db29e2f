"""Generated rollouts look like recorded ones, and are the same everywhere."""

from __future__ import annotations

import hashlib
import itertools
import struct

import attrs
import pytest

from tokenstore.codec import check_entry, content_digest, loads
from tokenstore.records import TokenEntry
from tokenstore.testing.rollouts import SHAPES, agent_rollout, shaped_rollout


def fingerprint(entries: list[TokenEntry]) -> str:
    """Hash every value of a rollout, by what `repr` shows, which no library has a hand in."""
    return hashlib.sha256(repr([attrs.astuple(entry) for entry in entries]).encode()).hexdigest()[:16]


def extends(later: TokenEntry, earlier: TokenEntry) -> bool:
    """Tell whether a prompt begins with the whole prompt and generation of another call."""
    seen = earlier.prompt_token_ids + earlier.generation_token_ids
    return later.prompt_token_ids[: len(seen)] == seen


def pairs(shape: str) -> list[bool]:
    """Tell of each follow-up call of a shape whether it extends the one before."""
    return [extends(later, earlier) for earlier, later in itertools.pairwise(shaped_rollout(shape, "r"))]


def test_prompts_extend_the_call_before() -> None:
    """Each prompt is the whole prompt and generation of the call before, and then as many fresh ids as asked for."""
    entries = agent_rollout("r", turns=4, first_prompt=50, generated=7, added=11)

    assert [len(entry.prompt_token_ids) for entry in entries] == [50, 68, 86, 104]
    assert {len(entry.generation_token_ids) for entry in entries} == {7}
    assert all(extends(later, earlier) for earlier, later in itertools.pairwise(entries))


def test_ids_stay_in_the_vocabulary() -> None:
    """Ids are drawn from 0 up to the size of the vocabulary."""
    entries = agent_rollout("r", turns=3, vocabulary=17)

    assert {token for entry in entries for token in entry.prompt_token_ids} == set(range(17))


def test_nothing_is_a_rollout_too() -> None:
    """Every size may be nothing."""
    assert agent_rollout("r", turns=0) == []
    (entry,) = agent_rollout("r", turns=1, first_prompt=0, generated=0, added=0, item_chars=0)

    assert (entry.prompt_token_ids, entry.generation_token_ids, entry.generation_log_probs) == ([], [], [])
    assert (entry.output_items, entry.token_item_index) == ([], None)


def test_log_probs_look_recorded() -> None:
    """Log probabilities are float32 values, none positive; 20 to 60 % are exactly 0.0, each rollout its own share."""
    shares = []
    for number in range(20):
        log_probs = [
            log_prob for entry in agent_rollout(f"r{number}", turns=5) for log_prob in entry.generation_log_probs
        ]
        assert all(struct.unpack("f", struct.pack("f", log_prob))[0] == log_prob for log_prob in log_probs)
        assert all(log_prob <= 0.0 and str(log_prob) != "-0.0" for log_prob in log_probs)
        shares.append(sum(log_prob == 0.0 for log_prob in log_probs) / len(log_probs))

    assert 0.15 < min(shares) < 0.3
    assert 0.5 < max(shares) < 0.65


def test_items_look_recorded() -> None:
    """Items are messages, function calls with JSON arguments, and reasoning, with text in many scripts and emoji."""
    entries = agent_rollout("r", turns=60, first_prompt=1)
    items = [item for entry in entries for item in entry.output_items]

    assert {item["type"] for item in items} == {"message", "function_call", "reasoning"}
    assert all(len(loads(item["arguments"])["command"]) == 200 for item in items if item["type"] == "function_call")
    text = str(items)
    assert all(sample in text for sample in ("😊", "お客様", "Größe", "</think>"))
    assert all(entry.token_item_index == len(entry.output_items) - 1 for entry in entries)
    assert all(entry.response_id and entry.model and entry.extra["group_id"] for entry in entries)


def test_times_and_ids_advance() -> None:
    """Calls have their own ids and come one after the other."""
    entries = agent_rollout("r", turns=30)
    times = [entry.created_at for entry in entries]

    assert times == sorted(times)
    assert len({entry.model_call_id for entry in entries}) == 30
    assert len({entry.response_id for entry in entries}) == 30


def test_arguments_make_the_rollout() -> None:
    """Equal arguments give equal rollouts; another seed or another rollout id gives another."""
    first = agent_rollout("r", turns=2)

    assert agent_rollout("r", turns=2) == first
    assert agent_rollout("r", turns=2, seed=1)[0].prompt_token_ids != first[0].prompt_token_ids
    assert agent_rollout("s", turns=2)[0].prompt_token_ids != first[0].prompt_token_ids


def test_rollouts_are_the_same_everywhere() -> None:
    """A seed gives the same values on every machine and Python, to the last bit."""
    everything = [entry for shape in SHAPES for entry in shaped_rollout(shape, "r", seed=3)]

    assert fingerprint(agent_rollout("r", seed=3)) == "278cc93af30c006f"
    assert fingerprint(everything) == "ebd305935b57fd97"


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_valid(shape: str) -> None:
    """Every shape is a rollout that a store takes: valid entries of one rollout under different call ids."""
    entries = shaped_rollout(shape, "r")

    for entry in entries:
        check_entry(entry)
    assert {entry.rollout_id for entry in entries} == {"r"}
    assert len({entry.model_call_id for entry in entries}) == len(entries)
    assert len({content_digest(entry) for entry in entries}) == len(entries)


def test_unknown_shape_is_refused() -> None:
    """A shape that is not there is refused with the names of those that are."""
    with pytest.raises(ValueError, match="no shape 'agent', there are append_only, single_call"):
        shaped_rollout("agent", "r")


@pytest.mark.parametrize("shape", ["append_only", "one_token", "empty_generation", "empty_prompt", "no_items"])
def test_append_only_shapes(shape: str) -> None:
    """In these shapes each prompt extends the call before."""
    assert all(pairs(shape))


@pytest.mark.parametrize("shape", ["prefix_breaks", "late_break"])
def test_shapes_that_break_the_prefix(shape: str) -> None:
    """In these shapes no prompt extends the call before, though most of it is the same."""
    earlier, later, *_ = shaped_rollout(shape, "r")
    kept = len(earlier.prompt_token_ids) - 150

    assert not any(pairs(shape))
    assert later.prompt_token_ids[:kept] == earlier.prompt_token_ids[:kept]


def test_retries_jump_back() -> None:
    """Retries repeat a prompt with another answer."""
    prompts = [tuple(entry.prompt_token_ids) for entry in shaped_rollout("retries", "r")]

    assert len(prompts) == 6
    assert len(set(prompts)) == 2


def test_branches_interleave() -> None:
    """A sub-agent's calls stand between those of the main thread, and most prompts extend an earlier call."""
    entries = shaped_rollout("branches", "r")
    parents = [
        [earlier for earlier in range(later) if extends(entries[later], entries[earlier])]
        for later in range(len(entries))
    ]

    assert not any(pairs("branches")[1:])
    assert [max(found, default=None) for found in parents] == [None, 0, None, 0, 1, 2, 3, 4, 5, 6]


def test_twins_differ_in_nothing_but_their_names() -> None:
    """Twins have equal tokens and log probabilities."""
    first, *others = shaped_rollout("twins", "r")

    assert others
    for other in others:
        assert other.prompt_token_ids == first.prompt_token_ids
        assert other.generation_log_probs == first.generation_log_probs
