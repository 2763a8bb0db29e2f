"""Cases 1 to 9: what a crash, a full disk or a stranger has left at the end of a file, and in the state file."""

from __future__ import annotations

import errno
import json
import logging
import random

import pytest

from tests.cases.given import (
    DURABLE,
    INTENTS,
    STATE,
    TOKENS,
    as_json,
    assert_same,
    calls,
    entry,
    frozen,
    own,
    planted,
    rec,
    store_on,
)
from tokenstore import DurabilityError
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

pytestmark = pytest.mark.anyio

LINES = pytest.mark.parametrize("line", [rec, own], ids=["reference", "ours"])


@LINES
@pytest.mark.parametrize("before", [0, 1, 40])
async def test_case_01_a_whole_last_line_gets_its_newline(line: type[bytes], before: int) -> None:
    """A whole line that lacks only its newline is kept, and the next one is a line of its own."""
    disk = planted(*(line(number) for number in range(10, 10 + before)), tail=line(1))

    async with store_on(disk) as store:
        await store.put(entry(2))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries[-2:], entry(1), entry(2))
    assert not snapshot.incomplete
    assert snapshot.version == before + 3
    assert disk.read_file(TOKENS).count(b"\n") == before + 2


@pytest.mark.parametrize("intent", [False, True])
@pytest.mark.parametrize("tail", [b'{"model_call_id":"c2","prom', *(rec(2)[:end] for end in (1, 2, 50, -1))])
async def test_case_02_and_03_a_fragment_is_cut_off(tail: bytes, intent: bool) -> None:
    """Half a line was never acknowledged: it goes, and its call is lost if there was an intent, also with no state."""
    disk = planted(rec(1), tail=tail)
    if intent:
        disk.write_file(INTENTS, b"c1\nc2\nc3\n")

    async with store_on(disk) as store:
        await store.put(entry(3))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1), entry(3))
    assert snapshot.incomplete_reasons == (("lost_call:c2",) if intent else ())
    assert disk.read_file(TOKENS).startswith(rec(1) + b"\n{")


async def test_case_03_a_fragment_alone_is_an_empty_rollout() -> None:
    """A file that holds half a line and nothing else makes an empty, complete rollout."""
    disk = planted(tail=b'{"model_call_id":"c2","prom')

    snapshot = await frozen(disk)

    assert snapshot.entries == ()
    assert not snapshot.incomplete
    assert disk.read_file(TOKENS) == b""


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EFBIG", "EIO"])
@pytest.mark.parametrize("written", [0, 1, 100, len(own(2)) - 1, len(own(2))])
async def test_case_04_a_write_that_stops_half_way_leaves_nothing(code: str, written: int) -> None:
    """A put that the disk cut short raises, the file has its old length, and the same put works when space is back."""
    number = getattr(errno, code)
    disk = SimulatedDisk()
    short = FailingDisk(disk, Fault(call="write", at=2, short=written) if written else None)
    full = FailingDisk(short, Fault(call="write", at=3 if written else 2, errno=number, repeat=True))

    async with store_on(full) as store:
        await store.put(entry(1))
        before = disk.read_file(TOKENS)
        with pytest.raises(DurabilityError) as caught:
            await store.put(entry(2))
        after = disk.read_file(TOKENS)
        full.fault = None
        await store.put(entry(2))
        await store.put(entry(3))

    assert caught.value.errno == number
    assert after == before
    snapshot = await frozen(disk.after_crash(DURABLE))
    assert_same(snapshot.entries, entry(1), entry(2), entry(3))
    assert not snapshot.incomplete


@pytest.mark.parametrize("zeros", [1, 511, 4096, 3 * 1024 * 1024])
async def test_case_05_nuls_at_the_end_are_trimmed(zeros: int, caplog: pytest.LogCaptureFixture) -> None:
    """NULs behind a good line were never acknowledged: they are cut off and logged, and mask nothing."""
    disk = planted(rec(1), tail=bytes(zeros))

    with caplog.at_level(logging.WARNING, logger="tokenstore"):
        snapshot = await frozen(disk)

    assert_same(snapshot.entries, entry(1))
    assert not snapshot.incomplete
    assert disk.read_file(TOKENS) == rec(1) + b"\n"
    assert [record.getMessage() for record in caplog.records] == [
        f"r.tokens.jsonl: {zeros} unterminated bytes at its end were cut off"
    ]


