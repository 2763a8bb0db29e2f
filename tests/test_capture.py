"""`capture()`: however a model call is left, the rollout's record says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from tests.loops import HeldDisk, hold_lock, opened, run_in, store_on
from tests.samples import entry
from tokenstore import (
    ConflictingEntryError,
    InvalidEntryError,
    LockTimeoutError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenCaptureSnapshot,
    TokenCaptureStore,
)
from tokenstore import capture as captures
from tokenstore.testing import Fault, SimulatedDisk
from tokenstore.testing.simulated_files import SimulatedFile

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["entered", "daemon"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[TokenCaptureStore]:
    """A store whose host is in this loop, or in the daemon thread."""
    async with opened(store_on(SimulatedDisk()), entered=request.param == "entered") as found:
        yield found


def facts(snapshot: TokenCaptureSnapshot) -> tuple[list[str], tuple[str, ...], bool]:
    """What a snapshot holds, and why it is incomplete."""
    return [each.model_call_id for each in snapshot.entries], snapshot.incomplete_reasons, snapshot.incomplete


class TestSettling:
    """Leaving after `put` or `refuse`."""

    async def test_put(self, store: TokenCaptureStore) -> None:
        """A call whose entry was put leaves the rollout complete."""
        async with store.capture("r", "c0") as call:
            await call.put(entry())

        assert call.settled
        assert facts(await store.freeze("r")) == (["c0"], (), False)

    async def test_refuse(self, store: TokenCaptureStore) -> None:
        """A call that the engine refused leaves the rollout complete, and the refusal in it."""
        async with store.capture("r", "c0") as call:
            await call.refuse("context_length_exceeded")
        snapshot = await store.freeze("r")

        assert facts(snapshot) == ([], (), False)
        assert [(each.model_call_id, each.code) for each in snapshot.refusals] == [("c0", "context_length_exceeded")]

    async def test_the_intent_is_there_before_the_body(self, store: TokenCaptureStore) -> None:
        """While the body runs the call is open, and in nobody's way."""
        async with store.capture("r", "c0") as call:
            during = await store.peek("r")
            await call.put(entry())

        assert (during.open_calls, during.incomplete) == (("c0",), False)

    async def test_an_entry_of_another_call(self, store: TokenCaptureStore) -> None:
        """An entry of another call or rollout is refused, and does not settle the call."""
        async with store.capture("r", "c0") as call:
            for other in (entry("c1"), entry(rollout_id="other")):
                with pytest.raises(InvalidEntryError, match="is being captured"):
                    await call.put(other)

        assert facts(await store.peek("r")) == ([], ("marked:c0",), True)

    async def test_an_entry_put_again_after_an_error(self, store: TokenCaptureStore) -> None:
        """A body that mends its entry and puts it again leaves the rollout complete."""
        async with store.capture("r", "c0") as call:
            with pytest.raises(InvalidEntryError):
                await call.put(entry(generation_log_probs=[0.0, float("nan")]))
            await call.put(entry())

        assert facts(await store.freeze("r")) == (["c0"], (), False)

    async def test_a_duck_typed_entry(self, store: TokenCaptureStore) -> None:
        """Any object with the attributes of an entry may be put."""

        class Duck:
            def __init__(self, **fields: Any) -> None:
                self.__dict__.update(fields)

        async with store.capture("r", "c0") as call:
            await call.put(
                Duck(  # type: ignore[arg-type]
                    rollout_id="r",
                    model_call_id="c0",
                    prompt_token_ids=(1, 2),
                    generation_token_ids=[3],
                    generation_log_probs=[-1],
                )
            )

        assert facts(await store.freeze("r")) == (["c0"], (), False)


