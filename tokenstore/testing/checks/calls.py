"""Calls that leave no entry: intents, refusals and marks."""

from __future__ import annotations

from functools import partial

from tokenstore.errors import ConflictingEntryError, TokenCaptureFrozenError
from tokenstore.testing.trial import Trial


async def lost_call_masks(trial: Trial) -> None:
    """A call that began and has neither entry nor refusal masks the rollout at freeze."""
    rollout = trial.rollout()
    entry = trial.entry(rollout, "c2")
    for call in ("c1", "c2", "c3"):
        await trial.sink.begin_call(rollout, call)
    await trial.sink.put(entry)

    await trial.freezes(rollout, entries=[entry], reasons=["lost_call:c1", "lost_call:c3"], version=2)


async def settled_calls_do_not_mask(trial: Trial) -> None:
    """Calls that began and have an entry or a refusal leave the rollout complete, and beginning does not count."""
    rollout = trial.rollout()
    entry = trial.entry(rollout, "c1")
    for call in ("c1", "c2"):
        await trial.sink.begin_call(rollout, call)
    await trial.sink.put(entry)
    await trial.sink.refuse_call(rollout, model_call_id="c2", code=None)

    await trial.freezes(rollout, entries=[entry], refusals={"c2": None}, version=3)


async def begin_again_is_noop(trial: Trial) -> None:
    """Beginning a call again, or one that has an entry or a refusal, succeeds and changes nothing."""
    rollout = trial.rollout()
    entry = trial.entry(rollout, "c1")
    for call in ("c1", "c1", "c2"):
        await trial.sink.begin_call(rollout, call)
    await trial.sink.put(entry)
    await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")
    await trial.sink.refuse_call(rollout, model_call_id="c3", code="busy")

    for call in ("c1", "c2", "c3"):
        await trial.sink.begin_call(rollout, call)

    await trial.freezes(rollout, entries=[entry], refusals={"c2": "busy", "c3": "busy"}, version=4)


async def refusals_are_kept(trial: Trial) -> None:
    """A refusal is delivered with its code, counts once, and masks nothing."""
    rollout = trial.rollout()
    codes = {"c1": "context_length_exceeded", "c2": None, "c3": "", "c4": 'é "😊"\n'}

    for call, code in codes.items():
        await trial.sink.refuse_call(rollout, model_call_id=call, code=code)

    await trial.freezes(rollout, refusals=codes, version=5)


async def repeated_refusal_is_noop(trial: Trial) -> None:
    """The same refusal again, also after freeze, succeeds and changes nothing."""
    rollout = trial.rollout()
    for _ in range(3):
        await trial.sink.refuse_call(rollout, model_call_id="c1", code="busy")
    before = await trial.freezes(rollout, refusals={"c1": "busy"}, version=2)

    await trial.sink.refuse_call(rollout, model_call_id="c1", code="busy")

    after = await trial.freezes(rollout, refusals={"c1": "busy"}, version=2)
    trial.equal(after.snapshot_id, before.snapshot_id, "the snapshot_id")


async def other_refusal_code_raises(trial: Trial) -> None:
    """A refusal with another code raises and leaves the first one; after freeze it comes too late."""
    rollout = trial.rollout()
    await trial.sink.refuse_call(rollout, model_call_id="c1", code="busy")

    refusing = partial(trial.sink.refuse_call, rollout, model_call_id="c1", code="other")
    await trial.raises(ConflictingEntryError, "refuse_call with another code", refusing)

    before = await trial.freezes(rollout, refusals={"c1": "busy"}, version=2)
    await trial.raises(TokenCaptureFrozenError, "refuse_call with another code after freeze", refusing)
    trial.equal(await trial.source.freeze(rollout), before, "the snapshot")


async def marks_mask(trial: Trial) -> None:
    """A mark masks the rollout and counts once for each call id; entries of marked calls are still delivered."""
    rollout = trial.rollout()
    entry = trial.entry(rollout, "c1")
    await trial.sink.put(entry)

    for call in ("c1", "c1", "c2", "c1"):
        await trial.sink.mark_incomplete(rollout, call)

    await trial.freezes(rollout, entries=[entry], reasons=["marked:c1", "marked:c2"], version=4)


async def mark_without_call_masks(trial: Trial) -> None:
    """A mark needs no call id, and an invalid one is recorded as blank rather than refused."""
    rollout = trial.rollout()

    await trial.sink.mark_incomplete(rollout)
    for call in ("", "a\nb", " c1", "c" * 513, "\ud800"):
        await trial.sink.mark_incomplete(rollout, call)

    await trial.freezes(rollout, reasons=["marked:"], version=2)


async def mark_after_freeze_masks(trial: Trial) -> None:
    """A mark of a frozen rollout shows in the next freeze: same snapshot, masked, a higher version."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.put(entry)
    before = await trial.freezes(rollout, entries=[entry], version=2)

    for call in ("c1", "c1", "c7"):
        await trial.sink.mark_incomplete(rollout, call)

    after = await trial.freezes(rollout, entries=[entry], reasons=["marked:c1", "marked:c7"], version=4)
    trial.equal(after.snapshot_id, before.snapshot_id, "the snapshot_id")
