"""Every sample of the wire data parses to what its table says, or is refused with the numbers."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import attrs
import pytest

from tests.engines.dialects import IDS
from tests.engines.samples import VARIABLE, parsed, read, read_stream, sample
from tests.samples import data_folder
from tokenstore.engines import llama_cpp, responses, sglang, vllm
from tokenstore.errors import (
    DisagreeingAnswerError,
    EngineAnswerError,
    EngineFailureError,
    MissingTokensError,
    UnfinishedAnswerError,
)

LENT = "vllm/completions_ids_logprobs.json"
"""Its prompt is that of two samples which do not give theirs."""


@attrs.frozen
class Refused:
    """How a sample is refused."""

    kind: type[EngineAnswerError]
    numbers: dict[str, int]


READABLE: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "vllm/chat_ids_logprobs.json": (vllm, {}),
    "vllm/chat_token_id_strings_prompt_logprobs.json": (vllm, {"prompt_token_ids": LENT}),
    "vllm/chat_tools_reasoning.json": (vllm, {}),
    "vllm/completions_ids_logprobs.json": (vllm, {}),
    "vllm/inference_generate_tokens.json": (vllm, {"prompt_token_ids": LENT}),
    "vllm/chat_stream_logprobs.jsonl": (vllm, {}),
    "sglang/generate_logprobs.recorded_trimmed.json": (sglang, {"prompt_token_ids": [785, 6722, 315, 9625, 374]}),
    "sglang/generate_ids_logprobs.json": (sglang, {}),
    "sglang/generate_stream_incremental.jsonl": (sglang, {}),
    "sglang/generate_stream_cumulative.jsonl": (sglang, {}),
    "sglang/chat_ids_logprobs_meta.json": (sglang, {}),
    "sglang/generate_abort_partial.json": (sglang, {"prompt_token_ids": [1], "accept_aborted": True}),
    "nemogym/responses_reasoning_tools.recorded.json": (responses, {}),
    "llamacpp/completion_nprobs.json": (llama_cpp, {"prompt_token_ids": [785, 6722, 315, 9625, 374]}),
    "llamacpp/completion_stream.jsonl": (llama_cpp, {"prompt_token_ids": [785, 6722, 315, 9625, 374]}),
    "trtllm/completions_ids_nested_prompt.json": (vllm, {}),
}
"""Samples that hold a call, and what the caller has to say about them."""

REFUSED: dict[str, tuple[ModuleType, Refused]] = {
    "vllm/chat_stream_ids.recorded.jsonl": (vllm, Refused(MissingTokensError, {"generation_token_ids": 200})),
    "vllm/chat_stream_fragment_usage.recorded.jsonl": (
        vllm,
        Refused(DisagreeingAnswerError, {"counted": 2, "found": 1}),
    ),
    "vllm/chat_gptoss_null_token_ids.recorded_trimmed.json": (
        vllm,
        Refused(MissingTokensError, {"generation_log_probs": 0, "completion_tokens": 38}),
    ),
    "vllm/completions_echo_logprobs.recorded_trimmed.json": (vllm, Refused(EngineAnswerError, {"log_probs": 24})),
    "vllm/chat_n2.json": (vllm, Refused(EngineAnswerError, {"choices": 2})),
    "vllm/chat_token_id_strings_prompt_logprobs.json": (
        vllm,
        Refused(MissingTokensError, {"known": 0, "prompt_tokens": 62}),
    ),
    "sglang/generate_ids.recorded.json": (sglang, Refused(MissingTokensError, {"known": 0, "prompt_tokens": 5})),
    "sglang/generate_logprobs.recorded_trimmed.json": (
        sglang,
        Refused(MissingTokensError, {"known": 4, "prompt_tokens": 5}),
    ),
    "sglang/generate_stream_cumulative.recorded_trimmed.jsonl": (
        sglang,
        Refused(UnfinishedAnswerError, {"generation_token_ids": 14, "generation_log_probs": 14}),
    ),
    "sglang/generate_abort_partial.json": (
        sglang,
        Refused(UnfinishedAnswerError, {"generation_token_ids": 3, "generation_log_probs": 3}),
    ),
    "lmdeploy/generate_stream_delta.recorded_trimmed.jsonl": (
        sglang,
        Refused(DisagreeingAnswerError, {"generation_token_ids": 14, "generation_log_probs": 13}),
    ),
    "nemogym/responses_messages.recorded.json": (responses, Refused(EngineAnswerError, {"items": 4, "carriers": 4})),
    "nemogym/responses_empty_ids.recorded.json": (
        responses,
        Refused(MissingTokensError, {"known": 0, "prompt_tokens": 0}),
    ),
    "openai/chat_stream_logprobs.recorded.jsonl": (
        vllm,
        Refused(MissingTokensError, {"known": 0, "prompt_tokens": 9}),
    ),
    "openai/chat_stream_refusal_logprobs.recorded.jsonl": (
        vllm,
        Refused(MissingTokensError, {"known": 0, "prompt_tokens": 79}),
    ),
    "openai/chat_stream_n3.recorded.jsonl": (vllm, Refused(EngineAnswerError, {"choices": 2})),
}
"""Samples that hold no call that can be trusted, or need what only the caller knows, and the numbers that are said."""

ENGINES = {"sglang": sglang, "nemo-gym": responses, "nemo-gym completions": responses, "llama.cpp": llama_cpp}
SENT = {"prompt_token_ids": [1, 2, 3]}

ODD: dict[str, type[EngineAnswerError] | dict[str, Any]] = {
    "null_logprob_inside": EngineAnswerError,
    "nan_as_null_sglang": EngineAnswerError,
    "bare_nan": EngineAnswerError,
    "minus_9999": {"log_probs": [-0.1, -9999.0, -0.3], "clamped_log_probs": 1},
    "usage_one_more_than_ids": DisagreeingAnswerError,
    "usage_prompt_one_less": DisagreeingAnswerError,
    "prompt_logprobs_counted_in": DisagreeingAnswerError,
    "two_carriers_agree": {},
    "two_carriers_conflict_sglang": DisagreeingAnswerError,
    "two_carriers_length_conflict": DisagreeingAnswerError,
    "string_ids_not_decimal": EngineAnswerError,
    "bool_and_float_ids": EngineAnswerError,
    "partial_bundle": MissingTokensError,
    "abort_partial": {"ids": [5, 6], "log_probs": [-0.1, -0.2], "finish_reason": "abort"},
    "abort_incremental_repeats_last_id": {"finish_reason": "abort"},
    "stream_cut_before_finish": UnfinishedAnswerError,
    "stream_half_line": UnfinishedAnswerError,
    "stream_error_event": EngineFailureError,
    "stream_prompt_ids_twice": EngineAnswerError,
    "stream_finish_abort_then_done": {"ids": [5], "log_probs": [-0.1], "finish_reason": "abort"},
    "empty_choices": EngineAnswerError,
    "error_200": EngineFailureError,
    "generate_old_token_strings": {},
    "sglang_three_forms_of_entry": {},
    "llamacpp_prob_not_logprob": EngineAnswerError,
    "big_ints": EngineAnswerError,
}
"""What becomes of each odd case: an error, or what differs from ids 5, 6, 7 and their log probabilities."""


@pytest.mark.parametrize("name", READABLE)
def test_a_sample_parses_to_what_its_table_says(name: str) -> None:
    """Lengths, first and last id, the sum of the log probabilities and the reason for the end are the expected ones."""
    engine, about = READABLE[name]
    expected = parsed("expected.json")[name]
    expected = expected["items"][-1] if "items" in expected else expected
    if about.get("prompt_token_ids") == LENT:
        about = {"prompt_token_ids": parsed(LENT)["choices"][0]["prompt_token_ids"]}

    made = read(engine, name, **about)

    prompt = expected.get("prompt_tokens") or expected["prompt_len"] or expected.get("usage", [1])[0]
    assert len(made.prompt_token_ids) == prompt
    assert (len(made.generation_token_ids), len(made.generation_log_probs)) == (expected["ids_len"],) * 2
    assert (made.generation_token_ids[0], made.generation_token_ids[-1]) == (expected["first_id"], expected["last_id"])
    assert sum(made.generation_log_probs) == pytest.approx(expected.get("logprob_sum", -3.10546875), abs=1e-6)
    assert made.extra.get("finish_reason") == expected.get("finish")


@pytest.mark.parametrize("name", REFUSED)
def test_a_sample_is_refused_with_the_numbers(name: str) -> None:
    """What lacks tokens, is cut, or is of several calls is refused by its kind, with the numbers in the message."""
    engine, refused = REFUSED[name]

    with pytest.raises(refused.kind) as caught:
        read(engine, name)

    assert refused.numbers.items() <= caught.value.numbers.items()
    assert all(str(number) in str(caught.value) for number in refused.numbers.values())


def test_every_sample_is_in_a_table() -> None:
    """No file of the data is left out."""
    folder = data_folder(VARIABLE)
    files = {str(path.relative_to(folder)) for path in folder.glob("*/*.json*")} - {"odd/cases.jsonl"}

    assert files == READABLE.keys() | REFUSED.keys()


def test_each_item_of_an_episode_is_a_call_of_its_own() -> None:
    """The items of a recorded episode, one at a time, parse to what the table says of each."""
    name = "nemogym/responses_messages.recorded.json"
    body, expected = parsed(name), parsed("expected.json")[name]["items"]

    for item, wanted in zip(body["output"], expected, strict=True):
        made = responses.entry_from_response({**body, "output": [item], "usage": None}, **IDS)

        assert (len(made.prompt_token_ids), len(made.generation_token_ids)) == (wanted["prompt_len"], wanted["ids_len"])
        assert sum(made.generation_log_probs) == pytest.approx(wanted["logprob_sum"], abs=1e-6)


@pytest.mark.parametrize("name", ODD)
def test_odd_cases(name: str) -> None:
    """A case is accepted as it is, or refused by its kind; aborts are those that were asked for."""
    [case] = [case for case in odd_cases() if case["name"] == name]
    engine = ENGINES.get(case["engine"], vllm)
    about = {"accept_aborted": True, **({} if engine is responses else SENT)}
    outcome = ODD[name]

    if isinstance(outcome, type):
        with pytest.raises(outcome):
            read_case(engine, case, about)
        return
    made = read_case(engine, case, about)

    assert made.prompt_token_ids == [1, 2, 3]
    assert made.generation_token_ids == outcome.get("ids", [5, 6, 7])
    assert made.generation_log_probs == outcome.get("log_probs", [-0.1, -0.2, -0.3])
    assert {key: made.extra[key] for key in outcome.keys() - {"ids", "log_probs"}} == {
        key: value for key, value in outcome.items() if key not in {"ids", "log_probs"}
    }


def test_every_odd_case_is_in_the_table() -> None:
    """No case of the data is left out."""
    assert [case["name"] for case in odd_cases()] == list(ODD)


def odd_cases() -> list[dict[str, Any]]:
    """Read the constructed cases."""
    return [json.loads(line) for line in sample("odd/cases.jsonl").read_bytes().splitlines()]


def read_case(engine: ModuleType, case: dict[str, Any], about: dict[str, Any]) -> Any:
    """Let an engine's file read a case: chunks, a body, or its text."""
    if "chunks" in case:
        return read_stream(engine, case["chunks"], **about)
    return engine.entry_from_response(case.get("body", case.get("raw")), **IDS, **about)
