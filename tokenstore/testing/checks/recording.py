"""Putting entries: what is a new call, what is the same call again, and what is a conflict."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from tokenstore.errors import ConflictingEntryError
from tokenstore.testing.trial import Trial


async def put_is_visible(trial: Trial) -> None:
    """What put has acknowledged is in the next freeze, in the order of the puts."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, f"c{9 - n}", prompt_token_ids=[n] * n) for n in range(5)]

    for entry in entries:
        await trial.sink.put(entry)

    await trial.freezes(rollout, entries=entries, version=6)


async def rollouts_are_separate(trial: Trial) -> None:
    """The same call id in two rollouts names two calls, and freezing one leaves the other open."""
    first, second = trial.rollout(), trial.rollout()
    one, two = trial.entry(first, prompt_token_ids=[1]), trial.entry(second, prompt_token_ids=[2])
    later = trial.entry(second, "c2")

    await trial.sink.put(one)
    await trial.sink.put(two)

    await trial.freezes(first, entries=[one], version=2)
    await trial.sink.put(later)
    await trial.freezes(second, entries=[two, later], version=3)


async def twins_are_two_calls(trial: Trial) -> None:
    """Two calls with equal content under different ids are two entries."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, call) for call in ("c1", "c2", "C1")]

    for entry in entries:
        await trial.sink.put(entry)

    await trial.freezes(rollout, entries=entries, version=4)


async def repeated_put_is_noop(trial: Trial) -> None:
    """Putting the same entry again succeeds and changes neither data nor version."""
    rollout = trial.rollout()
    entry, next_entry = trial.entry(rollout), trial.entry(rollout, "c2")

    for again in (entry, entry, next_entry, entry):
        await trial.sink.put(again)

    await trial.freezes(rollout, entries=[entry, next_entry], version=3)


async def equal_content_is_noop(trial: Trial) -> None:
    """Another created_at, key order, tuples for lists and whole numbers for floats are the same content."""
    rollout = trial.rollout()
    item = {"type": "message", "parts": [1, [2.5, None]], "text": "é/"}
    entry = trial.entry(rollout, generation_log_probs=[0, -0.5], output_items=[item], extra={"a": [1], "b": {}})
    retries: tuple[dict[str, Any], ...] = (
        {"created_at": 99.0},
        {"output_items": [{"text": "é/", "parts": (1, (2.5, None)), "type": "message"}]},
        {"output_items": (dict(item),), "extra": {"b": {}, "a": (1,)}},
        {"generation_log_probs": (0.0, -0.5), "prompt_token_ids": (1, 2, 3)},
    )
    await trial.sink.put(entry)

    for changes in retries:
        await trial.sink.put(attrs.evolve(entry, **changes))

    await trial.freezes(rollout, entries=[entry], version=2)


async def repeated_put_after_freeze_is_noop(trial: Trial) -> None:
    """A retry of an entry that the snapshot holds succeeds and leaves the snapshot as it is."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    before = await trial.freezes(rollout, entries=[entry], version=2)

    await trial.sink.put(entry)
    await trial.sink.put(attrs.evolve(entry, created_at=7.0))

    after = await trial.freezes(rollout, entries=[entry], version=2)
    trial.equal(after.snapshot_id, before.snapshot_id, "the snapshot_id")