class TestLosing:
    """Leaving in any other way."""

    async def test_nothing_was_called(self, store: TokenCaptureStore) -> None:
        """A body that settles nothing marks the rollout."""
        async with store.capture("r", "c0"):
            pass

        assert facts(await store.peek("r")) == ([], ("marked:c0",), True)

    async def test_an_exception(self, store: TokenCaptureStore) -> None:
        """An exception marks the rollout, and passes as it is."""
        mine = ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            await lose(store, mine, lambda: None)

        assert caught.value is mine
        assert facts(await store.peek("r")) == ([], ("marked:c0",), True)

    async def test_a_conflict(self, store: TokenCaptureStore) -> None:
        """A call that was put before with other content is a conflict, and counted once."""
        await store.put(entry(model="before"))

        with pytest.raises(ConflictingEntryError):
            async with store.capture("r", "c0") as call:
                await call.put(entry())

        snapshot = await store.freeze("r")
        assert facts(snapshot) == (["c0"], ("conflict:c0",), True)
        assert snapshot.version == 3

    async def test_a_cancelled_scope(self, store: TokenCaptureStore) -> None:
        """A cancelled scope marks the rollout before the caller gets away."""
        with anyio.CancelScope() as scope:
            async with store.capture("r", "c0"):
                scope.cancel()
                await anyio.sleep_forever()

        assert facts(await store.peek("r")) == ([], ("marked:c0",), True)

    async def test_a_timeout(self, store: TokenCaptureStore) -> None:
        """A timeout marks the rollout, and is raised."""
        with pytest.raises(TimeoutError), anyio.fail_after(60) as scope:  # noqa: PT012 - the block is what is tested
            async with store.capture("r", "c0"):
                scope.deadline = anyio.current_time()
                await anyio.sleep_forever()

        assert facts(await store.peek("r")) == ([], ("marked:c0",), True)

    async def test_cancelled_in_its_put(self) -> None:
        """A put that is cancelled while it is written marks the rollout: its outcome was unknown to the body."""
        disk = HeldDisk()
        async with store_on(disk) as store:
            async with anyio.create_task_group() as tasks:
                disk.hold("datasync", ".jsonl")
                tasks.start_soon(capture_and_put, store)
                await disk.reached()
                tasks.cancel_scope.cancel()
                disk.free()
            snapshot = await store.freeze("r")

        assert facts(snapshot) == (["c0"], ("marked:c0",), True)

    @pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
    def test_native_cancellation(self, loop: str) -> None:
        """A task that asyncio itself cancels or times out marks the rollout before it ends."""

        async def cancelled(store: TokenCaptureStore) -> None:
            task = asyncio.current_task()
            assert task is not None
            async with store.capture("cancelled", "c0"):
                task.cancel()
                await asyncio.sleep(60)

        async def timed_out(store: TokenCaptureStore) -> None:
            async with asyncio.timeout(60) as timeout, store.capture("timed-out", "c0"):
                timeout.reschedule(0)
                await asyncio.sleep(60)

        async def main() -> list[tuple[str, ...]]:
            async with store_on(SimulatedDisk()) as store:
                outcomes = await asyncio.gather(cancelled(store), timed_out(store), return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, TimeoutError]
                return [(await store.peek(name)).incomplete_reasons for name in ("cancelled", "timed-out")]

        assert run_in(loop, main) == [("marked:c0",)] * 2


async def capture_and_put(store: TokenCaptureStore) -> None:
    """Capture one call, and put its entry."""
    async with store.capture("r", "c0") as call:
        await call.put(entry())


class TestFrozenMeanwhile:
    """Somebody else moves the rollout on while the body runs."""

    async def test_frozen(self, store: TokenCaptureStore) -> None:
        """A frozen rollout is not marked: its intent has masked it already, and its version stays."""
        async with store.capture("r", "c0") as call:
            frozen = await store.freeze("r")
            with pytest.raises(TokenCaptureFrozenError):
                await call.put(entry())

        again = await store.freeze("r")
        assert facts(frozen) == ([], ("lost_call:c0",), True)
        assert again == frozen
        assert await store.drop("r", snapshot_id=frozen.snapshot_id, version=frozen.version)

    async def test_frozen_and_left(self, store: TokenCaptureStore) -> None:
        """Leaving without a word does not mark a frozen rollout either, and raises nothing."""
        async with store.capture("r", "c0"):
            frozen = await store.freeze("r")

        assert await store.freeze("r") == frozen

    async def test_retired(self, store: TokenCaptureStore) -> None:
        """Leaving does not touch a retired rollout."""
        async with store.capture("r", "c0"):
            await store.retire(["r"])

        with pytest.raises(TokenCaptureRetiredError):
            await store.peek("r")

    async def test_frozen_before(self, store: TokenCaptureStore) -> None:
        """The body of a call that came too late does not run."""
        await store.freeze("r")
        ran = False

        with pytest.raises(TokenCaptureFrozenError):
            async with store.capture("r", "c0"):
                ran = True

        assert not ran


