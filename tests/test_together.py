"""Group commit across rollouts: many sections, few syncs, and each its own outcome."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.loops import PATIENCE, ROOT, HeldDisk, Outcomes, QueuedDisk, QueuedSyncs, hosting, store_on, ticks, until
from tests.samples import entry
from tokenstore import DurabilityError, InvalidEntryError, StoreConfig, TokenCaptureStore
from tokenstore.mailbox import put_message
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk
from tokenstore.threads import Threads
from tokenstore.together import COMMITTERS

pytestmark = pytest.mark.anyio

CONFIG = StoreConfig(sync="filesystem")


def store_with(disk: Any) -> TokenCaptureStore:
    """A store whose batches share syncs of the file system."""
    return TokenCaptureStore(Path("/root-of-the-store"), config=CONFIG, _disk=disk)


async def test_many_rollouts_need_few_syncs() -> None:
    """Puts that come while a sync is running share the next ones, whatever their rollouts."""
    disk, outcomes = HeldDisk(), Outcomes()
    async with store_with(disk) as store:
        for number in range(64):
            await store.put(entry("c0", rollout_id=f"r{number}"))
        before = store.statistics().fsyncs
        disk.hold("filesystem_sync")
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                put = entry("c1", rollout_id=f"r{number}")
                tasks.start_soon(outcomes.of, f"r{number}", store.put, put)
            await disk.reached()
            await ticks(50)
            disk.free()
        syncs = store.statistics().fsyncs - before

    assert len(outcomes.results) == 64
    assert syncs < 16


async def test_a_failed_sync_fails_all_who_waited() -> None:
    """Every put that waited for a failed sync raises, nothing of it stays, and the same puts work afterwards."""
    disk, outcomes = FailingDisk(SimulatedDisk()), Outcomes()
    async with store_with(disk) as store:
        for number in range(8):
            await store.put(entry("c0", rollout_id=f"r{number}"))
        disk.fault = Fault(call="filesystem_sync", repeat=True)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(outcomes.of, f"r{number}", store.put, entry("c1", rollout_id=f"r{number}"))
        disk.fault = None
        left = [len((await store.peek(f"r{number}")).entries) for number in range(8)]
        for number in range(8):
            await store.put(entry("c1", rollout_id=f"r{number}"))

    assert {type(error) for error in outcomes.errors.values()} == {DurabilityError}
    assert len(outcomes.errors) == 8
    assert left == [1] * 8


async def test_one_bad_entry_is_answered_alone() -> None:
    """An entry that is refused leaves the others of its sync alone."""
    outcomes = Outcomes()
    async with store_with(SimulatedDisk()) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(outcomes.of, "good", store.put, entry("c0"))
        tasks.start_soon(outcomes.of, "bad", store.put, entry("c0", rollout_id="s", extra={"text": "\ud800"}))

    assert list(outcomes.results) == ["good"]
    assert isinstance(outcomes.errors["bad"], InvalidEntryError)


async def test_a_lock_held_elsewhere_does_not_stop_the_others() -> None:
    """A rollout whose lock another process holds waits on the loop, while others are committed."""
    disk, outcomes = SimulatedDisk(), Outcomes()
    held = disk.open_root(Path("/root-of-the-store")).open("r.tokens.lock", "create")
    assert held.lock(exclusive=True)
    async with store_with(disk) as store, anyio.create_task_group() as tasks:
        tasks.start_soon(outcomes.of, "waits", store.put, entry("c0"))
        for number in range(5):
            await store.put(entry(f"c{number}", rollout_id="s"))
        waited = dict(outcomes.results)
        held.close()
        await until(lambda: "waits" in outcomes.results)

    assert waited == {}


async def test_a_long_batch_keeps_nobody_waiting() -> None:
    """A batch that takes long to be written goes apart: others that came with it are written meanwhile."""
    simulated, outcomes = SimulatedDisk(), Outcomes()
    disk = HeldDisk(simulated)
    async with store_with(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("filesystem_sync")
        tasks.start_soon(outcomes.of, "first", store.put, entry("c0", rollout_id="first"))
        await disk.reached()
        disk.hold("write", "long.tokens.jsonl")
        tasks.start_soon(outcomes.of, "long", store.put, entry("c0", rollout_id="long", prompt_token_ids=[7] * 160_000))
        tasks.start_soon(outcomes.of, "short", store.put, entry("c0", rollout_id="short"))
        await disk.reached()
        await until(lambda: simulated.files(ROOT).get("short.tokens.jsonl"))
        written = dict(outcomes.results)
        disk.free()

    assert written == {}
    assert set(outcomes.results) == {"first", "long", "short"}


async def test_few_descriptors_mean_few_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections that share a sync and those in other lanes are together as many as there is room for."""
    monkeypatch.setattr("tokenstore.journal.root.descriptor_limit", lambda: 256)
    simulated, outcomes = SimulatedDisk(), Outcomes()
    disk = HeldDisk(simulated)
    async with store_with(disk) as store, anyio.create_task_group() as tasks:
        disk.hold("filesystem_sync")
        for number in range(64):
            tasks.start_soon(outcomes.of, f"r{number}", store.put, entry("c0", rollout_id=f"r{number}"))
        await disk.reached()
        await ticks(50)
        written = len([name for name in simulated.files(ROOT) if name.endswith(".jsonl")])
        disk.free()

    assert 0 < written <= 2 * ((25 - 14) // 2)
    assert len(outcomes.results) == 64


@pytest.mark.parametrize("sync", ["file", "filesystem"])
@pytest.mark.parametrize("descriptors", [40, 46])
async def test_where_few_files_may_be_open_everybody_gets_a_lane(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, descriptors: int, sync: Any
) -> None:
    """Puts that never cease leave a lane to other operations, and take turns with them where there is only one."""
    monkeypatch.setattr("tokenstore.journal.root.descriptor_limit", lambda: descriptors)

    async def puts(store: TokenCaptureStore, rollout_id: str) -> None:
        for number in count():
            await store.put(entry(f"c{number}", rollout_id=rollout_id))

    store = TokenCaptureStore(tmp_path, config=StoreConfig(sync=sync))
    async with store, anyio.create_task_group() as tasks:
        for number in range(32):
            tasks.start_soon(puts, store, f"r{number}")
        await until(lambda: store.statistics().puts > 64)
        with anyio.fail_after(PATIENCE):
            await store.mark_incomplete("s", "c0")
        marked = await store.peek("s")
        tasks.cancel_scope.cancel()

    assert marked.incomplete_reasons == ("marked:c0",)


async def test_on_this_machine(tmp_path: Path) -> None:
    """A real disk keeps what was put with one sync of its file system, with begins and puts in one batch."""
    async with TokenCaptureStore(tmp_path, config=CONFIG) as store, anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(store.begin_call, f"r{number % 4}", f"c{number}")
            tasks.start_soon(store.put, entry(f"c{number}", rollout_id=f"r{number % 4}"))
    async with TokenCaptureStore(tmp_path) as store:
        found = [len((await store.freeze(f"r{number}")).entries) for number in range(4)]

    assert found == [5] * 4


def test_old_kernels_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below Linux 5.8, whose syncfs hides errors, the mode is refused with its remedy."""
    monkeypatch.setattr("platform.release", lambda: "5.4.0-100-generic")

    with pytest.raises(OSError, match=r"Linux 5\.8 or newer.*use sync='file'"):
        TokenCaptureStore(tmp_path, config=CONFIG)


async def test_no_thread_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started a put raises, the store lives on, and the same put works once one can."""

    async def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async with store_with(SimulatedDisk()) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Threads, "_run", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await store.put(entry("c0"))
        await store.put(entry("c0"))
        found = (await store.peek("r")).entries

    assert len(found) == 1


async def with_calls(store: TokenCaptureStore, count: int) -> None:
    """Give each of so many rollouts its first call, after which its batches may go with others."""
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(store.put, entry("c0", rollout_id=f"r{number}"))


async def test_syncs_of_many_files_are_in_flight_together() -> None:
    """With a sync for each file, a thread writes many rollouts' lines before it waits for the first of their syncs."""
    disk, outcomes = QueuedDisk(), Outcomes()
    async with store_on(disk) as store:
        await with_calls(store, 24)
        disk.hold("datasync")
        async with anyio.create_task_group() as tasks:
            for number in range(24):
                put = entry("c1", rollout_id=f"r{number}")
                tasks.start_soon(outcomes.of, f"r{number}", store.put, put)
            await disk.reached()
            await until(lambda: disk.calls["write"] - 24 > 12)
            disk.free()

    assert len(outcomes.results) == 24


async def test_slow_syncs_of_some_keep_no_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk takes long over some files, more than there are threads, the lines of others become durable."""
    outcomes, freed, ended = Outcomes(), threading.Event(), QueuedSyncs.ended

    def ended_but_some(self: QueuedSyncs, *, wait: bool) -> list[tuple[int, OSError | None]]:
        slow = [] if freed.is_set() else [each for each in self.begun if "slow" in each[2]]
        self.begun = [each for each in self.begun if each not in slow]
        fast = ended(self, wait=wait)
        self.begun += slow
        if wait and not fast:
            freed.wait(0.001)
        return fast

    monkeypatch.setattr(QueuedSyncs, "ended", ended_but_some)
    names = [f"r{number}" for number in range(16)] + [f"slow{number}" for number in range(8)]
    again = [f"{name} again" for name in names[:16]]
    async with store_on(QueuedDisk()) as store:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(store.put, entry("c0", rollout_id=name))
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(outcomes.of, name, store.put, entry("c1", rollout_id=name))
            try:
                await until(lambda: set(names[:16]) <= outcomes.results.keys())
                waiting = set(names) - outcomes.results.keys()
                for name in again:
                    put = entry("c2", rollout_id=name.removesuffix(" again"))
                    tasks.start_soon(outcomes.of, name, store.put, put)
                await until(lambda: set(again) <= outcomes.results.keys())
            finally:
                freed.set()

    assert len(waiting) > COMMITTERS
    assert len(outcomes.results) == 40


async def test_a_crash_of_many_is_taken_for_success_by_nobody() -> None:
    """When the machine dies while many syncs are in flight, whoever waits gets an error, and no lock stays held."""
    simulated, outcomes = SimulatedDisk(), Outcomes()
    disk = QueuedDisk(simulated)
    with pytest.raises(BaseExceptionGroup) as caught:  # noqa: PT012 - the host dies where it is left
        async with hosting(disk) as host:
            for call_id in ("c0", "c1"):
                simulated.crash_at = simulated.steps + 40 if call_id == "c1" else None
                async with anyio.create_task_group() as tasks:
                    for number in range(24):
                        put = put_message(entry(call_id, rollout_id=f"r{number}"))
                        tasks.start_soon(outcomes.of, f"r{number} {call_id}", host.ask, f"r{number}", put)

    acked = {name.split()[0] for name in outcomes.results if name.endswith("c1")}
    left = simulated.after_crash(PersistencePolicy.SYNCED).files(ROOT)
    assert caught.group_contains(PowerCut)
    assert 0 < len(outcomes.errors) <= 24
    assert [name for name in acked if b'"c1"' not in left[f"{name}.tokens.jsonl"]] == []


async def test_where_memory_is_out_those_who_wait_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresees fails the puts that are on their way; the store lives on, and no lock is kept."""
    outcomes = Outcomes()

    def no_memory(*_: object, **__: object) -> int:
        raise MemoryError

    async with store_on(QueuedDisk()) as store:
        await with_calls(store, 24)
        with monkeypatch.context() as patch:
            patch.setattr("tests.loops.QueuedSyncs.begin", no_memory)
            async with anyio.create_task_group() as tasks:
                for number in range(24):
                    tasks.start_soon(outcomes.of, f"r{number}", store.put, entry("c1", rollout_id=f"r{number}"))
        for number in range(24):
            await store.put(entry("c1", rollout_id=f"r{number}"))
        found = [await store.freeze(f"r{number}") for number in range(24)]

    assert {type(error) for error in outcomes.errors.values()} == {MemoryError}
    assert [len(snapshot.entries) for snapshot in found] == [2] * 24
    assert not any(snapshot.incomplete for snapshot in found)


async def test_a_failed_sync_of_one_file_fails_only_its_own() -> None:
    """Of many syncs in flight one fails: its put raises and may be repeated, all others are stored."""
    disk, outcomes = QueuedDisk(), Outcomes()
    async with store_on(disk) as store:
        await with_calls(store, 24)
        disk.fault = Fault(call="datasync", name_suffix="r7.tokens.jsonl")
        async with anyio.create_task_group() as tasks:
            for number in range(24):
                tasks.start_soon(outcomes.of, f"r{number}", store.put, entry("c1", rollout_id=f"r{number}"))
        left = [len((await store.peek(f"r{number}")).entries) for number in range(24)]
        await store.put(entry("c1", rollout_id="r7"))
        whole = await store.freeze("r7")

    assert list(outcomes.errors) == ["r7"]
    assert isinstance(outcomes.errors["r7"], DurabilityError)
    assert left == [1 if number == 7 else 2 for number in range(24)]
    assert len(whole.entries) == 2
    assert not whole.incomplete


async def test_without_the_kernel_every_batch_has_a_thread() -> None:
    """Where the system makes no syncs for others, what came together is stored all the same, and the next in lanes."""
    async with store_on(SimulatedDisk()) as store:
        await with_calls(store, 24)
        for round_ in range(1, 4):
            async with anyio.create_task_group() as tasks:
                for number in range(24):
                    tasks.start_soon(store.put, entry(f"c{round_}", rollout_id=f"r{number}"))
        found = [len((await store.freeze(f"r{number}")).entries) for number in range(24)]

    assert found == [4] * 24
