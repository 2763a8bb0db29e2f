"""What an entry holds beside its tokens: content, facts of the engine, and what the caller passes through."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.dialects import DIALECTS, IDS, SMALL, Spoken
from tests.engines.samples import parsed, read
from tokenstore.engines import llama_cpp, responses, sglang, vllm
from tokenstore.errors import (
    DisagreeingAnswerError,
    EngineAnswerError,
    InvalidEntryError,
    InvalidRolloutIdError,
    MissingTokensError,
    UnfinishedAnswerError,
)

ARRAYS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}
ENGINES = (vllm, sglang, responses, llama_cpp)


class TestContent:
    """Items, names and times."""

    @pytest.mark.parametrize("name", DIALECTS)
    def test_the_answer_is_named(self, name: str) -> None:
        """The engine's id, model and time are kept where it gives them, and the arrays' place is said."""
        entry = DIALECTS[name].read(SMALL, DIALECTS[name].whole(SMALL))

        assert (entry.rollout_id, entry.model_call_id) == ("r", "c")
        assert entry.response_id == (None if name == "llama.cpp" else "answer-1")
        assert entry.model == ("" if "sglang generate" in name else "m")
        assert entry.token_item_index == {"responses": 1, "vllm generate": None}.get(name, 0)
        assert entry.created_at in (0.0, 1785000000.0)

    @pytest.mark.parametrize("name", DIALECTS)
    def test_items_hold_the_content_and_no_tokens(self, name: str) -> None:
        """Text is kept as the engine gave it; no item holds an array that the entry holds."""
        items = DIALECTS[name].read(SMALL, DIALECTS[name].whole(SMALL)).output_items

        assert not any("token_ids" in key or "log_probs" in key for item in items for key in item)
        assert (SMALL.text() in str(items)) == (name != "vllm generate")

    def test_calls_and_reasoning_are_kept(self) -> None:
        """A message of tool calls keeps everything but the arrays."""
        name = "vllm/chat_tools_reasoning.json"

        [item] = read(vllm, name).output_items

        assert item == {**parsed(name)["choices"][0]["message"], "type": "message"}

    def test_arrays_are_taken_off_where_they_were(self) -> None:
        """Of four items the last carried the arrays; the others are as they were."""
        name = "nemogym/responses_reasoning_tools.recorded.json"
        items = parsed(name)["output"]

        made = read(responses, name)

        assert (made.token_item_index, made.output_items[:3]) == (3, items[:3])
        assert made.output_items[3] == {key: items[3][key] for key in items[3].keys() - ARRAYS}

    @pytest.mark.parametrize("name", ["vllm chat", "sglang generate, deltas", "responses"])
    def test_routed_experts_are_kept_as_they_are(self, name: str) -> None:
        """Base64 of an array of experts is no business of ours."""
        body = DIALECTS[name].whole(SMALL)
        places: dict[str, list[Any]] = {
            "vllm chat": ["choices", 0],
            "sglang generate, deltas": ["meta_info"],
            "responses": ["output", 1],
        }
        holder: Any = body
        for key in places[name]:
            holder = holder[key]
        holder["routed_experts"] = "k05VTVBZAQ=="

        entry = DIALECTS[name].read(SMALL, body)

        assert entry.routed_experts == "k05VTVBZAQ=="
        assert "k05V" not in str(entry.output_items)

    def test_routed_experts_in_two_places_must_be_the_same(self) -> None:
        """Which of them is of this answer is not guessed."""
        body = DIALECTS["sglang chat"].whole(SMALL)
        body["sglext"]["routed_experts"] = body["choices"][0]["meta_info"]["routed_experts"] = "AAEC"

        assert sglang.entry_from_response(body, **IDS).routed_experts == "AAEC"
        body["sglext"]["routed_experts"] = "BBBB"
        with pytest.raises(DisagreeingAnswerError, match="routed_experts: is in 2 places, and differs"):
            sglang.entry_from_response(body, **IDS)

    def test_a_chat_message_may_carry_the_arrays(self) -> None:
        """NeMo Gym's chat completions carry them on the message, which must agree with the choice."""
        body = DIALECTS["vllm chat"].whole(SMALL)
        message = body["choices"][0]["message"]
        message.update(prompt_token_ids=[1, 2, 3], generation_token_ids=SMALL.ids)
        message["generation_log_probs"] = SMALL.log_probs

        for engine in (responses, vllm):
            entry = engine.entry_from_response(body, **IDS)
            assert SMALL.same(entry)
            assert entry.output_items == [{"type": "message", "role": "assistant"} | plain(message)]


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Give a message without arrays."""
    return {key: value for key, value in message.items() if not isinstance(value, list)}


class TestExtra:
    """Fixed names for what the engine or the caller says."""

    def test_what_the_caller_says_is_kept(self) -> None:
        """Sampling, the kind of log probabilities and the caller's own fields go into `extra`."""
        about: dict[str, Any] = {"sampling": {"temperature": 0.7}, "logprobs_mode": "processed"}

        entry = vllm.entry_from_response(
            DIALECTS["vllm chat"].whole(SMALL), **IDS, **about, extra={"group_id": "g", "reward": 1.0}
        )

        assert entry.extra == {
            **about,
            "finish_reason": "stop",
            "weight_version": "7",
            "weight_versions": [{"version": "7", "start": 0, "end": 4}],
            "group_id": "g",
            "reward": 1.0,
        }

    @pytest.mark.parametrize("name", DIALECTS)
    def test_a_stream_says_what_a_whole_answer_says(self, name: str) -> None:
        """Facts and names are the same, however the answer came."""
        dialect = DIALECTS[name]

        whole = dialect.read(SMALL, dialect.whole(SMALL))
        stream = dialect.read_stream(SMALL, dialect.chunks(SMALL, [2]))

        lost = {"weight_version"} if name == "sglang chat" else {"finish_reason"} if "completions" in name else set()
        assert {key: whole.extra[key] for key in whole.extra.keys() - lost} == {
            key: stream.extra[key] for key in stream.extra.keys() - lost
        }
        assert (whole.response_id, whole.created_at) == (stream.response_id, stream.created_at)

    def test_versions_of_weights_are_spans(self) -> None:
        """Ids of two versions have no one version; spans must cover all ids without a gap."""
        body = DIALECTS["vllm chat"].whole(SMALL)
        choice = body["choices"][0]
        choice["weight_versions"] = [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 4}]

        extra = vllm.entry_from_response(body, **IDS).extra

        assert extra["weight_versions"] == choice["weight_versions"]
        assert "weight_version" not in extra
        for start, end in ((2, 4), (1, 3), (1, 5), (0, 4)):
            choice["weight_versions"][1].update(start=start, end=end)
            with pytest.raises(DisagreeingAnswerError, match="weight_versions"):
                vllm.entry_from_response(body, **IDS)

    def test_the_engines_word_and_the_callers_must_agree(self) -> None:
        """A version that the caller passes too must be the one that the answer names."""
        body = DIALECTS["vllm chat"].whole(SMALL)

        same = vllm.entry_from_response(body, **IDS, extra={"weight_version": "7"})

        assert same.extra["weight_version"] == "7"
        with pytest.raises(DisagreeingAnswerError, match="weight_version: of the answer differs"):
            vllm.entry_from_response(body, **IDS, extra={"weight_version": "8"})

    @pytest.mark.parametrize(
        ("said", "extra"),
        [
            ({"logprobs_mode": "raw"}, {"logprobs_mode": "processed"}),
            ({"sampling": {"top_k": 1}}, {"sampling": {"top_k": 2}}),
        ],
    )
    def test_a_caller_must_not_contradict_itself(self, said: dict[str, Any], extra: dict[str, Any]) -> None:
        """What is passed by itself and in `extra` too must be the same."""
        body = DIALECTS["vllm chat"].whole(SMALL)

        assert vllm.entry_from_response(body, **IDS, **said, extra=said).extra.items() >= said.items()
        with pytest.raises(DisagreeingAnswerError, match="is passed twice, by itself and in extra, and differs"):
            vllm.entry_from_response(body, **IDS, **said, extra=extra)

    def test_llama_cpp_says_how_it_sampled(self) -> None:
        """Its settings are the sampling, unless the caller says otherwise, and its log probabilities are raw."""
        body, about = DIALECTS["llama.cpp"].whole(SMALL), {**IDS, "prompt_token_ids": [1, 2, 3]}

        said = llama_cpp.entry_from_response(body, **about)
        told = llama_cpp.entry_from_response(body, **about, sampling={"top_k": 1})

        assert (said.extra["sampling"], said.extra["logprobs_mode"]) == ({"temperature": 1.0}, "raw")
        assert told.extra["sampling"] == {"top_k": 1}
        with pytest.raises(DisagreeingAnswerError, match="logprobs_mode: of the answer differs"):
            llama_cpp.entry_from_response(body, **about, logprobs_mode="processed")

    def test_clamped_log_probs_are_counted(self) -> None:
        """What stands for minus infinity is kept, and how often is said."""
        spoken = Spoken([1], [5, 6, 7], [-9999.0, -0.5, -9999.0])
        tiny = Spoken([1], [5], [-3.4028234663852886e38])

        entry = DIALECTS["vllm chat"].read(spoken, DIALECTS["vllm chat"].whole(spoken))

        assert (entry.generation_log_probs, entry.extra["clamped_log_probs"]) == (spoken.log_probs, 2)
        assert DIALECTS["llama.cpp"].read(tiny, DIALECTS["llama.cpp"].whole(tiny)).extra["clamped_log_probs"] == 1

    @pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
    def test_what_a_caller_gets_wrong_is_the_callers_error(self, engine: Any) -> None:
        """Names that there are not, kinds that do not fit and ids that cannot be stored are no fault of the answer."""
        dialect = next(dialect for dialect in DIALECTS.values() if dialect.engine is engine)
        about = dialect.about(SMALL)
        whole = dialect.whole(SMALL)

        with pytest.raises(TypeError, match="promt_token_ids"):
            engine.entry_from_response(whole, **about, promt_token_ids=[1])
        with pytest.raises(ValueError, match="'raw' and 'processed' are allowed"):
            engine.entry_from_response(whole, **about, logprobs_mode="raw_logits")
        with pytest.raises(TypeError, match="extra is of type list"):
            engine.entry_from_response(whole, **about, extra=[1])
        with pytest.raises(TypeError, match="sampling is of type str"):
            engine.StreamAssembler(**about, sampling="greedy")
        with pytest.raises(TypeError, match="accept_aborted is of type str"):
            engine.entry_from_response(whole, **about, accept_aborted="no")
        with pytest.raises(InvalidRolloutIdError):
            engine.entry_from_response(whole, **{**about, "rollout_id": "a/b"})
        with pytest.raises(InvalidEntryError, match="extra"):
            engine.entry_from_response(whole, **about, extra={"model": "x"})


