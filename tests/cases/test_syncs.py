"""Cases 10 and 11: a sync that fails is never tried again and called success."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest

from tests.cases.given import DURABLE, TOKENS, assert_same, entry, frozen, own, planted, rec, store_on
from tokenstore import DurabilityError, TokenCaptureStore
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

pytestmark = pytest.mark.anyio

Operation = Callable[[TokenCaptureStore], Awaitable[object]]

WRITING: dict[str, Operation] = {
    "put": lambda store: store.put(entry(2)),
    "begin_call": lambda store: store.begin_call("r", "c2"),
    "refuse_call": lambda store: store.refuse_call("r", model_call_id="c2", code="x"),
    "mark_incomplete": lambda store: store.mark_incomplete("r", "c2"),
    "freeze": lambda store: store.freeze("r"),
}
FILES = {
    "put": ("datasync", ".jsonl"),
    "begin_call": ("datasync", ".intents"),
    "refuse_call": ("sync", ""),
    "mark_incomplete": ("datasync", ".incomplete"),
    "freeze": ("sync", ""),
}
"""The sync that each operation rests on."""
CODES = pytest.mark.parametrize("code", ["EIO", "ENOSPC"])


def facts(disk: SimulatedDisk) -> dict[str, bytes]:
    """What a power cut now would leave beside the lock."""
    files = disk.after_crash(DURABLE).files(TOKENS.parent)
    return {name: data for name, data in files.items() if not name.endswith(".lock")}


@CODES
@pytest.mark.parametrize("operation", WRITING)
async def test_case_10_after_a_failed_sync_the_bytes_are_written_again(operation: str, code: str) -> None:
    """An operation whose sync failed once raises; again it succeeds only with its bytes on the disk."""
    call, suffix = FILES[operation]
    disk = SimulatedDisk()
    failing = FailingDisk(disk)

    async with store_on(failing) as store:
        await store.put(entry(1))
        failing.fault = Fault(call=call, errno=getattr(errno, code), name_suffix=suffix)  # type: ignore[arg-type]
        with pytest.raises(DurabilityError) as caught:
            await WRITING[operation](store)
        await WRITING[operation](store)

    assert failing.fired
    assert caught.value.errno == getattr(errno, code)
    assert facts(disk) == facts(disk.after_kill())
    expected = [entry(1), entry(2)] if operation == "put" else [entry(1)]
    assert_same((await frozen(disk.after_crash(DURABLE))).entries, *expected)


@pytest.mark.parametrize("failing_call", ["truncate", "sync"])
@pytest.mark.parametrize("operation", ["put", "begin_call", "mark_incomplete"])
async def test_case_10_a_file_that_cannot_be_cut_back_is_written_again(operation: str, failing_call: str) -> None:
    """If cutting back fails too, the next try starts anew and rewrites what it finds before it acknowledges it."""
    call, suffix = FILES[operation]
    disk = SimulatedDisk()
    inner = FailingDisk(disk)
    failing = FailingDisk(inner)

    async with store_on(failing) as store:
        await store.put(entry(1))
        inner.fault = Fault(call=failing_call, name_suffix=suffix)  # type: ignore[arg-type]
        failing.fault = Fault(call=call, name_suffix=suffix)  # type: ignore[arg-type]
        with pytest.raises(DurabilityError):
            await WRITING[operation](store)
        await WRITING[operation](store)
        poisoned = store.statistics().poisoned

    assert (inner.fired, failing.fired, poisoned) == (True, True, 1)
    assert facts(disk) == facts(disk.after_kill())


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("operation", [*WRITING, "put again"])
async def test_case_10_lines_of_another_process_are_not_trusted(operation: str, lines: int) -> None:
    """Lines whose sync failed in another process are durable before anything is acknowledged on top of them."""
    disk = SimulatedDisk()
    directory = disk.open_root(TOKENS.parent)
    file = directory.open(TOKENS.name, "create")
    directory.sync()
    file.write(0, b"".join(own(number) + b"\n" for number in range(10, 10 + lines)))
    file.forget_dirty()  # its fdatasync failed, and the kernel calls the pages clean
    file.close()

    async with store_on(disk) as store:
        if operation == "put again":
            await store.put(entry(10))
        else:
            await WRITING[operation](store)

    left = disk.after_crash(DURABLE).files(TOKENS.parent)
    assert left[TOKENS.name].startswith(own(10) + b"\n")
    assert facts(disk) == facts(disk.after_kill())


async def _drop(store: TokenCaptureStore) -> bool:
    snapshot = await store.freeze("r")
    return await store.drop("r", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


REMOVING: dict[str, Operation] = {
    "drop": _drop,
    "retire": lambda store: store.retire(["r"]),
    "delete": lambda store: store.delete(["r"]),
    "retire absent": lambda store: store.retire(["absent"]),
    "delete absent": lambda store: store.delete(["absent"]),
}


@pytest.mark.parametrize("code", ["EINVAL", "EIO"])
@pytest.mark.parametrize("operation", [*WRITING, *REMOVING])
async def test_case_11_a_directory_that_cannot_be_synced_is_a_clear_error(operation: str, code: str) -> None:
    """Nothing is acknowledged while the directory cannot be synced; the error says so; healed, the same call works."""
    run = {**WRITING, **REMOVING}[operation]
    disk = planted(rec(1))
    failing = FailingDisk(disk, Fault(call="directory_sync", errno=getattr(errno, code), repeat=True))

    async with store_on(failing) as store:
        with pytest.raises(DurabilityError, match="directory") as caught:
            await run(store)
        failing.fault = None
        await run(store)

    assert caught.value.errno == getattr(errno, code)
    assert facts(disk) == facts(disk.after_kill())
