"""Errors go to those who wait and to nobody else, whatever it is that breaks."""

from __future__ import annotations

import errno
import math
from typing import Any

import anyio
import pytest

from tests.loops import ROOT, HeldDisk, Outcomes, calls_of, hosting, queue, store_on, ticks
from tests.samples import entry
from tokenstore import DurabilityError, InvalidEntryError
from tokenstore.hosting import Host
from tokenstore.mailbox import Message, Solo, put_message
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk

pytestmark = pytest.mark.anyio

LINES = "r.tokens.jsonl"


class BuggyDisk(HeldDisk):
    """A disk whose next `datasync` reveals a bug of the library: an error that nobody has foreseen."""

    broken = False

    def due(self, call: Any, name: str) -> Fault | None:
        """Raise what no disk raises."""
        fault = super().due(call, name)
        if call == "datasync" and self.broken:
            self.broken = False
            raise ZeroDivisionError("a bug")
        return fault


async def test_a_bug_fails_its_waiters_and_ends_the_actor(caplog: pytest.LogCaptureFixture) -> None:
    """After an error that nobody has foreseen all who wait get it; the next message starts a new actor."""
    disk, outcomes = BuggyDisk(), Outcomes()
    async with store_on(disk) as store:
        await store.put(entry("acked"))
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            disk.broken = True
            tasks.start_soon(outcomes.of, "taken", store.put, entry("taken"))
            await disk.reached()
            await queue(tasks, store, outcomes.of, "queued", store.put, entry("queued"))
            await queue(tasks, store, outcomes.of, "freeze", store.freeze, "r")
            disk.free()
        actors_left = store.statistics().actors
        await store.put(entry("taken"))
        calls = await calls_of(store)

    assert {name: str(error) for name, error in outcomes.errors.items()} == dict.fromkeys(
        ["taken", "queued", "freeze"], "a bug"
    )
    assert actors_left == 0
    assert calls == ["acked", "taken"]
    assert "a bug" in caplog.text


async def test_a_bug_does_not_reach_other_rollouts() -> None:
    """An actor that breaks ends alone."""
    async with hosting() as host:
        await host.ask("other", put_message(entry("c0", rollout_id="other")))
        other = host._actors["other"]
        with pytest.raises(ZeroDivisionError):
            await host.ask("r", Message(Solo(lambda _: 1 // 0)))
        await host.ask("other", put_message(entry("c1", rollout_id="other")))

        assert host._actors == {"other": other}


async def test_a_bug_of_the_actor_itself_fails_its_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error outside of any operation goes to the waiters too, and ends the actor."""

    def broken(host: Host, message: Message) -> None:
        raise ZeroDivisionError(f"a bug in {type(host).__name__} at {message.cost}")

    async with hosting() as host:
        monkeypatch.setattr(Host, "note_put", broken)
        async with anyio.create_task_group() as tasks:
            outcomes = Outcomes()
            for number in range(3):
                tasks.start_soon(outcomes.of, str(number), host.ask, "r", put_message(entry(f"c{number}")))
                await ticks(2)
        monkeypatch.undo()
        await host.ask("r", put_message(entry("again")))

    assert "0" in outcomes.results
    assert {type(error) for error in outcomes.errors.values()} == {ZeroDivisionError}
    assert len(outcomes.errors) == 2


async def test_a_failed_batch_fails_each_with_an_error_of_its_own() -> None:
    """Everybody in a batch whose sync failed gets the error, each as an object of its own; then all works again."""
    disk, outcomes = HeldDisk(), Outcomes()
    unacceptable = entry("bad", generation_token_ids=[1], generation_log_probs=[math.nan])
    async with store_on(disk) as store:
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            tasks.start_soon(store.put, entry("first"))
            await disk.reached()
            for name in ("a", "b"):
                await queue(tasks, store, outcomes.of, name, store.put, entry(name))
            await queue(tasks, store, outcomes.of, "bad", store.put, unacceptable)
            disk.fault = Fault(call="datasync", at=2, errno=errno.EIO)
            disk.free()
        for name in ("a", "b"):
            await store.put(entry(name))
        calls = await calls_of(store)

    assert type(outcomes.errors["a"]) is type(outcomes.errors["b"]) is DurabilityError
    assert outcomes.errors["a"] is not outcomes.errors["b"]
    assert isinstance(outcomes.errors["bad"], InvalidEntryError)
    assert calls == ["first", "a", "b"]


async def test_a_poisoned_journal_is_given_up() -> None:
    """After a sync that failed and could not be undone all who wait get the error, and a new actor rewrites."""
    simulated = SimulatedDisk()
    inner = FailingDisk(simulated)
    disk, outcomes = HeldDisk(inner), Outcomes()
    async with store_on(disk) as store:
        await store.put(entry("acked"))
        async with anyio.create_task_group() as tasks:
            disk.hold("datasync")
            disk.fault = Fault(call="datasync")
            inner.fault = Fault(call="truncate")
            tasks.start_soon(outcomes.of, "taken", store.put, entry("taken"))
            await disk.reached()
            await queue(tasks, store, outcomes.of, "queued", store.put, entry("queued"))
            await queue(tasks, store, outcomes.of, "mark", store.mark_incomplete, "r")
            disk.free()
        statistics = store.statistics()
        await store.put(entry("taken"))
        await store.put(entry("last"))
        calls = await calls_of(store)

    durable = simulated.after_crash(PersistencePolicy.SYNCED).files(ROOT)[LINES]
    assert {type(error) for error in outcomes.errors.values()} == {DurabilityError}
    assert outcomes.errors.keys() == {"taken", "queued", "mark"}
    assert (statistics.poisoned, statistics.actors) == (1, 0)
    assert calls == ["acked", "taken", "last"]
    assert durable == simulated.files(ROOT)[LINES]


async def test_nobody_takes_a_crash_for_success() -> None:
    """When the machine dies in the middle of a batch, whoever waits for it gets an error."""
    disk, outcomes = SimulatedDisk(), Outcomes()
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - the host dies where it is left
        async with hosting(disk) as host:
            await host.ask("r", put_message(entry("acked")))
            disk.crash_at = disk.steps + 2
            await outcomes.of("put", host.ask, "r", put_message(entry("c1")))

    assert caught.group_contains(PowerCut)
    assert outcomes.results == {}