class TestPrompts:
    """Prompt ids of the answer, and of the caller."""

    @pytest.mark.parametrize("name", [name for name in DIALECTS if DIALECTS[name].gives_prompt])
    def test_what_was_sent_must_be_what_was_answered(self, name: str) -> None:
        """Ids that the caller passes are compared with those that the engine gives."""
        dialect = DIALECTS[name]

        same = dialect.engine.entry_from_response(dialect.whole(SMALL), **IDS, prompt_token_ids=[1, 2, 3])

        assert SMALL.same(same)
        with pytest.raises(DisagreeingAnswerError, match=r"prompt_token_ids=\[1\]: differs from"):
            dialect.engine.entry_from_response(dialect.whole(SMALL), **IDS, prompt_token_ids=[1, 9, 3])

    @pytest.mark.parametrize("name", ["vllm generate", "llama.cpp"])
    def test_what_was_sent_must_be_as_long_as_the_engine_counts(self, name: str) -> None:
        """Where the engine gives no ids, it still gives their number."""
        dialect = DIALECTS[name]

        with pytest.raises(DisagreeingAnswerError, match="is 3, but there are 2 prompt ids") as caught:
            dialect.engine.entry_from_response(dialect.whole(SMALL), **IDS, prompt_token_ids=[1, 2])

        assert caught.value.numbers == {"counted": 3, "found": 2}

    def test_input_log_probs_are_a_prompt_if_they_are_whole(self) -> None:
        """SGLang's input log probabilities carry the prompt if they are of all of it, or are compared with it."""
        body = DIALECTS["sglang generate, deltas"].whole(SMALL)
        del body["prompt_token_ids"]
        body["meta_info"]["input_token_logprobs"] = [[None, 1, None], [-7.25, 2, None], [-0.5, 3, None]]

        assert SMALL.same(sglang.entry_from_response(body, **IDS))
        del body["meta_info"]["input_token_logprobs"][0]
        assert SMALL.same(sglang.entry_from_response(body, **IDS, prompt_token_ids=[1, 2, 3]))
        with pytest.raises(MissingTokensError, match="holds 2 of 3 prompt ids"):
            sglang.entry_from_response(body, **IDS)
        with pytest.raises(DisagreeingAnswerError, match=r"differs from prompt_token_ids=\[2\]"):
            sglang.entry_from_response(body, **IDS, prompt_token_ids=[1, 2, 4])

    def test_a_truncated_prompt_is_refused(self) -> None:
        """llama.cpp says that it cut the prompt; the ids that were sent are then not those that were read."""
        body = {**DIALECTS["llama.cpp"].whole(SMALL), "truncated": True}

        with pytest.raises(DisagreeingAnswerError, match="truncated"):
            llama_cpp.entry_from_response(body, **IDS, prompt_token_ids=[1, 2, 3])


