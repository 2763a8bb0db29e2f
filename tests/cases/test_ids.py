"""Cases 23 to 27: call ids, intents, and what comes late."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cases.given import (
    INTENTS,
    MARKER,
    STATE,
    TOKENS,
    assert_same,
    calls,
    entry,
    fields,
    frozen,
    planted,
    rec,
    store_on,
)
from tokenstore import (
    DurabilityError,
    InvalidEntryError,
    TokenCaptureRetiredError,
    TokenCaptureStore,
    TokenEntry,
)
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

pytestmark = pytest.mark.anyio

BAD_CALL_IDS = [
    "a\nb",
    "a\rb",
    "a\x00b",
    "a\x85b",
    "\x7f",
    " x ",
    "x ",
    "\tx",
    "x\u2003",
    "\u3000",
    "",
    " ",
    "x" * 513,
    "x" * 10_000,
    "a\ud800",
    7,
    None,
    b"c1",
]
GOOD_CALL_IDS = ["-c1", "--help", "../c1", "/etc/passwd", "é", "\U0001f600" * 512, "a b", '"', "\\", "x" * 512, "null"]


def named(value: object) -> str:
    """A short name for a parameter."""
    return ascii(value)[:24]


@pytest.mark.parametrize("call_id", BAD_CALL_IDS, ids=named)
async def test_case_23_a_call_id_that_is_no_line_is_refused(call_id: Any) -> None:
    """What cannot be one line of a file is refused at begin_call, refuse_call and put, and nothing is written."""
    disk = SimulatedDisk()

    async with store_on(disk) as store:
        with pytest.raises(InvalidEntryError, match="model_call_id"):
            await store.begin_call("r", call_id)
        with pytest.raises(InvalidEntryError, match="model_call_id"):
            await store.refuse_call("r", model_call_id=call_id, code=None)
        with pytest.raises(InvalidEntryError, match="model_call_id"):
            await store.put(TokenEntry(**{**fields(1), "model_call_id": call_id}))

    assert disk.files(TOKENS.parent) == {}


@pytest.mark.parametrize("call_id", BAD_CALL_IDS, ids=named)
async def test_case_23_a_mark_is_never_refused_because_of_its_call_id(call_id: Any) -> None:
    """A mark with an invalid call id is recorded as blank, once."""
    disk = SimulatedDisk()

    async with store_on(disk) as store:
        await store.mark_incomplete("r", call_id)
        await store.mark_incomplete("r", call_id)
        snapshot = await store.freeze("r")

    assert (snapshot.incomplete_reasons, snapshot.version) == (("marked:",), 2)
    assert disk.read_file(MARKER) == b"\n"


@pytest.mark.parametrize("call_id", GOOD_CALL_IDS, ids=named)
async def test_case_23_unusual_call_ids_work(call_id: str) -> None:
    """A call id of any characters that can be a line names its call through begin, put, mark and restart."""
    disk = SimulatedDisk()

    async with store_on(disk) as store:
        await store.begin_call("r", call_id)
        await store.put(TokenEntry(**{**fields(1), "model_call_id": call_id}))
        await store.begin_call("s", call_id)
        await store.mark_incomplete("t", call_id)
    answered, lost, marked = [await frozen(disk, rollout_id) for rollout_id in "rst"]

    assert calls(answered) == [call_id]
    assert not answered.incomplete
    assert lost.incomplete_reasons == (f"lost_call:{call_id}",)
    assert marked.incomplete_reasons == (f"marked:{call_id}",)


@pytest.mark.parametrize("file", [INTENTS, MARKER], ids=["intents", "marker"])
@pytest.mark.parametrize(
    "tail",
    [b"c\xc3", b"\xf0\x9f\x98", b"\xff\xfe", b"c3", bytes(40), b"x" * 5000, "é".encode() * 2_000_000],
    ids=lambda tail: f"{len(tail)}-{tail[:4].hex()}",
)
async def test_case_24_a_torn_tail_of_ids_is_no_line(file: Path, tail: bytes) -> None:
    """A tail without its newline was never acknowledged: freeze answers without it, and writing goes on behind it."""
    disk = planted(rec(1))
    disk.write_file(file, b"c1\n" + tail)

    async with store_on(disk) as store:
        await store.peek("r")
        await store.begin_call("r", "c2")
        await store.mark_incomplete("r", "c9")
        snapshot = await store.freeze("r")

    marked = ("marked:c1",) if file == MARKER else ()
    assert snapshot.incomplete_reasons == (*marked, "marked:c9", "lost_call:c2")
    assert disk.read_file(file) == (b"c1\nc9\n" if file == MARKER else b"c1\nc2\n")


@pytest.mark.parametrize(
    "line",
    [b"\xff\xfe", b"\xc3", b"a\x00b", b" x ", b"", b"x" * 600, b"x" * 3_000_000, b"\xed\xa0\x80", b"a\rb"],
    ids=lambda line: f"{len(line)}-{line[:4].hex()}",
)
async def test_case_24_a_line_that_is_no_call_id_is_a_lost_call(line: bytes) -> None:
    """A whole line of the intents that names no call stays and is a lost call; in the marker it is a mark."""
    disk = planted(rec(1))
    disk.write_file(INTENTS, b"c1\n" + line + b"\n")
    other = planted(rec(1))
    other.write_file(MARKER, line + b"\n")

    snapshot = await frozen(disk)
    marked = await frozen(other)

    assert len(snapshot.incomplete_reasons) == 1
    assert snapshot.incomplete_reasons[0].startswith("lost_call:")
    assert snapshot.incomplete_reasons[0].isprintable()
    assert len(snapshot.incomplete_reasons[0]) < 700
    assert marked.incomplete_reasons == ("marked:",)
    assert disk.read_file(INTENTS) == b"c1\n" + line + b"\n"


async def _dropped(store: TokenCaptureStore) -> None:
    snapshot = await store.freeze("r")
    assert await store.drop("r", snapshot_id=snapshot.snapshot_id, version=snapshot.version)


ENDINGS: dict[str, Callable[[TokenCaptureStore], Awaitable[object]]] = {
    "retire": lambda store: store.retire(["r"]),
    "drop": _dropped,
}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_case_25_a_late_put_finds_the_rollout_retired(ending: str, restarted: bool) -> None:
    """After retire or drop every late write says so and stores nothing, from the same store and from another one."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        await store.put(entry(1))
        await ENDINGS[ending](store)
        if not restarted:
            await _all_late(store)
    async with store_on(disk) as store:
        await _all_late(store)

    assert [name for name in disk.files(TOKENS.parent) if not name.endswith(".lock")] == [STATE.name]


