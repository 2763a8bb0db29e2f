"""Hostile bytes can slow a read; they cannot crash it, fill the memory, lock a rollout, or be delivered as good."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from tests.cases.given import (
    ROOT,
    TOKENS,
    as_json,
    assert_same,
    calls,
    entry,
    fields,
    frozen,
    own,
    planted,
    rec,
    store_on,
    vouched,
)
from tokenstore import CorruptRolloutError, TokenCaptureStore, TokenEntry, TokenStoreError
from tokenstore.testing import SimulatedDisk

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024


class Raw(str):
    """JSON text that goes into a line as it stands."""

    __slots__ = ()


WEIRD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**40,
    10**400,
    10**4000,
    "",
    "x",
    "\ud800",
    "a\nb",
    [],
    [1],
    ["a"],
    [[]],
    [True],
    [-1],
    [2**32],
    [0.5],
    [{"x": "\ud800"}],
    {},
    {"model_call_id": [1], "length": 1, "crc32": 1},
    {"model_call_id": "c1", "length": True, "crc32": 0},
    {"model_call_id": "c2", "length": 5, "crc32": 0},
    {"model_call_id": {"a": 1}},
    *map(
        Raw,
        [
            "-",
            "[1,",
            "[",
            "[]]",
            "NaN",
            "[NaN]",
            '[{"x":NaN}]',
            "1e999",
            "[1e999]",
            '[{"a":1,"a":2}]',
            "[" * 600 + "]" * 600,
            "[" * 2000,
            "{" * 2000,
            "1" * 50_000,
            "0." + "1" * 50_000,
            "[-" + "1" * 50_000 + "]",
        ],
    ),
]
"""Values that some member of a line cannot have."""
MEMBERS = [*fields(1), "prompt_base", "prompt_rest", "crc32", "extra"]


def line_with(member: str, value: Any, rollout_id: str) -> bytes:
    """A line of call c2 with one member replaced or added."""
    members = {**fields(2, rollout_id=rollout_id), member: value}
    if member in ("prompt_base", "prompt_rest"):
        del members["prompt_token_ids"]
        members.setdefault("prompt_rest", [1])
    texts = [
        f"{json.dumps(key)}:{item if isinstance(item, Raw) else json.dumps(item)}" for key, item in members.items()
    ]
    return ("{" + ",".join(texts) + "}").encode()


def _check_member(member: str, values: list[Any], seal: Callable[[bytes], bytes]) -> None:
    disk = SimulatedDisk()
    strange = {f"w{number}": value for number, value in enumerate(values)}
    for rollout_id, value in strange.items():
        lines = [rec(1, rollout_id=rollout_id), line_with(member, value, rollout_id), rec(3, rollout_id=rollout_id)]
        disk.write_file(ROOT / f"{rollout_id}.tokens.jsonl", b"".join(seal(line) + b"\n" for line in lines))

    store = store_on(disk)
    for rollout_id in strange:
        _use(store, rollout_id)
    removed = store.delete_now(list(strange))
    anyio.run(store.close)

    assert removed["removed"] == list(strange)
    assert disk.files(ROOT) == {}


SEALS = pytest.mark.parametrize("seal", [lambda line: line, vouched], ids=["foreign", "vouched"])


@SEALS
@pytest.mark.parametrize("member", MEMBERS)
def test_a_wrong_member_never_locks_a_rollout(member: str, seal: Callable[[bytes], bytes]) -> None:
    """With a wrong value in a member, checksummed or not, the rollout is read, written, frozen and removed."""
    _check_member(member, WEIRD[MEMBERS.index(member) % 4 :: 4], seal)


@SEALS
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("created_at", 10**400),
        ("prompt_base", {"model_call_id": [1], "length": 1, "crc32": 1}),
        ("prompt_token_ids", Raw("[1,")),
        ("routed_experts", Raw("NaN")),
        ("output_items", [{"x": "\ud800"}]),
    ],
    ids=["date", "base", "open", "NaN", "surrogate"],
)
def test_what_once_locked_a_rollout_does_not(member: str, value: Any, seal: Callable[[bytes], bytes]) -> None:
    """Values that were found to raise for ever, or to be delivered although no entry may hold them."""
    _check_member(member, [value], seal)


@pytest.mark.kernel
@SEALS
@pytest.mark.parametrize("member", MEMBERS)
def test_no_wrong_member_locks_a_rollout(member: str, seal: Callable[[bytes], bytes]) -> None:
    """The same with every wrong value in every member."""
    _check_member(member, WEIRD, seal)


def _use(store: TokenCaptureStore, rollout_id: str) -> None:
    """Do everything with a rollout; only errors of the store may come, and only about the strange line's own call."""
    given = {**fields(4), "rollout_id": rollout_id}
    try:
        store.append(TokenEntry(**given))
    except CorruptRolloutError as error:
        assert "schema_version" in str(error)  # noqa: PT017 - the one thing that must not be touched
        return
    try:
        store.append(TokenEntry(**{**given, "model_call_id": "c2"}))
    except TokenStoreError as error:
        assert "c2" in str(error)  # noqa: PT017 - the strange line counts as this call's
    snapshot = store.freeze_now(rollout_id)
    again = store.freeze_now(rollout_id)
    assert {"c1", "c4"} <= set(calls(snapshot))
    assert (again.version, again.incomplete_reasons) == (snapshot.version, snapshot.incomplete_reasons)
    for each in snapshot.entries:
        store.append(each)  # what is delivered is an entry like any other: put again, it is the same


