"""vLLM: `/v1/chat/completions`, `/v1/completions` and `/inference/v1/generate`, whole and streamed.

Read: the protocol classes of vllm 0.33.0. Whole answers have every key, nulls included; of streams, keys come and go.

* Chat and token generation give prompt ids at the root, completions on the choice, all of them only with
  `return_token_ids`; without it pass the ids that you sent as `prompt_token_ids`.
* With `return_tokens_as_token_ids` each log probability names its own id, which must be the one in `token_ids`.
* Log probabilities are clamped to -9999.0. Those are kept, and counted in `extra["clamped_log_probs"]`.
* NaN is an HTTP error in a whole answer, and null in a stream. Both are refused.
* `routed_experts` is a `.npy` file in base64, one row fewer than there are tokens. It is kept as it is.
* Whether log probabilities are raw or processed depends on `--logprobs-mode` of the server; say so as `logprobs_mode`.
* With `include_reasoning=false` a stream hides ids, which the `usage` of its last chunk shows: it is refused.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

from tokenstore.engines.answer import entry_of
from tokenstore.engines.call import About, Call, options_of
from tokenstore.engines.choices import read_answer
from tokenstore.engines.deltas import ChoiceAssembler
from tokenstore.engines.failures import refusal_in
from tokenstore.engines.values import parsed
from tokenstore.records import RefusalRecord, TokenEntry

ENGINE = "vllm"

_OPTIONS: dict[str, dict[str, Any]] = {
    "chat": {"logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True},
    "completions": {"logprobs": 0, "return_tokens_as_token_ids": True},
    "generate": {"sampling_params": {"logprobs": 0}},
}


def request_options(
    endpoint: Literal["chat", "completions", "generate"] = "chat", *, stream: bool = False
) -> dict[str, Any]:
    """Say what to ask vLLM for.

    Args:
        endpoint: Of `/v1/chat/completions`, `/v1/completions` or `/inference/v1/generate`.
        stream: The answer will be streamed; its last chunk then counts the tokens.

    Returns:
        Members of the request's body; with the openai client, its `extra_body` (and `stream=True` beside it). A
        `sampling_params` among them, for `generate`, is to be merged into yours.

    Raises:
        ValueError: There is no such endpoint; the message names those that there are.
    """
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    ids = {"return_token_ids": True, "return_weight_versions": True}
    return {**options_of(_OPTIONS, endpoint), **ids, **streamed}


def entry_from_response(response: Any, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> TokenEntry:
    """Make an entry of a whole answer.

    Args:
        response: Parsed JSON, JSON text, or an object with `model_dump`, such as the openai client gives.
        rollout_id: The rollout.
        model_call_id: The call, as given to `begin_call`.
        about: `prompt_token_ids` that were sent, `sampling`, `logprobs_mode`, `accept_aborted`, `extra`: see `Call`.

    Raises:
        EngineAnswerError: The answer cannot be trusted; the kind and the message say why. Mark the rollout incomplete.
    """
    call = Call(engine=ENGINE, rollout_id=rollout_id, model_call_id=model_call_id, **about)
    return entry_of(call, read_answer(call, parsed(call, response)))


class StreamAssembler(ChoiceAssembler):
    """Makes an entry of a streamed answer: `feed` it each chunk, then ask for `entry()`. Arguments as above."""

    engine = ENGINE


def refusal_from_response(response: Any, *, model_call_id: str, status: int | None = None) -> RefusalRecord | None:
    """Tell whether vLLM refused a call before it generated anything: see `failures` for what counts.

    Args:
        response: The body, a response of httpx or requests, an exception of the openai client, or the
            `EngineFailureError` that a stream raised.
        model_call_id: The call.
        status: The HTTP status, if the response does not carry it.

    Returns:
        What to pass to `refuse_call`, or None: without an entry, the call is lost.
    """
    return refusal_in(response, model_call_id=model_call_id, status=status)