async def conflicting_put_masks(trial: Trial) -> None:
    """Other content for a known call raises, masks the rollout, counts once, and leaves the first entry."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)

    for token in (8, 9):
        other = attrs.evolve(entry, prompt_token_ids=[1, 2, token])
        error = await trial.raises(ConflictingEntryError, "put of other content", trial.sink.put, other)
        trial.equal((error.rollout_id, error.model_call_id), (rollout, "c1"), "the ids in the error")
    await trial.sink.put(entry)

    await trial.freezes(rollout, entries=[entry], reasons=["conflict:c1"], version=3)


CONTENT_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "a prompt id": {"prompt_token_ids": [1, 2, 4]},
    "one prompt id more": {"prompt_token_ids": [1, 2, 3, 4]},
    "a generated id": {"generation_token_ids": [4, 6]},
    "the last bit of a log prob": {"generation_log_probs": [-0.5, -1.2500000000000002e-5]},
    "the sign of a zero": {"generation_log_probs": [-0.0, -1.25e-5]},
    "ids moved from prompt to generation": {
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3, 4, 5],
        "generation_log_probs": [0.0, 0.0, -1.25e-5],
    },
    "the model": {"model": "other"},
    "the routed experts": {"routed_experts": [[0, 1]]},
    "a text": {"output_items": [{"type": "message", "text": "y"}]},
    "an int for a bool": {"output_items": [{"type": "message", "text": "x", "n": 1}]},
    "a float for a bool": {"output_items": [{"type": "message", "text": "x", "n": 1.0}]},
    "null for an absent key": {"output_items": [{"type": "message", "text": "x", "n": True, "key": None}]},
    "an item more": {"output_items": [{"type": "message", "text": "x", "n": True}, {}]},
    "the carrier": {"token_item_index": None},
    "the response id": {"response_id": ""},
    "an unknown field": {"extra": {"reward": 2.0}},
    "an unknown field that is null": {"extra": {"reward": 1.0, "group": None}},
    "a missing unknown field": {"extra": {}},
}
"""Changes to an entry, each of which makes it other content."""


async def every_field_is_content(trial: Trial) -> None:
    """A change of any field but created_at, be it one bit of a float, is other content."""
    rollout = trial.rollout()
    item = {"type": "message", "text": "x", "n": True}
    first = trial.entry(rollout, generation_log_probs=[0.0, -1.25e-5], output_items=[item], extra={"reward": 1.0})
    entries = [attrs.evolve(first, model_call_id=f"c{number}") for number in range(len(CONTENT_CHANGES))]
    for entry in entries:
        await trial.sink.put(entry)

    for entry, (what, change) in zip(entries, CONTENT_CHANGES.items(), strict=True):
        other = attrs.evolve(entry, **change)
        await trial.raises(ConflictingEntryError, f"put with a change of {what}", trial.sink.put, other)

    reasons = [f"conflict:{entry.model_call_id}" for entry in entries]
    await trial.freezes(rollout, entries=entries, reasons=reasons, version=2 * len(entries) + 1)


async def put_of_refused_call_masks(trial: Trial) -> None:
    """An entry for a refused call raises, masks the rollout, and is not delivered."""
    rollout = trial.rollout()
    await trial.sink.refuse_call(rollout, model_call_id="c1", code="too_long")

    for _ in range(2):
        await trial.raises(ConflictingEntryError, "put of a refused call", trial.sink.put, trial.entry(rollout))

    await trial.freezes(rollout, refusals={"c1": "too_long"}, reasons=["conflict:c1"], version=3)


async def refusal_of_recorded_call_masks(trial: Trial) -> None:
    """A refusal of a call that has an entry raises, masks the rollout, and is not delivered."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)

    for code in ("too_long", None):
        refusing = partial(trial.sink.refuse_call, rollout, model_call_id="c1", code=code)
        await trial.raises(ConflictingEntryError, "refuse_call of a call that has an entry", refusing)

    await trial.freezes(rollout, entries=[entry], reasons=["conflict:c1"], version=3)


async def conflict_and_mark_count_once(trial: Trial) -> None:
    """A conflict is a mark of its call: whichever comes second does not count again, and the conflict is told."""
    rollout = trial.rollout()
    first, second = trial.entry(rollout, "c1"), trial.entry(rollout, "c2")
    for entry in (first, second):
        await trial.sink.put(entry)

    await trial.sink.mark_incomplete(rollout, "c1")
    for entry in (first, second):
        other = attrs.evolve(entry, model="other")
        await trial.raises(ConflictingEntryError, "put of other content", trial.sink.put, other)
    await trial.sink.mark_incomplete(rollout, "c2")

    await trial.freezes(rollout, entries=[first, second], reasons=["conflict:c1", "conflict:c2"], version=5)
