"""The sink and the source of NeMo Gym, which takes and gives its pydantic entries without NeMo Gym being there."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import pickle
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.samples import entry
from tokenstore import InvalidEntryError, TokenCaptureStore, TokenEntry, TokenSink, TokenSource
from tokenstore.integrations.nemo_gym import GYM_DEFAULTS, GymEntry, TokenStoreSink, TokenStoreSource
from tokenstore.testing import run_check

pytestmark = pytest.mark.anyio


class Resolution(StrEnum):
    """Stands in for NeMo Gym's decision about a parent."""

    ROOT = "root"
    RESOLVED = "resolved"


class GymTokenEntry(BaseModel):
    """Stands in for NeMo Gym's entry: the fields of nemo-gym 0.7.0, unknown ones allowed."""

    model_config = ConfigDict(extra="allow")

    schema_version: int = 1
    rollout_id: str
    model_call_id: str
    model: str = ""
    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]
    routed_experts: Any | None = None
    output_items: list[dict[str, Any]] = Field(default_factory=list)
    token_item_index: int | None = None
    response_id: str | None = None
    created_at: float = 0.0
    parent_call_id: str | None = None
    cum_len: int | None = None
    digest: str | None = None
    parent_resolution: Resolution | None = None
    continuation_fingerprint: str = ""
    continuation_context_len: int = 0
    continuation_context_digest: str = ""
    parent_resolution_reason: str = ""
    fingerprint_version: int | None = None
    prompt_is_delta: bool = False
    prefix_requested: bool = False
    prefix_supplied: bool = False


def gym_entry(call_id: str = "c0", **fields: Any) -> GymTokenEntry:
    """Make an entry as a server of NeMo Gym does."""
    known: dict[str, Any] = {
        "rollout_id": "r",
        "model_call_id": call_id,
        "prompt_token_ids": [1, 2, 3],
        "generation_token_ids": [4, 5],
        "generation_log_probs": [-0.5, -0.0],
        "output_items": [{"type": "message", "role": "assistant", "content": []}],
        "token_item_index": 0,
        "parent_resolution": Resolution.ROOT,
        "digest": "00ff",
        "cum_len": 5,
        "reward": 1.0,
    }
    return GymTokenEntry(**{**known, **fields})


PROMISES = (
    *("put_is_visible", "repeated_put_is_noop", "conflicting_put_masks", "lost_call_masks", "refusals_are_kept"),
    *("marks_mask", "mark_after_freeze_masks", "freeze_is_idempotent", "late_writes_after_freeze_raise"),
    *("drop_needs_the_pair", "retire_leaves_fences", "delete_frees_the_id", "bare_string_raises"),
    *("unknown_fields_come_back", "agent_rollout_comes_back", "bad_entries_are_refused", "close_loses_nothing"),
)
"""Checks of the conformance suite that reach each method; the store behind them passes all."""


@pytest.mark.parametrize("check", PROMISES)
async def test_the_pair_keeps_the_promises(check: str, memory_path: Path) -> None:
    """Sink and source keep what a store promises, each client a new one over the same directory."""
    root = memory_path / "root"

    await run_check(check, lambda: TokenStoreSink(root), lambda: TokenStoreSource(root))


async def test_a_gym_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    """What the source gives dumps to what the server's entry dumped to, and its unknown fields are attributes."""
    sink, source = TokenStoreSink(tmp_path), TokenStoreSource(tmp_path)
    put = gym_entry()
    await sink.begin_call("r", "c0")
    await sink.put(put)
    await sink.put(GymTokenEntry.model_validate(put.model_dump(mode="json")))

    snapshot = await source.freeze("r")

    [found] = snapshot.entries
    assert found.model_dump(mode="json") == put.model_dump(mode="json")  # type: ignore[attr-defined]
    assert GymTokenEntry.model_validate(found.model_dump()) == put  # type: ignore[attr-defined]
    assert (found.parent_resolution, found.digest, found.reward) == (Resolution.ROOT, "00ff", 1.0)  # type: ignore[attr-defined]
    assert (snapshot.incomplete, snapshot.version) == (False, 2)
    await sink.close()
    await source.close()


async def test_an_entry_of_ours_answers_like_gyms(tmp_path: Path) -> None:
    """Fields that only NeMo Gym knows have its defaults where nobody set them, and putting it again is a no-op."""
    sink, source = TokenStoreSink(tmp_path), TokenStoreSource(tmp_path)
    await sink.put(entry(extra={"prompt_is_delta": True}))
    [found] = (await source.freeze("r")).entries

    await sink.put(found)

    fields = {**GYM_DEFAULTS, "prompt_is_delta": True}
    assert {name: getattr(found, name) for name in GYM_DEFAULTS} == fields
    assert set(GYM_DEFAULTS) < set(GymTokenEntry.model_fields)
    assert GymTokenEntry.model_validate(found.model_dump()).prompt_is_delta  # type: ignore[attr-defined]
    await sink.close()
    await source.close()


async def test_refusals_have_both_names(tmp_path: Path) -> None:
    """`record_engine_refusal` is `refuse_call`: the call is settled, and the rollout is whole."""
    sink, source = TokenStoreSink(tmp_path), TokenStoreSource(tmp_path)
    await sink.begin_call("r", "c0")
    await sink.begin_call("r", "c1")
    await sink.record_engine_refusal("r", model_call_id="c0", code="context_length_exceeded")
    await sink.refuse_call("r", model_call_id="c1", code=None)

    snapshot = await source.freeze("r")

    assert [(refusal.model_call_id, refusal.code) for refusal in snapshot.refusals] == [
        ("c0", "context_length_exceeded"),
        ("c1", None),
    ]
    assert not snapshot.incomplete
    await sink.close()
    await source.close()


