"""A directory that the reference's library wrote is read, continued, frozen and dropped as it would be there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.samples import data_folder, entry
from tokenstore import (
    ConflictingEntryError,
    StoreConfig,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenCaptureStore,
    TokenEntry,
)
from tokenstore.codec import decode_entry
from tokenstore.testing import first_difference

pytestmark = pytest.mark.anyio

EXPECTED = ("conflict", "frozen", "intents", "lagging", "marked", "nostate", "open")
"""Rollouts of which `expected.json` holds what the reference's own freeze says."""
OPEN = ("conflict", "intents", "lagging", "marked", "nostate", "open", "torn")
FENCED = ("dropped", "halfdropped", "retired")
REASONS = {
    "conflict": ("flagged",),
    "intents": ("lost_call:c2",),
    "marked": ("marked:c1", "marked:"),
}
"""Why rollouts are incomplete; the reference keeps no name of a conflict, and was told of one mark without a call."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Copy the reference's directory, since its own must not be changed."""
    for path in data_folder("TOKENSTORE_REFERENCE_DATA").glob("*.tokens.*"):
        shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


@pytest.fixture(params=["shared", "full"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    """Store prompts in either way."""
    return StoreConfig(prompt_storage=request.param)


def expected(rollout: str) -> dict[str, Any]:
    """What the reference's own freeze says of a rollout."""
    answers: dict[str, dict[str, Any]] = json.loads(
        (data_folder("TOKENSTORE_REFERENCE_DATA") / "expected.json").read_bytes()
    )
    return answers[rollout]


def lines(root: Path, rollout: str) -> list[bytes]:
    """The whole lines of a rollout."""
    return (root / f"{rollout}.tokens.jsonl").read_bytes().split(b"\n")[:-1]


def entries(root: Path, rollout: str) -> list[TokenEntry]:
    """What a rollout's lines hold, read by the standard library."""
    return [decode_entry(json.loads(line)) for line in lines(root, rollout)]


def files(root: Path) -> dict[str, bytes]:
    """Everything in the directory but lock files."""
    return {path.name: path.read_bytes() for path in root.iterdir() if not path.name.endswith(".lock")}


@pytest.mark.parametrize("rollout", EXPECTED)
async def test_freeze_says_what_the_reference_says(root: Path, config: StoreConfig, rollout: str) -> None:
    """Calls, refusals, incomplete and version of a freeze are the reference's, and its entries those of the file."""
    before = entries(root, rollout)
    async with TokenCaptureStore(root, config=config) as store:
        peeked = await store.peek(rollout)
        snapshot = await store.freeze(rollout)

    answer = expected(rollout)
    assert [call.model_call_id for call in snapshot.entries] == answer["calls"]
    assert [refusal.model_call_id for refusal in snapshot.refusals] == answer["refusals"]
    assert (snapshot.incomplete, snapshot.version) == (answer["incomplete"], answer["version"])
    assert snapshot.incomplete_reasons == REASONS.get(rollout, ())
    assert list(snapshot.entries) == before[: len(answer["calls"])]
    assert peeked.version == answer["version"] - (rollout != "frozen")
    assert peeked.entries == snapshot.entries


async def test_a_frozen_rollout_keeps_its_snapshot(root: Path, config: StoreConfig) -> None:
    """A rollout that the reference froze answers with the id and version that its state holds, and drops with them."""
    state = json.loads((root / "frozen.tokens.state.json").read_bytes())
    before = files(root)
    async with TokenCaptureStore(root, config=config) as store:
        snapshot = await store.freeze("frozen")
        with pytest.raises(TokenCaptureFrozenError, match="already frozen"):
            await store.put(entry("late", rollout_id="frozen"))
        assert files(root) == before
        assert (snapshot.snapshot_id, snapshot.version) == (state["snapshot_id"], state["version"])
        assert await store.drop("frozen", snapshot_id=snapshot.snapshot_id, version=2) is False
        assert await store.drop("frozen", snapshot_id=snapshot.snapshot_id, version=3) is True
        assert await store.drop("frozen", snapshot_id=snapshot.snapshot_id, version=3) is True

    fence = json.loads((root / "frozen.tokens.state.json").read_bytes())
    assert fence.pop("tokenstore").keys() == {"conflicts", "damage", "marked"}
    assert fence == {**state, "retired": True, "entry_digests": {}, "indexed_size": 0, "refusals": []}
    assert not (root / "frozen.tokens.jsonl").exists()


async def test_a_torn_rollout_loses_its_fragment(root: Path, config: StoreConfig) -> None:
    """Half a line at the end is gone with the next put, and the rollout is complete."""
    whole = b"".join(line + b"\n" for line in lines(root, "torn"))
    async with TokenCaptureStore(root, config=config) as store:
        assert [call.model_call_id for call in (await store.peek("torn")).entries] == ["c0", "c1"]
        await store.put(entry("c2", rollout_id="torn"))
        snapshot = await store.freeze("torn")

    assert [call.model_call_id for call in snapshot.entries] == ["c0", "c1", "c2"]
    assert (snapshot.version, snapshot.incomplete) == (4, False)
    assert (root / "torn.tokens.jsonl").read_bytes().startswith(whole)
    assert len(lines(root, "torn")) == 3


@pytest.mark.parametrize("rollout", FENCED)
async def test_fences_hold(root: Path, config: StoreConfig, rollout: str) -> None:
    """Writes to a fenced rollout are refused, what a crash left behind the fence goes, and a delete frees the id."""
    state = json.loads((root / f"{rollout}.tokens.state.json").read_bytes())
    pair = {"snapshot_id": state["snapshot_id"], "version": state["version"]}
    async with TokenCaptureStore(root, config=config) as store:
        for late in (
            lambda: store.put(entry("late", rollout_id=rollout)),
            lambda: store.begin_call(rollout, "late"),
            lambda: store.refuse_call(rollout, model_call_id="late", code=None),
            lambda: store.mark_incomplete(rollout, "late"),
            lambda: store.freeze(rollout),
            lambda: store.peek(rollout),
        ):
            with pytest.raises(TokenCaptureRetiredError, match="retired"):
                await late()
        assert not (root / f"{rollout}.tokens.jsonl").exists()
        assert await store.drop(rollout, **pair) is (rollout != "retired")
        assert json.loads((root / f"{rollout}.tokens.state.json").read_bytes()) == state
        assert await store.delete([rollout]) == {"removed": [], "absent": [rollout]}
        await store.put(entry("new", rollout_id=rollout))
        assert (await store.peek(rollout)).version == 1


@pytest.mark.parametrize("rollout", OPEN)
async def test_an_open_rollout_goes_on(root: Path, config: StoreConfig, rollout: str) -> None:
    """New calls, intents, refusals and marks are added to what the reference wrote, and counted on from its version."""
    other = StoreConfig(prompt_storage="full" if config.prompt_storage == "shared" else "shared")
    async with TokenCaptureStore(root, config=config) as store, TokenCaptureStore(root, config=other) as second:
        before = await store.peek(rollout)
        await store.begin_call(rollout, "new")
        await second.put(entry("new", rollout_id=rollout))
        await second.refuse_call(rollout, model_call_id="refused", code="x")
        await store.mark_incomplete(rollout, "lost")
        await store.put(entry("newer", rollout_id=rollout))
        snapshot = await second.freeze(rollout)
        again = await store.freeze(rollout)

    assert [call.model_call_id for call in snapshot.entries[len(before.entries) :]] == ["new", "newer"]
    assert snapshot.entries[: len(before.entries)] == before.entries
    assert snapshot.refusals[: len(before.refusals)] == before.refusals
    assert snapshot.version == before.version + 5
    assert "marked:lost" in snapshot.incomplete_reasons
    assert again == snapshot


@pytest.mark.parametrize("rollout", [*EXPECTED, "torn"])
async def test_its_entries_again_are_no_news(root: Path, config: StoreConfig, rollout: str) -> None:
    """Putting again what the reference stored, its floats spelt our way, changes no byte and no version."""
    (root / "torn.tokens.jsonl").write_bytes(b"".join(line + b"\n" for line in lines(root, "torn")))
    before = files(root)
    async with TokenCaptureStore(root, config=config) as store:
        version = (await store.peek(rollout)).version
        for made in entries(root, rollout):
            assert b"-0.0000125" in lines(root, rollout)[0]
            await store.put(made)
        assert (await store.peek(rollout)).version == version

    assert files(root) == before


async def test_other_content_of_its_calls_is_a_conflict(root: Path, config: StoreConfig) -> None:
    """Another entry of a call that the reference stored masks the rollout and leaves the first one."""
    stored = entries(root, "open")
    async with TokenCaptureStore(root, config=config) as store:
        with pytest.raises(ConflictingEntryError, match="other content"):
            await store.put(entry("c1", rollout_id="open"))
        snapshot = await store.freeze("open")

    assert list(snapshot.entries) == stored
    assert (snapshot.version, snapshot.incomplete_reasons) == (5, ("conflict:c1",))
    assert (root / "open.tokens.incomplete").read_bytes() == b"c1\n"


async def test_full_lines_hold_the_references_members(root: Path) -> None:
    """With full prompts our line of an entry of the reference has its members in its order, and nothing else."""
    theirs = lines(root, "open")
    async with TokenCaptureStore(root, config=StoreConfig(prompt_storage="full")) as store:
        for made in entries(root, "open"):
            fields = {name: getattr(made, name) for name in TokenEntry.__annotations__}
            await store.put(TokenEntry(**{**fields, "rollout_id": "ours"}))
        await store.freeze("ours")

    ours = lines(root, "ours")
    assert [list(json.loads(line)) for line in ours] == [list(json.loads(line)) for line in theirs]
    spelt = [line.replace(b"-0.0000125", b"-1.25e-5").replace(b"-0.000033", b"-3.3e-5") for line in theirs]
    assert [line.replace(b'"rollout_id":"ours"', b'"rollout_id":"open"') for line in ours] == spelt
    state = json.loads((root / "ours.tokens.state.json").read_bytes())
    assert list(state) == sorted([*json.loads((root / "open.tokens.state.json").read_bytes()), "tokenstore"])


async def test_the_directory_is_listed(root: Path) -> None:
    """Every rollout of the reference is listed with its state, its calls and whether it is incomplete."""
    async with TokenCaptureStore(root) as store:
        listed = {status.rollout_id: status async for status in store.rollouts()}

    assert listed.keys() == {*OPEN, *FENCED, "frozen"}
    assert {status.state for name, status in listed.items() if name in OPEN} == {"open"}
    assert {status.state for name, status in listed.items() if name in FENCED} == {"retired"}
    assert {name: listed[name].calls for name in EXPECTED} == {name: len(entries(root, name)) for name in EXPECTED}
    assert {name for name, status in listed.items() if status.incomplete} == {"conflict", "marked"}


async def test_reading_leaves_it_as_it_is(root: Path) -> None:
    """Peeking, reading one by one and asking change no byte of what the reference wrote, and make no file."""
    before = {path.name: path.read_bytes() for path in root.iterdir()}
    async with TokenCaptureStore(root) as store:
        for rollout in (*OPEN, "frozen"):
            read = [made async for made in store.entries(rollout)]
            peeked = await store.peek(rollout)
            assert read == list(peeked.entries)
            stored = entries(root, rollout)[: len(read)]
            assert [first_difference(*pair) for pair in zip(stored, read, strict=True)] == [None] * len(read)

    assert {path.name: path.read_bytes() for path in root.iterdir()} == before