@pytest.mark.parametrize(
    "state",
    [
        b"",
        bytes(64),
        random.Random(6).randbytes(200),  # noqa: S311 - replayable, not secret
        b"{",
        b'{"frozen":true',
        b"[]",
        b"null",
        b"7",
        b'"open"',
        b'{"version":1}' + bytes(3),
        b"\xff\xfe{}",
        b"NaN",
        b"[" * 100_000,
    ],
    ids=lambda state: state[:12].hex() or "empty",
)
async def test_case_06_a_state_that_is_no_object_is_rebuilt_and_masks(state: bytes) -> None:
    """With a state file that cannot be understood all entries are there, the rollout works on, and it is masked."""
    disk = planted(rec(1), own(2), state=state)

    async with store_on(disk) as store:
        peeked = await store.peek("r")
        await store.put(entry(3))
        snapshot = await store.freeze("r")
        again = await store.freeze("r")

    assert peeked.incomplete_reasons == ("state_lost",)
    assert_same(snapshot.entries, entry(1), entry(2), entry(3))
    assert snapshot.incomplete_reasons == ("state_lost",)
    assert (again.snapshot_id, again.version) == (snapshot.snapshot_id, snapshot.version)
    assert isinstance(json.loads(disk.read_file(STATE)), dict)


@pytest.mark.parametrize(
    "member",
    [
        {"frozen": 1},
        {"retired": "no"},
        {"incomplete": None},
        {"snapshot_id": 7},
        {"version": "3"},
        {"version": -1},
        {"version": True},
        {"version": 10**4000},
        {"indexed_size": -5},
        {"indexed_size": 1.0, "entry_digests": {}},
        {"indexed_size": 0, "entry_digests": []},
        {"indexed_size": 0, "entry_digests": {"c1": 7}},
        {"refusals": {}},
        {"refusals": [7]},
        {"refusals": [{}]},
        {"refusals": [{"model_call_id": "c9", "code": 7, "created_at": 0.0}]},
        {"refusals": [{"model_call_id": "c9", "code": None, "created_at": "now"}]},
        {"tokenstore": []},
        {"tokenstore": {"marked": "c1"}},
        {"tokenstore": {"damage": [7]}},
        {"tokenstore": {"verdict": {}}},
        {"unknown": "\ud800"},
        {"\udfff": 1},
    ],
    ids=lambda member: ascii(member)[:40],
)
async def test_case_06_a_state_with_a_wrong_member_masks(member: dict[str, object]) -> None:
    """A known member of the wrong kind, or what cannot be written again, is left out and masks the rollout."""
    disk = planted(rec(1), state=json.dumps(member).encode())

    async with store_on(disk) as store:
        await store.put(entry(2))
        await store.mark_incomplete("r", "c5")
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1), entry(2))
    assert snapshot.incomplete_reasons == ("marked:c5", "state_lost")
    assert snapshot.version == 3  # a state without an index covers the first line


async def test_case_06_a_wrong_member_takes_no_right_one_along() -> None:
    """A frozen rollout whose state has one member that cannot be read stays frozen and marked, and is masked."""
    state = {"frozen": True, "snapshot_id": "s", "version": 2, "incomplete": True, "extra": "\ud800"}
    state |= {"indexed_size": len(rec(1)) + 1, "entry_digests": {}, "tokenstore": {"marked": ["c7"]}}
    disk = planted(rec(1), state=json.dumps(state).encode())

    snapshot = await frozen(disk)

    assert (snapshot.frozen, snapshot.snapshot_id) == (True, "s")
    assert snapshot.incomplete_reasons == ("marked:c7", "state_lost")


async def test_case_06_no_state_file_is_normal() -> None:
    """Without a state file, and with every intent answered, a rollout is open and complete."""
    disk = planted(rec(1), own(2))
    disk.write_file(INTENTS, b"c1\nc2\n")

    async with store_on(disk) as store:
        peeked = await store.peek("r")
        snapshot = await store.freeze("r")

    assert (peeked.frozen, peeked.version, peeked.open_calls) == (False, 2, ())
    assert not snapshot.incomplete


