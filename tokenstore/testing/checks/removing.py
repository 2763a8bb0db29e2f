"""Retiring and deleting, one rollout or a batch."""

from __future__ import annotations

from typing import Any

from tokenstore.errors import InvalidRolloutIdError
from tokenstore.testing.checks.consuming import refused_once_retired
from tokenstore.testing.trial import Trial


async def _rollouts_of_each_kind(trial: Trial) -> tuple[list[str], list[str]]:
    """Make rollouts that hold records (an entry, an intent, a mark, a snapshot), and some that hold none."""
    entries, intents, marks, frozen = full = [trial.rollout() for _ in range(4)]
    _, empty, dropped = bare = [trial.rollout() for _ in range(3)]
    await trial.sink.put(trial.entry(entries))
    await trial.sink.begin_call(intents, "c1")
    await trial.sink.mark_incomplete(marks)
    for rollout in (frozen, dropped):
        await trial.sink.put(trial.entry(rollout))
    for rollout in (frozen, empty):
        await trial.source.freeze(rollout)
    snapshot = await trial.source.freeze(dropped)
    await trial.source.drop(dropped, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
    return full, bare


def _shuffled(full: list[str], bare: list[str]) -> list[str]:
    return [full[3], bare[2], full[0], bare[0], full[2], bare[1], full[1]]


async def retire_leaves_fences(trial: Trial) -> None:
    """After retire, whatever the state before and also of an unknown id, every write raises the retired error."""
    full, bare = await _rollouts_of_each_kind(trial)

    await trial.source.retire(full + bare)

    for rollout in full + bare:
        await refused_once_retired(trial, rollout, "retire")


async def retire_tells_what_was_there(trial: Trial) -> None:
    """Retire tells apart ids that had records and ids that had none, in the order given; again there are none."""
    full, bare = await _rollouts_of_each_kind(trial)
    batch = _shuffled(full, bare)

    first = await trial.source.retire(batch)
    second = await trial.source.retire(batch)

    removed = [rollout for rollout in batch if rollout in full]
    absent = [rollout for rollout in batch if rollout in bare]
    trial.equal(first, {"removed": removed, "absent": absent}, "the payload of retire")
    trial.equal(second, {"removed": [], "absent": batch}, "the payload of retire again")


async def drop_after_retire_is_true(trial: Trial) -> None:
    """A retired rollout still answers true to the drop of the snapshot that it was, and false to others."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))
    name = (await trial.source.freeze(rollout)).snapshot_id
    await trial.source.retire([rollout])

    trial.equal(await trial.source.drop(rollout, snapshot_id=name, version=2), True, "drop of the pair")
    trial.equal(await trial.source.drop(rollout, snapshot_id=name, version=3), False, "drop of another pair")


async def delete_tells_what_was_there(trial: Trial) -> None:
    """Delete tells apart ids that had records and ids that had none, in the order given; again there are none."""
    full, bare = await _rollouts_of_each_kind(trial)
    batch = _shuffled(full, bare)

    first = await trial.source.delete(batch)
    second = await trial.source.delete(batch)

    removed = [rollout for rollout in batch if rollout in full]
    absent = [rollout for rollout in batch if rollout in bare]
    trial.equal(first, {"removed": removed, "absent": absent}, "the payload of delete")
    trial.equal(second, {"removed": [], "absent": batch}, "the payload of delete again")


async def delete_frees_the_id(trial: Trial) -> None:
    """After delete an id starts empty, whatever it was: no entries, calls, refusals, marks, version or fence."""
    full, bare = await _rollouts_of_each_kind(trial)
    for rollout in (full[0], full[2]):
        await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")
    await trial.source.delete(full + bare)

    for rollout in full + bare:
        entry = trial.entry(rollout, prompt_token_ids=[7])
        await trial.sink.put(entry)
        await trial.sink.refuse_call(rollout, model_call_id="c2", code="other")

        await trial.freezes(rollout, entries=[entry], refusals={"c2": "other"}, version=3)


async def old_pair_does_not_drop_the_new_rollout(trial: Trial) -> None:
    """A late drop with the pair of a deleted rollout does not touch the new one of the same id."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    old = await trial.source.freeze(rollout)
    await trial.source.delete([rollout])
    await trial.sink.put(entry)
    await trial.freezes(rollout, entries=[entry], version=2)

    dropped = await trial.source.drop(rollout, snapshot_id=old.snapshot_id, version=old.version)

    trial.equal(dropped, False, "drop with the pair of a deleted rollout")
    await trial.freezes(rollout, entries=[entry], version=2)


async def delete_after_retire_lifts_the_fence(trial: Trial) -> None:
    """Delete of a retired rollout finds no records and frees the id, and the old pair drops nothing."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))
    name = (await trial.source.freeze(rollout)).snapshot_id
    await trial.source.retire([rollout])

    trial.equal(await trial.source.delete([rollout]), {"removed": [], "absent": [rollout]}, "the payload of delete")

    trial.equal(await trial.source.drop(rollout, snapshot_id=name, version=2), False, "drop after delete")
    await trial.freezes(rollout, version=1)


async def empty_batch_is_noop(trial: Trial) -> None:
    """An empty batch succeeds and tells of no ids."""
    for remove in (trial.source.retire, trial.source.delete):
        trial.equal(await remove([]), {"removed": [], "absent": []}, "the payload of an empty batch")


async def duplicates_count_once(trial: Trial) -> None:
    """An id that stands in a batch twice is handled and told of once, where it stands first."""
    for remove in (trial.source.retire, trial.source.delete):
        known, unknown, later = trial.rollout(), trial.rollout(), trial.rollout()
        for rollout in (known, later):
            await trial.sink.put(trial.entry(rollout))

        payload = await remove((later, unknown, known, unknown, later, known))

        trial.equal(payload, {"removed": [later, known], "absent": [unknown]}, "the payload")


async def bare_string_raises(trial: Trial) -> None:
    """A string given as a batch is a TypeError, since it is a sequence of one-character ids, and changes nothing."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    bare: Any = rollout

    for remove in (trial.source.retire, trial.source.delete):
        await trial.raises(TypeError, "a bare string given as a batch", remove, bare)

    await trial.freezes(rollout, entries=[entry], version=2)


async def batch_is_checked_before_it_changes(trial: Trial) -> None:
    """One invalid id refuses the whole batch before anything is removed."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    odd: Any = 7

    for remove in (trial.source.retire, trial.source.delete):
        for bad in ("a/b", "", "..", "x" * 238, odd):
            await trial.raises(InvalidRolloutIdError, "a batch with an invalid id", remove, [rollout, bad])

    await trial.freezes(rollout, entries=[entry], version=2)
