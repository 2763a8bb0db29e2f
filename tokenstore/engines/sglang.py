"""SGLang: `/generate` and the OpenAI-compatible endpoints, whole and streamed.

Read: the protocol classes, `tokenizer_manager` and `serving_chat` of sglang 0.5.23.

* `/generate` gives log probabilities and ids together, as `[log prob, id, text]`; `output_ids` must say the same.
* Prompt ids come with `return_prompt_token_ids`. Without it `input_token_logprobs` serve, if they begin at the first
  token (`logprob_start_len` 0); else pass the ids that you sent as `prompt_token_ids`.
* Streams of `/generate` are cumulative or deltas, told by looking: see `growth`. Chat gives ids in a stream only at its
  end, in `sglext`.
* NaN and infinities are written as null, and refused.
* An abort with a status code is a failure of the engine; without one it holds what was generated, see `accept_aborted`.
* `routed_experts` is base64 of bare bytes. It is kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import attrs

from tokenstore.engines.answer import Answer, Carrier, agreed, content_of, entry_of
from tokenstore.engines.call import About, Call, options_of
from tokenstore.engines.choices import counted, read_answer
from tokenstore.engines.deltas import ChoiceAssembler
from tokenstore.engines.failures import raise_failure, refusal_in, status_in
from tokenstore.engines.growth import Growth, Part
from tokenstore.engines.triples import Meta, read_meta
from tokenstore.engines.values import dumped, ids_of, kind, object_of, optional_object, parsed, text_of
from tokenstore.records import RefusalRecord, TokenEntry

ENGINE = "sglang"

_OPTIONS: dict[str, dict[str, Any]] = {
    "generate": {"return_logprob": True, "return_prompt_token_ids": True},
    "chat": {
        "logprobs": True,
        "return_token_ids": True,
        "return_prompt_token_ids": True,
        "return_meta_info": True,
    },
    "completions": {"logprobs": 0, "return_token_ids": True},
}
_CHAT_STREAM: dict[str, Any] = {
    "logprobs": True,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
}


def request_options(
    endpoint: Literal["generate", "chat", "completions"] = "generate", *, stream: bool = False
) -> dict[str, Any]:
    """Say what to ask SGLang for.

    Args:
        endpoint: Of `/generate`, `/v1/chat/completions` or `/v1/completions`.
        stream: The answer will be streamed; chat then needs other options, since it refuses the usual ones.

    Returns:
        Members of the request's body; with the openai client, its `extra_body` (and `stream=True` beside it).

    Raises:
        ValueError: There is no such endpoint; the message names those that there are.
    """
    whole = options_of(_OPTIONS, endpoint)
    if not stream:
        return whole
    if endpoint == "generate":
        return {**whole, "stream": True}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    return {**(_CHAT_STREAM if endpoint == "chat" else whole), **streamed}


def entry_from_response(response: Any, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> TokenEntry:
    """Make an entry of a whole answer.

    Args:
        response: Parsed JSON, JSON text, or an object with `model_dump`; of `/generate` also a list of one.
        rollout_id: The rollout.
        model_call_id: The call, as given to `begin_call`.
        about: `prompt_token_ids` that were sent, `sampling`, `logprobs_mode`, `accept_aborted`, `extra`: see `Call`.

    Raises:
        EngineAnswerError: The answer cannot be trusted; the kind and the message say why. Mark the rollout incomplete.
    """
    call = Call(engine=ENGINE, rollout_id=rollout_id, model_call_id=model_call_id, **about)
    body = parsed(call, response)
    if isinstance(body, list):
        if len(body) != 1:
            problem = f"is a list of {len(body)}, one is needed: each would be a sample of its own, so ask for n=1"
            call.wrong("answer", problem, answers=len(body))
        body = body[0]
    root = object_of(call, body, "answer")
    if root.get("choices") is not None or root.get("meta_info") is None:
        return entry_of(call, read_answer(call, root))
    raise_failure(call, root, generated=0)
    return entry_of(call, _generate_answer(call, root))


class StreamAssembler(ChoiceAssembler):
    """Makes an entry of a streamed answer: `feed` it each chunk, then ask for `entry()`. Arguments as above."""

    engine = ENGINE

    def __init__(self, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> None:
        super().__init__(rollout_id=rollout_id, model_call_id=model_call_id, **about)
        self._generate: _Generate | None = None

    def _take(self, event: Mapping[str, Any], where: str) -> None:
        if self._generate is None and self._head is None and event.get("meta_info") is not None:
            self._generate = _Generate(self._call)
        if self._generate is not None:
            self._generate.take(event, where)
        else:
            super()._take(event, where)

    def _generated(self) -> int:
        return super()._generated() if self._generate is None else len(self._generate.growth.ids)

    def _answer(self) -> Answer:
        return super()._answer() if self._generate is None else self._generate.answer()


def refusal_from_response(response: Any, *, model_call_id: str, status: int | None = None) -> RefusalRecord | None:
    """Tell whether SGLang refused a call before it generated anything: see `failures` for what counts.

    In a stream SGLang refuses with an error after HTTP 200: pass the `EngineFailureError` that `feed` raised.

    Args:
        response: The body, a response of httpx or requests, an exception of the openai client, or that error.
        model_call_id: The call.
        status: The HTTP status, if the response does not carry it.

    Returns:
        What to pass to `refuse_call`, or None: without an entry, the call is lost.
    """
    return refusal_in(response, model_call_id=model_call_id, status=status)


class _Generate:
    """A stream of `/generate`."""

    def __init__(self, call: Call) -> None:
        self.growth = Growth(call)
        self._call = call
        self._prompts: list[Carrier] = []
        self._last: Mapping[str, Any] = {}
        self._finish: str | None = None

    def take(self, event: Mapping[str, Any], where: str) -> None:
        """Take a chunk."""
        meta = optional_object(self._call, event, "meta_info", where)
        if self._finish is not None:
            self._call.wrong(where, f"comes after the finish_reason {self._finish!r}: two streams were mixed")
        if self._last and text_of(self._call, meta, "id") != text_of(self._call, self._last, "id"):
            self._call.disagree(f"{where}.meta_info.id", "is of another answer: two streams were mixed")
        self._finish = _finish_of(self._call, meta, generated=len(self.growth.ids))
        told = read_meta(self._call, meta, f"{where}.meta_info")
        self._last = {**self._last, **meta}
        self._take_prompt(_prompts_of(self._call, event, told, f"{where}."))
        aborted = self._finish == "abort"
        self.growth.take(
            _part_of(self._call, event, told, where), total=told.completion_tokens, aborted=aborted, where=where
        )
        length = len(self.growth.log_probs or ())
        if told.logprobs_length not in (None, length):
            problem = f"is {told.logprobs_length}, but {length} log probs have come"
            field = f"{where}.meta_info.output_token_logprobs_length"
            self._call.disagree(field, problem, counted=told.logprobs_length or 0, found=length)

    def answer(self) -> Answer:
        """Give what came together."""
        meta = {key: value for key, value in self._last.items() if key != "output_token_logprobs"}
        root = {"text": self.growth.text, "output_ids": self.growth.ids, "meta_info": meta}
        found = _generate_answer(self._call, root)
        log_probs = self.growth.log_probs
        carriers = [] if log_probs is None else [("output_token_logprobs of all chunks", log_probs)]
        counts = {key: count for key, count in found.counts.items() if not key.endswith("_length")}
        return attrs.evolve(found, prompts=self._prompts, log_probs=carriers, counts=counts)

    def _take_prompt(self, prompts: list[Carrier]) -> None:
        if not prompts:
            return
        agreed(self._call, [*self._prompts, *prompts])
        whole = [carrier for carrier in (*self._prompts, *prompts) if None not in carrier[1]]
        self._prompts = (whole or [*self._prompts, *prompts])[:1]


def _part_of(call: Call, event: Mapping[str, Any], told: Meta, where: str) -> Part:
    """Take the tokens of a chunk; ids are beside the log probabilities where there are no `output_ids`."""
    ids = told.ids or []
    if event.get("output_ids") is not None:
        ids = ids_of(call, event["output_ids"], f"{where}.output_ids")
    text = text_of(call, event, "text", where) or ""
    return Part(ids=ids, logged_ids=told.ids or [], log_probs=told.log_probs, text=text)


def _prompts_of(call: Call, root: Mapping[str, Any], told: Meta, where: str = "") -> list[Carrier]:
    prompts = told.prompts(f"{where}meta_info")
    if root.get("prompt_token_ids") is not None:
        field = f"{where}prompt_token_ids"
        prompts.append((field, ids_of(call, root["prompt_token_ids"], field)))
    return prompts


def _generate_answer(call: Call, root: Mapping[str, Any]) -> Answer:
    """Find what an answer of `/generate` holds."""
    meta = object_of(call, root["meta_info"], "meta_info")
    told = read_meta(call, meta, "meta_info")
    finish = _finish_of(call, meta, generated=told.completion_tokens or 0)
    ids: list[Carrier] = []
    if root.get("output_ids") is not None:
        ids.append(("output_ids", ids_of(call, root["output_ids"], "output_ids")))
    if told.ids is not None:
        ids.append(("meta_info.output_token_logprobs", told.ids))
    return Answer(
        finished=finish is not None,
        finish_reason=finish,
        prompts=_prompts_of(call, root, told),
        ids=ids,
        log_probs=[] if told.log_probs is None else [("meta_info.output_token_logprobs", told.log_probs)],
        prompt_counts=counted("meta_info.prompt_tokens", told.prompt_tokens),
        counts={
            **counted("meta_info.completion_tokens", told.completion_tokens),
            **counted("meta_info.output_token_logprobs_length", told.logprobs_length),
        },
        response_id=text_of(call, meta, "id", "meta_info"),
        items=[content_of({"content": text_of(call, root, "text") or ""})],
        item_index=0,
        routed_experts=meta.get("routed_experts"),
        weight_version=text_of(call, meta, "weight_version", "meta_info"),
        weight_versions=meta.get("weight_versions"),
    )


def _finish_of(call: Call, meta: Mapping[str, Any], *, generated: int) -> str | None:
    """Give the type of a finish reason, None if there is none yet.

    Raises:
        EngineFailureError: It is an abort because of an error.
    """
    value = dumped(meta.get("finish_reason"))
    if value is None or isinstance(value, str):
        return value
    reason = object_of(call, value, "meta_info.finish_reason")
    status = status_in(reason.get("status_code"))
    if reason.get("type") == "abort" and status is not None:
        raise_failure(call, {"error": {**reason, "code": status, "type": reason.get("err_type")}}, generated=generated)
    if not isinstance(reason.get("type"), str):
        call.wrong("meta_info.finish_reason.type", f"is {kind(reason.get('type'))}, it must be a string")
    return str(reason["type"])