class TestEnds:
    """Reasons to stop."""

    @pytest.mark.parametrize("name", ["vllm chat", "vllm completions", "sglang generate, deltas", "sglang chat"])
    def test_an_aborted_answer_is_refused_unless_asked_for(self, name: str) -> None:
        """What an aborted answer holds is an error with the numbers, or an entry that says that it was aborted."""
        dialect, body = DIALECTS[name], DIALECTS[name].whole(SMALL)
        if "choices" in body:
            body["choices"][0]["finish_reason"] = "abort"
        else:
            body["meta_info"]["finish_reason"] = {"type": "abort", "message": "x"}

        entry = dialect.engine.entry_from_response(body, **IDS, accept_aborted=True)

        assert (SMALL.same(entry), entry.extra["finish_reason"]) == (True, "abort")
        with pytest.raises(UnfinishedAnswerError, match="holds 4 ids and 4 log probs; accept_aborted=True"):
            dialect.engine.entry_from_response(body, **IDS)

    @pytest.mark.parametrize(
        ("status", "details", "reason"),
        [
            ("completed", None, None),
            (None, None, None),
            ("incomplete", {"reason": "max_output_tokens"}, "max_output_tokens"),
            ("incomplete", None, "incomplete"),
        ],
    )
    def test_an_incomplete_response_says_why(self, status: str | None, details: Any, reason: str | None) -> None:
        """A response that ran into a limit is whole; why it ended is kept."""
        body = {**DIALECTS["responses"].whole(SMALL), "status": status, "incomplete_details": details}

        assert responses.entry_from_response(body, **IDS).extra.get("finish_reason") == reason

    @pytest.mark.parametrize("status", ["in_progress", "failed", "cancelled", "queued"])
    def test_a_response_that_did_not_end_is_unfinished(self, status: str) -> None:
        """A response in any other state is no answer."""
        with pytest.raises(UnfinishedAnswerError, match=status):
            responses.entry_from_response({**DIALECTS["responses"].whole(SMALL), "status": status}, **IDS)

    def test_nothing_generated_is_an_entry(self) -> None:
        """An answer of no ids, which says so, is an entry of none."""
        nothing = Spoken([1, 2, 3], [], [])

        for name in ("vllm chat", "sglang generate, deltas", "responses", "llama.cpp"):
            assert nothing.same(DIALECTS[name].read(nothing, DIALECTS[name].whole(nothing)))


