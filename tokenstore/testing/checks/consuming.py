"""Freezing and dropping: what the trainer takes, and what comes too late for it."""

from __future__ import annotations

from functools import partial

from tokenstore.errors import TokenCaptureFrozenError, TokenCaptureRetiredError
from tokenstore.testing.trial import Trial


async def freeze_of_unknown_is_empty(trial: Trial) -> None:
    """Freezing an id never seen makes a frozen, empty, complete snapshot, and later writes are late."""
    rollout = trial.rollout()

    await trial.freezes(rollout, version=1)

    await trial.raises(TokenCaptureFrozenError, "put after freeze", trial.sink.put, trial.entry(rollout))


async def freeze_is_idempotent(trial: Trial) -> None:
    """Freezing again gives the same snapshot: id, version, entries, refusals and reasons."""
    rollout = trial.rollout()
    await trial.sink.begin_call(rollout, "c3")
    await trial.sink.put(trial.entry(rollout))
    await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")
    await trial.sink.mark_incomplete(rollout, "c4")
    first = await trial.source.freeze(rollout)

    for _ in range(2):
        trial.equal(await trial.source.freeze(rollout), first, "the snapshot")

    await trial.freezes(
        rollout,
        entries=[trial.entry(rollout)],
        refusals={"c2": "busy"},
        reasons=["marked:c4", "lost_call:c3"],
        version=4,
    )


async def snapshot_ids_differ(trial: Trial) -> None:
    """Every freeze of a rollout has an id of its own, also of a rollout that was deleted and made anew."""
    rollouts = [trial.rollout() for _ in range(3)]
    names = [(await trial.source.freeze(rollout)).snapshot_id for rollout in rollouts]

    await trial.source.delete(rollouts[:1])
    names.append((await trial.source.freeze(rollouts[0])).snapshot_id)

    trial.equal(len(set(names)), 4, "the number of different snapshot ids of four freezes")


async def late_writes_after_freeze_raise(trial: Trial) -> None:
    """After freeze a new entry, other content, a call or a refusal raises, and the snapshot stays as it is."""
    rollout = trial.rollout()
    await trial.sink.begin_call(rollout, "c1")
    await trial.sink.put(trial.entry(rollout, "c1"))
    await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")
    before = await trial.source.freeze(rollout)

    for doing, call in (
        ("put of a new call", partial(trial.sink.put, trial.entry(rollout, "c9"))),
        ("put of other content", partial(trial.sink.put, trial.entry(rollout, "c1", model="other"))),
        ("put of a refused call", partial(trial.sink.put, trial.entry(rollout, "c2"))),
        ("begin_call", partial(trial.sink.begin_call, rollout, "c9")),
        ("begin_call of a recorded call", partial(trial.sink.begin_call, rollout, "c1")),
        ("refuse_call", partial(trial.sink.refuse_call, rollout, model_call_id="c9", code=None)),
        ("refuse_call of a recorded call", partial(trial.sink.refuse_call, rollout, model_call_id="c1", code=None)),
    ):
        error = await trial.raises(TokenCaptureFrozenError, f"{doing} after freeze", call)
        trial.equal("already frozen" in str(error), True, f"'already frozen' in the message of {doing}")

    trial.equal(await trial.source.freeze(rollout), before, "the snapshot")


async def refused_once_retired(trial: Trial, rollout: str, what: str) -> None:
    """Fail the check unless every write to the rollout, and freeze, raises the retired error."""
    for doing, call in (
        ("put of the same entry", partial(trial.sink.put, trial.entry(rollout))),
        ("put of a new call", partial(trial.sink.put, trial.entry(rollout, "c9"))),
        ("begin_call", partial(trial.sink.begin_call, rollout, "c1")),
        ("refuse_call", partial(trial.sink.refuse_call, rollout, model_call_id="c2", code="busy")),
        ("mark_incomplete", partial(trial.sink.mark_incomplete, rollout, "c1")),
        ("freeze", partial(trial.source.freeze, rollout)),
    ):
        error = await trial.raises(TokenCaptureRetiredError, f"{doing} after {what}", call)
        trial.equal("retired" in str(error), True, f"'retired' in the message of {doing}")


async def drop_needs_the_pair(trial: Trial) -> None:
    """Drop with another version or snapshot id is false and changes nothing; with the right pair it is true."""
    rollout, other = trial.rollout(), trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    snapshot = await trial.freezes(rollout, entries=[entry], version=2)
    stranger = await trial.source.freeze(other)

    for snapshot_id, version in (
        (snapshot.snapshot_id, 1),
        (snapshot.snapshot_id, 3),
        (stranger.snapshot_id, 2),
        ("", 2),
    ):
        dropped = await trial.source.drop(rollout, snapshot_id=snapshot_id, version=version)
        trial.equal(dropped, False, "drop with a wrong pair")

    trial.equal(await trial.source.freeze(rollout), snapshot, "the snapshot")
    dropped = await trial.source.drop(rollout, snapshot_id=snapshot.snapshot_id, version=2)
    trial.equal(dropped, True, "drop with the right pair")


async def drop_of_open_is_false(trial: Trial) -> None:
    """An open or unknown rollout cannot be dropped, whatever the pair; it goes on, and nothing is made."""
    known, unknown = trial.rollout(), trial.rollout()
    entry = trial.entry(known)
    await trial.sink.put(entry)

    for rollout, version in ((known, 1), (known, 0), (unknown, 0)):
        dropped = await trial.source.drop(rollout, snapshot_id="", version=version)
        trial.equal(dropped, False, "drop of an open rollout")

    await trial.freezes(known, entries=[entry], version=2)
    await trial.sink.put(trial.entry(unknown))
    await trial.freezes(unknown, entries=[trial.entry(unknown)], version=2)


async def drop_again_is_true(trial: Trial) -> None:
    """Drop of the same pair again is true, of another pair it is false, and all writes are refused."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))
    await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")
    name = (await trial.source.freeze(rollout)).snapshot_id

    for _ in range(3):
        trial.equal(await trial.source.drop(rollout, snapshot_id=name, version=3), True, "drop of the same pair")

    trial.equal(await trial.source.drop(rollout, snapshot_id=name, version=2), False, "drop with a wrong version")
    trial.equal(await trial.source.drop(rollout, snapshot_id="x", version=3), False, "drop with a wrong id")
    await refused_once_retired(trial, rollout, "drop")


async def mark_defeats_drop(trial: Trial) -> None:
    """A mark after freeze makes a drop with the older version false; the newer version drops."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))
    snapshot = await trial.source.freeze(rollout)
    await trial.sink.mark_incomplete(rollout, "c1")

    dropped = await trial.source.drop(rollout, snapshot_id=snapshot.snapshot_id, version=2)

    trial.equal(dropped, False, "drop with the version before the mark")
    await trial.freezes(rollout, entries=[trial.entry(rollout)], reasons=["marked:c1"], version=3)
    dropped = await trial.source.drop(rollout, snapshot_id=snapshot.snapshot_id, version=3)
    trial.equal(dropped, True, "drop with the version after the mark")
