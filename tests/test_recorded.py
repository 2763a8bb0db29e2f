"""Rollouts of real engines go in and come out value for value, on every loop, also after the process was killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.children import start_module
from tests.loops import run_in
from tests.recordings import compare_frozen, differences, put_at_once, recording, recordings, rollouts_of
from tests.samples import data_folder
from tokenstore import InvalidEntryError, StoreConfig, TokenCaptureStore, TokenEntry

RECORDED = (
    "agl_math_poc.synthlp",
    "atropos_cybersec.synthlp",
    "atropos_rubiks.synthlp",
    "gym_blackjack",
    "gym_competitive_coding",
    "gym_customer_service",
    "gym_multi_turn_chat",
    "gym_reasoning_gym",
    "gym_round_trip",
    "gym_tictactoe",
    "gym_verifiers",
    "gym_workplace_assistant",
    "megatron_golden",
    "nemorl_penguin",
    "nemorl_template_parity.synthlp",
    "qwen_swe.retok",
    "tekken_tools.retok",
)
FULL = [("full", "atropos_rubiks.synthlp"), ("full", "gym_customer_service"), ("full", "tekken_tools.retok")]
"""Long rollouts, which take another way when prompts are stored whole."""
GOOD_ODD = (
    "all_padding_atropos",
    "empty_generation_nemorl",
    "empty_ids_hermes",
    "empty_prompt_nemorl",
    "prefix_break_merged_tokens_nemorl",
)


def file_of(kind: str, name: str) -> Path:
    """Find a file of the recorded data."""
    return data_folder("TOKENSTORE_RECORDED_DATA") / kind / f"{name}.jsonl"


def objects_in(kind: str, name: str) -> list[dict[str, object]]:
    """Read a file of the recorded data as plain objects."""
    return [json.loads(line) for line in file_of(kind, name).read_bytes().splitlines()]


def test_every_file_is_tried() -> None:
    """These tests know all files of the recorded data."""
    folder = data_folder("TOKENSTORE_RECORDED_DATA")

    assert sorted(path.name for path in (folder / "recorded").iterdir()) == [f"{name}.jsonl" for name in RECORDED]
    assert {path.stem for path in (folder / "odd").iterdir()} == {
        *GOOD_ODD,
        "len_mismatch_megatron",
        "null_logprobs_agl",
    }


@pytest.mark.anyio
@pytest.mark.parametrize(("storage", "name"), [*(("shared", name) for name in RECORDED), *FULL])
async def test_comes_back_value_for_value(name: str, storage: str, tmp_path: Path) -> None:
    """A file that goes in through 64 puts at once is frozen and comes back, whole and once."""
    entries = recording(file_of("recorded", name))
    config = StoreConfig(prompt_storage=storage)  # type: ignore[arg-type]
    async with TokenCaptureStore(tmp_path, config=config) as store:
        await put_at_once(store, entries)
        found = await compare_frozen(store, entries)
        assert store.statistics().puts == len(entries)

    assert found == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", GOOD_ODD)
async def test_odd_but_valid_is_stored_as_it_is(name: str, tmp_path: Path) -> None:
    """Empty prompts, generations and ids, padding and broken prefixes come back as they are."""
    entries = recording(file_of("odd", name))
    async with TokenCaptureStore(tmp_path) as store:
        await put_at_once(store, entries)
        found = await compare_frozen(store, entries)

    assert found == []


@pytest.mark.parametrize("position", range(3))
def test_log_probs_over_the_prompt_are_refused(position: int) -> None:
    """Log probabilities that cover the prompt too are refused with both numbers."""
    value = objects_in("odd", "len_mismatch_megatron")[position]
    numbers = {name: len(value[name]) for name in ("generation_token_ids", "generation_log_probs")}  # type: ignore[arg-type]

    with pytest.raises(InvalidEntryError) as refusal:
        TokenEntry(**value)  # type: ignore[arg-type]
    assert refusal.value.field == "generation_log_probs"
    assert "has {generation_log_probs} values for {generation_token_ids} gen".format(**numbers) in str(refusal.value)


@pytest.mark.anyio
@pytest.mark.parametrize("position", range(2))
async def test_null_log_probs_are_refused(position: int, tmp_path: Path) -> None:
    """Log probabilities that are null are refused, as a whole or one by one, and nothing is written."""
    value = objects_in("odd", "null_logprobs_agl")[position]
    ids = value["generation_token_ids"]
    assert isinstance(ids, list)

    with pytest.raises(InvalidEntryError, match="generation_log_probs: is of type NoneType, pass a list of floats"):
        TokenEntry(**value)  # type: ignore[arg-type]
    each = TokenEntry(**{**value, "generation_log_probs": [-0.5, *[None] * (len(ids) - 1)]})  # type: ignore[arg-type]
    async with TokenCaptureStore(tmp_path) as store:
        with pytest.raises(InvalidEntryError, match="generation_log_probs: position 1 holds None"):
            await store.put(each)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("loop", "acked"), [("asyncio", 40), ("uvloop", 159), ("trio", 80)])
def test_survives_a_kill(loop: str, acked: int, tmp_path: Path) -> None:
    """After SIGKILL another process finds every acknowledged call, puts the rest, and freezes all of them whole."""
    folder = data_folder("TOKENSTORE_RECORDED_DATA") / "recorded"
    entries = recordings(folder)
    with start_module("tests.recordings", loop, folder, tmp_path) as child:
        said = {tuple(child.line().split()) for _ in range(acked)}
        child.process.send_signal(signal.SIGKILL)
        status, rest = child.last_words()
    said |= {tuple(line.split()) for line in rest if " " in line}

    async def look() -> list[str]:
        async with TokenCaptureStore(tmp_path) as store:
            lost = []
            for rollout_id, calls in rollouts_of(entries).items():
                there = {made.model_call_id: made for made in (await store.peek(rollout_id)).entries}
                wanted = [made for made in calls if (rollout_id, made.model_call_id) in said]
                lost += differences(wanted, [there[m.model_call_id] for m in wanted if m.model_call_id in there])
                lost += differences([m for m in calls if m.model_call_id in there], there.values())
            await put_at_once(store, entries)
            return lost + await compare_frozen(store, entries)

    assert status == -signal.SIGKILL
    assert len(said) >= acked
    assert run_in(loop, look) == []
