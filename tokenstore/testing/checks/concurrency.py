"""Many callers at once, cancelled callers, and several clients of one backend."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import anyio
from anyio.lowlevel import checkpoint

from tokenstore.errors import ConflictingEntryError, TokenCaptureFrozenError
from tokenstore.protocols import TokenSink
from tokenstore.records import TokenEntry
from tokenstore.testing.rollouts import agent_rollout
from tokenstore.testing.trial import Trial


async def many_puts_into_one_rollout(trial: Trial) -> None:
    """Two hundred puts into one rollout at the same time, each with its intent, are all there once."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, f"c{number}", prompt_token_ids=[number]) for number in range(200)]

    async def record(entry: TokenEntry) -> None:
        await trial.sink.begin_call(rollout, entry.model_call_id)
        await trial.sink.put(entry)

    trial.succeeded(await trial.together([partial(record, entry) for entry in entries]), "concurrent puts")

    await trial.freezes(rollout, entries=entries, version=201, ordered=False)


async def many_rollouts_at_once(trial: Trial) -> None:
    """Agents that work at the same time, each on its own rollout, do not disturb each other."""
    rollouts = [trial.rollout() for _ in range(25)]
    calls = {rollout: agent_rollout(rollout, turns=8, first_prompt=300, generated=20, added=30) for rollout in rollouts}

    async def work(rollout: str) -> None:
        for entry in calls[rollout]:
            await trial.sink.put(entry)

    trial.succeeded(await trial.together([partial(work, rollout) for rollout in rollouts]), "concurrent puts")

    for rollout in rollouts:
        await trial.freezes(rollout, entries=calls[rollout], version=9)


async def same_put_at_once_counts_once(trial: Trial) -> None:
    """Twenty puts of one entry at the same time all succeed and leave one entry."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)

    outcomes = await trial.together([partial(trial.sink.put, entry)] * 20)

    trial.succeeded(outcomes, "twenty puts of one entry")
    await trial.freezes(rollout, entries=[entry], version=2)


async def one_of_conflicting_puts_wins(trial: Trial) -> None:
    """Of puts of one call with different content, made at the same time, one succeeds and the others raise."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, prompt_token_ids=[number]) for number in range(10)]

    outcomes = await trial.together([partial(trial.sink.put, entry) for entry in entries])

    winners = [entry for entry, outcome in zip(entries, outcomes, strict=True) if outcome is None]
    losers = [outcome for outcome in outcomes if isinstance(outcome, ConflictingEntryError)]
    trial.equal((len(winners), len(losers)), (1, 9), "the numbers of puts that succeeded and conflicted")
    await trial.freezes(rollout, entries=winners, reasons=["conflict:c1"], version=3)


async def freezes_at_once_agree(trial: Trial) -> None:
    """Freezes at the same time, through two clients, give one snapshot."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))

    sources = [trial.source, trial.other_source] * 5
    outcomes = await trial.together([partial(source.freeze, rollout) for source in sources])

    trial.succeeded(outcomes, "concurrent freezes")
    first = await trial.freezes(rollout, entries=[trial.entry(rollout)], version=2)
    trial.equal(all(outcome == first for outcome in outcomes), True, "that all snapshots agree")


async def freeze_takes_what_was_acknowledged(trial: Trial) -> None:
    """Of puts that race a freeze, those acknowledged are in the snapshot, and the others raise and are not."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, f"c{number}") for number in range(40)]
    acknowledged: list[TokenEntry] = []
    late: list[TokenEntry] = []
    under_way = anyio.Event()

    async def work(share: Sequence[TokenEntry]) -> None:
        for entry in share:
            try:
                await trial.sink.put(entry)
            except TokenCaptureFrozenError:
                late.append(entry)
            else:
                acknowledged.append(entry)
                under_way.set()

    async def freeze() -> None:
        await under_way.wait()
        await trial.other_source.freeze(rollout)

    outcomes = await trial.together([*(partial(work, entries[start::5]) for start in range(5)), freeze])

    trial.succeeded(outcomes, "freeze during puts, and the puts but for those that came too late")
    trial.equal(len(acknowledged) + len(late), 40, "the number of puts that succeeded or came too late")
    await trial.freezes(rollout, entries=acknowledged, version=len(acknowledged) + 1, ordered=False)


async def _cancelled_puts(trial: Trial, entries: Sequence[TokenEntry]) -> None:
    """Start puts and cancel each a little later than the one before, the first at once."""
    for turns, entry in enumerate(entries):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(trial.sink.put, entry)
            for _ in range(turns):
                await checkpoint()
            tasks.cancel_scope.cancel()


