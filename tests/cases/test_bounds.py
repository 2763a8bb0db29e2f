"""Cases 19 to 22: schemas, depth, size and lengths."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.given import (
    STATE,
    TOKENS,
    assert_same,
    calls,
    entry,
    fields,
    frozen,
    own,
    planted,
    rec,
    refused,
    store_on,
    vouched,
)
from tokenstore import CorruptRolloutError, InvalidEntryError, TokenEntry
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("version", [2, 99])
async def test_case_19_a_newer_schema_is_refused_at_put(version: int) -> None:
    """An entry of a newer schema is refused, with the number that is known."""
    error = await refused({"schema_version": version})

    assert str(version) in str(error)


@pytest.mark.parametrize("make", [rec, own], ids=["reference", "ours"])
@pytest.mark.parametrize("where", [0, 1])
async def test_case_19_a_newer_schema_on_disk_is_not_touched(make: Any, where: int) -> None:
    """A line of a newer library is a readable error for every operation, and no byte is changed; removal works."""
    lines = [make(1), make(3)]
    lines.insert(where, make(2, schema_version=99))
    disk = planted(*lines, tail=b'{"half')
    before = disk.files(TOKENS.parent)

    async with store_on(disk) as store:
        for operation in (
            lambda: store.put(entry(4)),
            lambda: store.begin_call("r", "c9"),
            lambda: store.freeze("r"),
            lambda: store.peek("r"),
            lambda: store.mark_incomplete("r", "c9"),
        ):
            with pytest.raises(CorruptRolloutError, match="schema_version 99"):
                await operation()
        after = {name: data for name, data in disk.files(TOKENS.parent).items() if not name.endswith(".lock")}
        await store.put(TokenEntry(**{**fields(1), "rollout_id": "other"}))
        removed = await store.retire(["r"])

    assert after == before
    assert removed == {"removed": ["r"], "absent": []}


@pytest.mark.parametrize("make", [rec, own], ids=["reference", "ours"])
async def test_case_19_unknown_keys_are_kept(make: Any) -> None:
    """Keys of the same schema version that this library does not know come back, and go out again as they were."""
    unknown = {"weight_version": 7, "deep": {"a": [1, None, {"é": "\U0001f600"}]}, "crc": 1, "zz": 0.5}
    disk = planted(make(1, **unknown))

    async with store_on(disk) as store:
        await store.put(TokenEntry(**fields(1), extra=unknown))
        await store.put(TokenEntry(**fields(2), extra=unknown))
        snapshot = await store.freeze("r")

    assert [each.extra for each in snapshot.entries] == [unknown, unknown]
    assert not snapshot.incomplete
    assert snapshot.version == 3


def nested(levels: int, *, objects: bool = False) -> Any:
    """A value of so many lists or objects, one in the other."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize("levels", [513, 5000, pytest.param(100_000, marks=pytest.mark.kernel)])
@pytest.mark.parametrize("objects", [False, True], ids=["lists", "objects"])
@pytest.mark.parametrize("field", ["output_items", "routed_experts", "extra"])
async def test_case_20_deep_nesting_is_refused(levels: int, objects: bool, field: str) -> None:
    """A value nested too deep is refused, and the rollout works on."""
    value = nested(levels, objects=objects)
    given = {"output_items": [{"x": value}], "routed_experts": value, "extra": {"x": value}}[field]

    error = await refused({field: given})

    assert "nested deeper than 512" in str(error)


@pytest.mark.parametrize("levels", [500, 511, 512])
async def test_case_20_nesting_up_to_the_limit_is_kept(levels: int) -> None:
    """A value nested as deep as is allowed comes back, also when the process is another one."""
    given = entry(1, routed_experts=nested(levels), output_items=[{"x": nested(levels - 1, objects=True)}])
    disk = SimulatedDisk()

    async with store_on(disk) as store:
        await store.put(given)

    assert_same((await frozen(disk)).entries, given)


async def test_case_21_an_entry_above_the_limit_is_a_clear_error() -> None:
    """A line longer than `max_entry_bytes` is refused with both numbers, and others go on."""
    disk = SimulatedDisk()
    big = entry(2, output_items=[{"image": "A" * 5000}])

    async with store_on(disk, max_entry_bytes=4000) as store:
        await store.put(entry(1))
        with pytest.raises(InvalidEntryError, match=r"takes 5\d\d\d bytes .* max_entry_bytes allows 4000"):
            await store.put(big)
        await store.put(entry(3))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1), entry(3))


@pytest.mark.parametrize(("ids", "log_probs"), [(1000, 999), (999, 1000), (0, 1), (1, 0)])
async def test_case_22_lengths_that_differ_are_refused_with_both_numbers(ids: int, log_probs: int) -> None:
    """An entry needs one log probability for each generated id; the error says how many there are of both."""
    error = await refused({"generation_token_ids": [1] * ids, "generation_log_probs": [-0.5] * log_probs})

    assert f"has {log_probs} values for {ids} generation_token_ids" in str(error)
    assert "'c2'" in str(error)


@pytest.mark.parametrize("make", [rec, lambda number, **other: vouched(rec(number, **other))])
async def test_case_22_lengths_that_differ_on_disk_are_left_out(make: Any) -> None:
    """A stored line whose lengths differ is never delivered: it masks, and its bytes stay."""
    bad = make(2, generation_log_probs=[-0.5])
    disk = planted(rec(1), bad, rec(3))

    snapshot = await frozen(disk)

    assert calls(snapshot) == ["c1", "c3"]
    assert snapshot.incomplete_reasons == (f"unacceptable:{len(rec(1)) + 1}",)
    assert bad in disk.read_file(TOKENS)
    assert STATE.name in disk.files(TOKENS.parent)