def child_of(
    base: str, ids: list[int], *, length: int | None = None, number: int = 2, crc32: int | None = None
) -> bytes:
    """A checksummed line that names a base."""
    packed = array("I", ids).tobytes()
    members = fields(number)
    del members["prompt_token_ids"]
    members["prompt_rest"] = [9]
    members["prompt_base"] = {
        "model_call_id": base,
        "length": len(ids) if length is None else length,
        "crc32": zlib.crc32(packed) if crc32 is None else crc32,
    }
    return vouched(as_json(members))


BASE_IDS = [*fields(1)["prompt_token_ids"], *fields(1)["generation_token_ids"]]


@pytest.mark.parametrize(
    "lines",
    [
        [child_of("c2", BASE_IDS)],
        [own(1), child_of("c2", BASE_IDS)],
        [child_of("c3", BASE_IDS), child_of("c2", BASE_IDS, number=3)],
        [child_of("c1", BASE_IDS), own(1)],
        [own(1), child_of("c1", BASE_IDS, crc32=1)],
        [own(1), child_of("c1", BASE_IDS, length=4)],
        [own(1), child_of("c1", BASE_IDS, length=0)],
        [own(1), child_of("c1", BASE_IDS, length=-5)],
        [own(1), child_of("c1", BASE_IDS, length=10**18)],
        [own(1), child_of("absent", BASE_IDS)],
        [own(1).replace(b"answer", b"Answer"), child_of("c1", BASE_IDS)],
    ],
    ids=[
        "itself alone",
        "itself",
        "each other",
        "later",
        "crc",
        "shorter",
        "empty",
        "negative",
        "huge",
        "absent",
        "damaged",
    ],
)
async def test_a_base_that_is_not_there_leaves_the_child_out(lines: list[bytes]) -> None:
    """A prompt whose base is itself, later, another's or altered is never built: masked, and the bytes stay."""
    disk = planted(*lines)
    before = disk.read_file(TOKENS)

    async with store_on(disk) as store:
        await store.put(entry(7))
        snapshot = await store.freeze("r")

    assert set(calls(snapshot)) <= {"c1", "c7"}
    assert "lost_base:c2" in snapshot.incomplete_reasons
    assert disk.read_file(TOKENS).startswith(before)


async def test_a_right_base_is_followed() -> None:
    """The same lines with the right base and checksum give the whole prompt: the tests above fail for their reason."""
    snapshot = await frozen(planted(own(1), child_of("c1", BASE_IDS)))

    assert snapshot.entries[1].prompt_token_ids == [*BASE_IDS, 9]
    assert not snapshot.incomplete


async def test_thousands_of_bases_one_on_the_other_are_no_recursion() -> None:
    """A chain of prompts, longer than the interpreter's stack is deep, is read to its end."""
    ids, lines = list(BASE_IDS), [own(1)]
    for number in range(2, 1200):
        lines.append(child_of(f"c{number - 1}", ids, number=number))
        ids = [*ids, 9, *fields(number)["generation_token_ids"]]

    async with store_on(planted(*lines)) as store:
        last = [each async for each in store.entries("r")][-1]

    assert [*last.prompt_token_ids, *last.generation_token_ids] == ids


@SEALS
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
async def test_a_key_twice_has_one_meaning(large: bool, seal: Callable[[bytes], bytes]) -> None:
    """Of a member that stands twice the last one counts, for every reader, and the entry put again is the same."""
    text = "A" * (600_000 if large else 10)
    line = seal(rec(1, output_items=[{"text": text}])[:-1] + b',"generation_token_ids":[8,9]}')

    async with store_on(planted(line)) as store:
        one = [each async for each in store.entries("r")]
        snapshot = await store.freeze("r")
        await store.put(entry(1, output_items=[{"text": text}], generation_token_ids=[8, 9]))

    assert_same(snapshot.entries, *one)
    assert one[0].generation_token_ids == [8, 9]


@pytest.mark.parametrize("where", ["before", "between", "behind"])
@pytest.mark.parametrize(
    "bad",
    [b"x" * 3_000_000, b"\0" * 1_200_000 + b"\n" + b"y" * 1_200_000, b"", b"z"],
    ids=["long", "two", "blank", "short"],
)
async def test_entries_pass_over_damage_wherever_it_is(bad: bytes, where: str) -> None:
    """Read one by one, a rollout with damage anywhere gives its good entries and ends, wherever a slice ends."""
    big = [own(number, output_items=[{"text": "A" * 600_000}]) for number in (1, 2, 3)]
    lines = {"before": [bad, *big], "between": [big[0], big[1], bad, big[2]], "behind": [*big, bad]}[where]

    async with store_on(planted(*lines), max_entry_bytes=MIB) as store:
        one_by_one = [each.model_call_id async for each in store.entries("r")]

    assert one_by_one == ["c1", "c2", "c3"]