class TestChoices:
    """One answer is one call."""

    @pytest.mark.parametrize("count", [0, 2, 8])
    @pytest.mark.parametrize("name", ["vllm chat", "vllm completions", "vllm generate", "sglang chat"])
    def test_more_than_one_is_refused(self, name: str, count: int) -> None:
        """Choices are counted, and the remedy is said."""
        body = DIALECTS[name].whole(SMALL)
        body["choices"] *= count

        with pytest.raises(EngineAnswerError, match=f"choices: are {count}, one is needed.*ask for n=1") as caught:
            DIALECTS[name].engine.entry_from_response(body, **IDS)

        assert caught.value.numbers == {"choices": count}

    def test_a_list_of_answers_is_refused(self) -> None:
        """SGLang answers a batch, or n samples, with a list; one of one is that one."""
        body = DIALECTS["sglang generate, deltas"].whole(SMALL)

        assert SMALL.same(sglang.entry_from_response([body], **IDS))
        with pytest.raises(EngineAnswerError, match="is a list of 2, one is needed"):
            sglang.entry_from_response([body, body], **IDS)

    def test_ids_of_two_choices_are_refused(self) -> None:
        """So is an `sglext` of two."""
        body = DIALECTS["sglang chat"].whole(SMALL)
        body["sglext"]["output_ids"] *= 2

        with pytest.raises(EngineAnswerError, match="are of 2 choices, one is needed"):
            sglang.entry_from_response(body, **IDS)