@pytest.mark.parametrize("operation", ["put", "begin_call", "refuse_call", "mark_incomplete", "freeze"])
async def test_case_07_the_directory_is_synced_before_the_first_ack(operation: str) -> None:
    """The first operation of a rollout returns only when the name of the file that it made is durable."""
    disk = SimulatedDisk()
    trace: list[str] = []
    arguments = {
        "put": ((entry(1),), {}),
        "begin_call": (("r", "c1"), {}),
        "refuse_call": (("r",), {"model_call_id": "c1", "code": "x"}),
        "mark_incomplete": (("r", "c1"), {}),
        "freeze": (("r",), {}),
    }[operation]

    async with store_on(disk) as store:
        disk.before_step = trace.append
        await getattr(store, operation)(*arguments[0], **arguments[1])
        names = set(disk.files(TOKENS.parent))
        left = set(disk.after_crash(DURABLE).files(TOKENS.parent))

    assert trace[-1].startswith("directory_sync")
    assert names - left <= {"r.tokens.lock"}
    assert left


@pytest.mark.parametrize("count", [1, 3])
async def test_case_08_one_byte_less_than_the_index_is_a_newline(count: int) -> None:
    """A file one byte shorter than its index lacks a newline: it comes back, and the rollout is complete."""
    disk = await _indexed(count)
    disk.write_file(TOKENS, disk.read_file(TOKENS)[:-1])

    async with store_on(disk) as store:
        peeked = await store.peek("r")
        snapshot = await store.freeze("r")

    assert calls(peeked) == calls(snapshot) == [f"c{number}" for number in range(count)]
    assert snapshot.incomplete_reasons == ("marked:c99",)
    assert disk.read_file(TOKENS).endswith(b"\n")


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("sealed", [False, True])
async def test_case_08_less_than_the_index_is_masked(kept: float, sealed: bool) -> None:
    """A file shorter than its index has lost acknowledged data: what is left is given, masked, and work goes on."""
    disk = await _indexed(4)
    if sealed:
        await frozen(disk)
    content = disk.read_file(TOKENS)
    disk.write_file(TOKENS, content[: int(len(content) * kept)])

    async with store_on(disk) as store:
        if not sealed:
            await store.put(entry(50))
        snapshot = await store.freeze("r")

    assert snapshot.incomplete
    whole = [f"c{number}" for number in range(content[: int(len(content) * kept)].count(b"\n"))]
    assert calls(snapshot) == whole + ([] if sealed else ["c50"])
    assert any(reason.startswith(("damaged:", "lost_call:")) for reason in snapshot.incomplete_reasons)


async def _indexed(count: int) -> SimulatedDisk:
    """A rollout whose state covers all of its lines: a mark has it written."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        for number in range(count):
            await store.put(entry(number))
        await store.mark_incomplete("r", "c99")
    return disk


@pytest.mark.parametrize(
    "garbage",
    [b"garbage", b"", b"{", b"\xff\xfe", rec(2)[:-5], rec(2).replace(b":", b";"), own(2).replace(b"answer", b"Answer")],
    ids=["text", "blank", "brace", "binary", "cut", "semicolons", "flipped"],
)
async def test_case_09_a_garbage_line_is_masked_and_named(garbage: bytes) -> None:
    """A damaged line between two good ones is left out and named by its place; the good ones and its bytes stay."""
    disk = planted(rec(1), garbage, rec(3))
    reason = f"damaged:{len(rec(1)) + 1}+{len(garbage) + 1}"

    async with store_on(disk) as store:
        await store.put(entry(4))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1), entry(3), entry(4))
    assert snapshot.incomplete_reasons == (reason,)
    assert snapshot.version == 5
    assert disk.read_file(TOKENS).startswith(rec(1) + b"\n" + garbage + b"\n" + rec(3) + b"\n")


async def test_case_09_recovery_counts_a_damaged_line_once() -> None:
    """Many openings of a rollout with a damaged line come to one version and change nothing after the first."""
    disk = planted(rec(1), b"garbage", rec(3))
    async with store_on(disk) as store:
        await store.put(entry(3))
    first = disk.files(TOKENS.parent)

    for _ in range(3):
        async with store_on(disk) as store:
            await store.put(entry(3))
            peeked = await store.peek("r")

    assert disk.files(TOKENS.parent) == first
    assert peeked.version == 3
    assert as_json(json.loads(first["r.tokens.state.json"])) + b"\n" == first["r.tokens.state.json"]