async def cancelled_put_can_be_retried(trial: Trial) -> None:
    """Whenever a put was cancelled, putting the same entry again succeeds and leaves it there once."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, f"c{number}") for number in range(12)]

    await _cancelled_puts(trial, entries)
    for entry in entries:
        await trial.sink.put(entry)

    await trial.freezes(rollout, entries=entries, version=13, ordered=False)


async def cancelled_put_is_whole_or_absent(trial: Trial) -> None:
    """A put that was cancelled and not tried again is there whole and counted, or not at all; the rollout works on."""
    rollout = trial.rollout()
    entries = [trial.entry(rollout, f"c{number}") for number in range(12)]
    last = trial.entry(rollout, "last")

    await _cancelled_puts(trial, entries)
    await trial.sink.put(last)

    snapshot = await trial.source.freeze(rollout)
    there = {entry.model_call_id for entry in snapshot.entries}
    kept = [entry for entry in (*entries, last) if entry.model_call_id in there]
    trial.equal("last" in there, True, "that the entry put last is there")
    await trial.freezes(rollout, entries=kept, version=len(kept) + 1, ordered=False)


async def clients_see_each_other(trial: Trial) -> None:
    """What one client recorded, another finds: entries, intents, refusals, marks, freeze, fence and deletion."""
    rollout = trial.rollout()
    entry = trial.entry(rollout)
    await trial.sink.begin_call(rollout, "c3")
    await trial.sink.put(entry)
    await trial.sink.refuse_call(rollout, model_call_id="c2", code="busy")

    await trial.other_sink.put(entry)
    await trial.other_sink.refuse_call(rollout, model_call_id="c2", code="busy")
    changed = trial.entry(rollout, model="other")
    await trial.raises(ConflictingEntryError, "put of other content", trial.other_sink.put, changed)
    snapshot = await trial.other_source.freeze(rollout)

    reasons = ["conflict:c1", "lost_call:c3"]
    await trial.freezes(rollout, entries=[entry], refusals={"c2": "busy"}, reasons=reasons, version=4)
    await trial.raises(TokenCaptureFrozenError, "begin_call after freeze", trial.sink.begin_call, rollout, "c4")
    dropped = await trial.source.drop(rollout, snapshot_id=snapshot.snapshot_id, version=4)
    trial.equal(dropped, True, "drop of the pair that another client froze")
    await trial.other_source.delete([rollout])
    await trial.sink.put(changed)
    await trial.freezes(rollout, entries=[changed], version=2)


async def clients_write_into_one_rollout(trial: Trial) -> None:
    """Two clients that write into one rollout in turns and at once lose and double nothing."""
    rollout = trial.rollout()
    entries = agent_rollout(rollout, turns=30, first_prompt=300, generated=10, added=10)
    sinks = [trial.sink, trial.other_sink] * 15
    for sink, entry in zip(sinks[:10], entries[:10], strict=True):
        await sink.put(entry)

    async def put_twice(sink: TokenSink, entry: TokenEntry) -> None:
        await sink.put(entry)
        await sink.put(entry)

    pairs = zip(sinks[10:], entries[10:], strict=True)
    outcomes = await trial.together([partial(put_twice, sink, entry) for sink, entry in pairs])

    trial.succeeded(outcomes, "puts through two clients")
    await trial.freezes(rollout, entries=entries, version=31, ordered=False)


async def drops_at_once_agree(trial: Trial) -> None:
    """Drops of one pair at the same time, through two clients, are all true."""
    rollout = trial.rollout()
    await trial.sink.put(trial.entry(rollout))
    snapshot = await trial.source.freeze(rollout)

    drops = [
        partial(source.drop, rollout, snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        for source in [trial.source, trial.other_source] * 4
    ]

    trial.equal(await trial.together(drops), [True] * 8, "the answers to eight drops")


async def close_loses_nothing(trial: Trial) -> None:
    """Closing a client, also twice, keeps what it acknowledged, and the other clients go on."""
    rollout = trial.rollout()
    first, second = trial.entry(rollout, "c1"), trial.entry(rollout, "c2")
    await trial.other_sink.begin_call(rollout, "c3")
    await trial.other_sink.put(first)

    for client in (trial.other_sink, trial.other_sink, trial.other_source):
        await client.close()
    await trial.sink.put(second)

    await trial.freezes(rollout, entries=[first, second], reasons=["lost_call:c3"], version=3)