async def lose(store: TokenCaptureStore, error: Exception, before: Callable[[], object]) -> None:
    """Capture a call, do something, and raise."""
    async with store.capture("r", "c0"):
        before()
        raise error


class TestFailing:
    """The loss itself cannot be recorded."""

    async def test_a_failing_mark_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        """A mark that fails is logged, and nothing is raised; the intent masks the rollout."""
        disk = HeldDisk()
        async with store_on(disk) as store:
            async with store.capture("r", "c0"):
                disk.fault = Fault(call="datasync", name_suffix=".incomplete", repeat=True)
            disk.fault = None
            snapshot = await store.freeze("r")

        assert "loss of call c0 was not marked" in caplog.text
        assert snapshot.incomplete

    async def test_what_the_body_raised_passes_a_failing_mark(self) -> None:
        """Where the mark fails too, what the body raised is what the caller gets."""
        disk = HeldDisk()
        mine = ValueError("mine")
        async with store_on(disk) as store:
            with pytest.raises(ValueError, match="mine") as caught:
                await lose(store, mine, lambda: setattr(disk, "fault", Fault(call="datasync", repeat=True)))
            disk.fault = None

        assert caught.value is mine

    @pytest.mark.parametrize("entered", [True, False])
    async def test_it_takes_a_second_at_most(
        self, entered: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While somebody else holds the lock a caller that leaves gets away soon; the intent masks the rollout."""
        assert captures.MARK_SECONDS == 1.0
        monkeypatch.setattr(captures, "MARK_SECONDS", 0.05)
        disk = SimulatedDisk()
        async with opened(store_on(disk, lock_timeout=30.0), entered=entered) as store:
            holders: list[SimulatedFile] = []
            with pytest.raises(ValueError, match="mine"):
                await lose(store, ValueError("mine"), lambda: holders.append(hold_lock(disk)))
            logged = caplog.text
            holders[0].close()
            snapshot = await store.freeze("r")

        assert "took too long" in logged
        assert snapshot.incomplete

    async def test_cancelled_while_the_lock_is_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A caller that is cancelled while somebody else holds the lock gets away too."""
        monkeypatch.setattr(captures, "MARK_SECONDS", 0.05)
        disk = SimulatedDisk()
        async with store_on(disk) as store:
            with anyio.CancelScope() as scope:
                async with store.capture("r", "c0"):
                    holder = hold_lock(disk)
                    scope.cancel()
                    await anyio.sleep_forever()
            holder.close()
            snapshot = await store.freeze("r")

        assert scope.cancelled_caught
        assert snapshot.incomplete

    async def test_an_intent_that_cannot_be_written(self) -> None:
        """If the intent cannot be made durable, the error reaches the caller and the body does not run."""
        disk = SimulatedDisk()
        async with store_on(disk, lock_timeout=0.02) as store:
            holder, ran = hold_lock(disk), False
            with pytest.raises(LockTimeoutError):
                async with store.capture("r", "c0"):
                    ran = True
            holder.close()

        assert not ran

    async def test_a_closed_store(self, caplog: pytest.LogCaptureFixture) -> None:
        """The loss of a body that outlives the store is logged, and its intent masks the rollout."""
        disk = SimulatedDisk()
        async with store_on(disk) as store, store.capture("r", "c0"):
            await store.close()
        async with store_on(disk) as other:
            snapshot = await other.freeze("r")

        assert "was not marked" in caplog.text
        assert snapshot.incomplete_reasons == ("lost_call:c0",)