class TestOptions:
    """What to ask for."""

    def test_each_endpoint_has_its_options(self) -> None:
        """What an engine is asked for is what its answers need."""
        assert vllm.request_options()["return_token_ids"] is True
        assert vllm.request_options("completions")["logprobs"] == 0
        assert vllm.request_options("generate")["sampling_params"] == {"logprobs": 0}
        assert sglang.request_options() == {"return_logprob": True, "return_prompt_token_ids": True}
        assert sglang.request_options("chat")["return_meta_info"] is True
        assert sglang.request_options("chat", stream=True)["return_output_ids_in_sglext"] is True
        assert sglang.request_options("completions")["return_token_ids"] is True
        assert llama_cpp.request_options()["n_probs"] == 1
        assert responses.request_options() == {"return_token_id_information": True}

    def test_streams_are_asked_to_count(self) -> None:
        """The usage at the end of a stream shows what was lost on the way."""
        for options in (vllm.request_options(stream=True), sglang.request_options("completions", stream=True)):
            assert options["stream"] is True
            assert options["stream_options"] == {"include_usage": True}
        assert sglang.request_options(stream=True)["stream"] is True
        assert llama_cpp.request_options(stream=True)["stream"] is True

    @pytest.mark.parametrize("engine", [vllm, sglang], ids=lambda engine: engine.ENGINE)
    def test_an_unknown_endpoint_is_named(self, engine: Any) -> None:
        """A misspelt endpoint gets no options of another one."""
        with pytest.raises(ValueError, match=r"endpoint 'chats' is not known, there are .*chat"):
            engine.request_options("chats")

    def test_options_are_the_callers_own(self) -> None:
        """Changing what was returned changes nothing for others."""
        vllm.request_options("generate")["sampling_params"]["logprobs"] = 5

        assert vllm.request_options("generate")["sampling_params"] == {"logprobs": 0}

    @pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
    def test_every_engine_has_the_same_names(self, engine: Any) -> None:
        """Whoever knows one file knows all."""
        names = ("request_options", "entry_from_response", "StreamAssembler", "refusal_from_response")

        assert [name for name in names if not callable(getattr(engine, name, None))] == []
        assert "Read: " in engine.__doc__