def test_a_loop_that_came_later_may_use_it(tmp_path: Path) -> None:
    """Made where no loop runs, it works in one loop after another, never entered."""
    sink, source = TokenStoreSink(str(tmp_path)), TokenStoreSource(tmp_path)

    for call_id in ("c0", "c1", "c2"):
        asyncio.run(sink.put(gym_entry(call_id)))

    assert len(asyncio.run(source.freeze("r")).entries) == 3
    asyncio.run(sink.close())
    asyncio.run(source.close())


def put_in_child(sink: TokenStoreSink, call_id: str) -> None:
    """Use a sink that the parent made."""
    asyncio.run(sink.put(gym_entry(call_id)))
    asyncio.run(sink.close())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_server_may_use_it(tmp_path: Path) -> None:
    """A sink made, and used, before a fork works in the child and goes on in the parent."""
    sink = TokenStoreSink(tmp_path)
    asyncio.run(sink.put(gym_entry("c0")))

    child = multiprocessing.get_context("fork").Process(target=put_in_child, args=(sink, "c1"))
    child.start()
    child.join(30)
    asyncio.run(sink.put(gym_entry("c2")))

    assert child.exitcode == 0
    asyncio.run(sink.close())
    calls = [found.model_call_id for found in TokenCaptureStore(tmp_path).read_entries("r")]
    assert calls == ["c0", "c1", "c2"]


def test_both_are_what_gym_looks_for(tmp_path: Path) -> None:
    """Each has every method of its protocol, and `sink_kwargs` may set what the store may be set to."""
    sink = TokenStoreSink(root=str(tmp_path), prompt_storage="full", lock_timeout=5.0)

    assert isinstance(sink, TokenSink)
    assert isinstance(TokenStoreSource(tmp_path), TokenSource)
    assert (sink.store.config.prompt_storage, sink.store.config.lock_timeout) == ("full", 5.0)


def test_a_wrong_configuration_is_named(tmp_path: Path) -> None:
    """A relative root and an unknown field are refused when the server starts."""
    with pytest.raises(ValueError, match="root is the relative path 'captures'"):
        TokenStoreSink("captures")
    with pytest.raises(TypeError, match="durable"):
        TokenStoreSource(tmp_path, durable=True)


@pytest.mark.parametrize(
    ("put", "problem"),
    [
        (gym_entry(generation_log_probs=[-0.5]), "has 1 values for 2 generation_token_ids"),
        (gym_entry(generation_log_probs=[-0.5, float("nan")]), "position 1 holds"),
        (GymEntry(entry(generation_token_ids=[4, -1])), "position 1 is outside"),
        (ConfigDict(), "entry: is a mapping"),
        (Resolution.ROOT, "rollout_id: is no attribute"),
    ],
)
async def test_what_cannot_be_stored_is_refused(tmp_path: Path, put: Any, problem: str) -> None:
    """A server's entry passes the same checks as one of ours."""
    sink = TokenStoreSink(tmp_path)

    with pytest.raises(InvalidEntryError, match=problem):
        await sink.put(put)
    await sink.close()


class TestGymEntry:
    """The entry that the source gives."""

    def test_a_copy_may_differ(self) -> None:
        """`model_copy` changes declared and unknown fields and leaves the first as it was."""
        first = GymEntry(entry(extra={"prompt_is_delta": True, "reward": 1.0}))

        other = first.model_copy(update={"prompt_token_ids": [9], "prompt_is_delta": False})

        assert (other.prompt_token_ids, other.prompt_is_delta, other.reward) == ([9], False, 1.0)
        assert (first.prompt_token_ids, first.prompt_is_delta) == ([1, 2, 3], True)
        assert first.model_copy() == first

    def test_is_equal_to_what_it_holds(self) -> None:
        """Two of the same entry are equal, and equal to it."""
        assert GymEntry(entry()) == GymEntry(entry()) == entry()
        assert GymEntry(entry()) != GymEntry(entry("c1"))

    def test_unknown_names_are_no_attributes(self) -> None:
        """A field that neither the store, nor the entry, nor NeMo Gym has is an AttributeError that names the call."""
        with pytest.raises(AttributeError, match="call 'c0' has a field 'score'"):
            _ = GymEntry(entry()).score

    @pytest.mark.parametrize("travel", [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
    def test_travels_between_processes(self, travel: Any) -> None:
        """It may be pickled and copied."""
        made = GymEntry(entry(extra={"reward": 1.0}))

        there = travel(made)

        assert (there, there.reward) == (made, 1.0)

    def test_tokens_stay_out_of_logs(self) -> None:
        """Its repr names the call and the lengths."""
        assert repr(GymEntry(entry())) == (
            "GymTokenEntry(rollout_id='r', model_call_id='c0', prompt=3 ids, generation=2 ids)"
        )

    def test_goes_into_any_store(self, tmp_path: Path) -> None:
        """A store of ours takes it as the entry that it holds."""
        TokenCaptureStore(tmp_path).append(GymEntry(entry(extra={"reward": 1.0})))  # type: ignore[arg-type]

        [found] = TokenCaptureStore(tmp_path).read_entries("r")

        assert isinstance(found, TokenEntry)
        assert found == entry(extra={"reward": 1.0})