async def _all_late(store: TokenCaptureStore) -> None:
    for late in (
        lambda: store.put(entry(1)),
        lambda: store.put(entry(2)),
        lambda: store.begin_call("r", "c3"),
        lambda: store.refuse_call("r", model_call_id="c3", code=None),
        lambda: store.mark_incomplete("r", "c3"),
        lambda: store.freeze("r"),
        lambda: store.peek("r"),
    ):
        with pytest.raises(TokenCaptureRetiredError, match="retired"):
            await late()


async def test_case_25_a_late_put_after_delete_and_reuse_meets_a_new_rollout() -> None:
    """After delete the id starts empty: what was there does not come back, and a late put counts as the new one's."""
    disk = SimulatedDisk()
    async with store_on(disk) as old, store_on(disk) as other:
        await old.put(entry(1))
        await old.put(entry(2))
        await other.delete(["r"])
        await other.put(entry(3))
        await old.put(entry(2))
        snapshot = await other.freeze("r")

    assert_same(snapshot.entries, entry(3), entry(2))
    assert (snapshot.version, snapshot.incomplete) == (3, False)


async def test_case_26_a_mark_after_freeze_stops_the_drop() -> None:
    """Marked after freeze, a rollout is not dropped with its old version; the next freeze shows the mark."""
    disk = SimulatedDisk()
    async with store_on(disk) as store, store_on(disk) as server:
        await store.put(entry(1))
        first = await store.freeze("r")
        await server.mark_incomplete("r", "c2")
        await server.mark_incomplete("r", "c2")
        dropped = await store.drop("r", snapshot_id=first.snapshot_id, version=first.version)
        second = await store.freeze("r")
        dropped_now = await store.drop("r", snapshot_id=second.snapshot_id, version=second.version)

    assert (dropped, dropped_now) == (False, True)
    assert (second.snapshot_id, second.version) == (first.snapshot_id, first.version + 1)
    assert (first.incomplete, second.incomplete_reasons) == (False, ("marked:c2",))
    assert_same(second.entries, entry(1))


async def test_case_27_what_is_stored_is_what_was_put() -> None:
    """A caller who changes its lists after its put was cancelled changes nothing that is stored."""
    prompt, generation, log_probs = [1, 2, 3], [4, 5], [-0.5, -0.25]
    disk = SimulatedDisk()
    wanted = entry(1, prompt_token_ids=[1, 2, 3], generation_token_ids=[4, 5], generation_log_probs=[-0.5, -0.25])

    async with store_on(disk) as store:
        given = entry(1, prompt_token_ids=prompt, generation_token_ids=generation, generation_log_probs=log_probs)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.put(given)
        prompt[0], generation[0], log_probs[0] = 99, 99, -9.0
        prompt.append(99)
        await store.put(given)
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, wanted)


@pytest.mark.parametrize("code", ["EROFS", "EACCES", "ENOSPC"])
async def test_case_27_a_mark_that_cannot_be_written_reaches_the_caller(code: str) -> None:
    """If the marker cannot be made, the caller learns it, and the call's intent keeps the rollout incomplete."""
    disk = SimulatedDisk()
    failing = FailingDisk(disk)

    async with store_on(failing) as store:
        await store.begin_call("r", "c1")
        failing.fault = Fault(call="open", errno=getattr(errno, code), name_suffix=MARKER.name, repeat=True)
        with pytest.raises(DurabilityError) as caught:
            await store.mark_incomplete("r", "c1")
        snapshot = await store.freeze("r")

    assert caught.value.errno == getattr(errno, code)
    assert snapshot.incomplete_reasons == ("lost_call:c1",)
