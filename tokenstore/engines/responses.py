"""Responses of NeMo Gym's model servers, and its chat messages: three arrays on exactly one item.

Read: `nemo_gym/token_id_capture/records.py` and `responses_api_models/vllm_model` of nemo-gym 0.7.0.

* `prompt_token_ids`, `generation_token_ids` and `generation_log_probs`, all or none, on one item of `output` or one
  message of `choices`; `routed_experts` may be with them. They are taken off; `token_item_index` says where they were.
* A whole episode, whose items carry several calls, is no answer of one call and is refused with their number. So are
  three empty arrays, which a server without ids gives: they carry nothing.
* `usage` must count the same call. Responses name it `input_tokens` and `output_tokens`.
* A stream carries the whole response in its last event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from tokenstore.engines.answer import TOKEN_FIELDS, Answer, entry_of, usage_counts
from tokenstore.engines.call import About, Call
from tokenstore.engines.choices import read_answer, read_bundle, response_id
from tokenstore.engines.failures import raise_failure, refusal_in
from tokenstore.engines.streams import Assembler
from tokenstore.engines.values import list_of, object_of, optional_object, parsed, text_of, time_of
from tokenstore.records import RefusalRecord, TokenEntry

ENGINE = "responses"

_ENDED = {"response.completed", "response.incomplete"}
_FAILED = {"response.failed", "error"}


def request_options() -> dict[str, Any]:
    """Say what makes a NeMo Gym model server give ids: a setting of the server, which requests cannot ask for.

    Returns:
        Members of the `vllm_model` section of its configuration.
    """
    return {"return_token_id_information": True}


def entry_from_response(response: Any, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> TokenEntry:
    """Make an entry of a response, or of a chat completion whose message carries the arrays.

    Args:
        response: Parsed JSON, JSON text, or an object with `model_dump`, such as NeMo Gym and the openai client give.
        rollout_id: The rollout.
        model_call_id: The call, as given to `begin_call`.
        about: `prompt_token_ids` that were sent, `sampling`, `logprobs_mode`, `accept_aborted`, `extra`: see `Call`.

    Raises:
        EngineAnswerError: The answer cannot be trusted; the kind and the message say why. Mark the rollout incomplete.
    """
    call = Call(engine=ENGINE, rollout_id=rollout_id, model_call_id=model_call_id, **about)
    return entry_of(call, _read(call, parsed(call, response)))


class StreamAssembler(Assembler):
    """Makes an entry of a streamed response: `feed` it each event, then ask for `entry()`. Arguments as above."""

    engine = ENGINE

    def __init__(self, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> None:
        super().__init__(rollout_id=rollout_id, model_call_id=model_call_id, **about)
        self._response: Mapping[str, Any] | None = None

    def _generated(self) -> int:
        return 0

    def _take(self, event: Mapping[str, Any], where: str) -> None:
        kind = text_of(self._call, event, "type", where)
        if kind is None:
            self._call.wrong(f"{where}.type", "is not there; is this the stream of another engine?")
        if self._response is not None:
            self._call.wrong(where, "comes after the end of the response: two streams were mixed")
        if kind in _FAILED:
            response = optional_object(self._call, event, "response", where)
            error = response.get("error") or {**event, "type": None}
            self._check({"error": error, "output": response.get("output")})
        if kind in _ENDED:
            self._response = object_of(self._call, event.get("response"), f"{where}.response")

    def _answer(self) -> Answer:
        if self._response is None:
            self._call.unfinished("response.completed", f"is not among {self._chunks} events", events=self._chunks)
        return _read(self._call, self._response)


def refusal_from_response(response: Any, *, model_call_id: str, status: int | None = None) -> RefusalRecord | None:
    """Tell whether the server refused a call before it generated anything: see `failures` for what counts.

    Args:
        response: The body, a response of httpx or requests, an exception of the openai client, or the
            `EngineFailureError` that a stream raised.
        model_call_id: The call.
        status: The HTTP status, if the response does not carry it.

    Returns:
        What to pass to `refuse_call`, or None: without an entry, the call is lost.
    """
    return refusal_in(response, model_call_id=model_call_id, status=status)


def _read(call: Call, body: Any) -> Answer:
    root = object_of(call, body, "answer")
    raise_failure(call, root, generated=0)
    if root.get("output") is None and root.get("choices") is not None:
        return read_answer(call, root)
    if root.get("output") is None:
        call.wrong("output", "is not there, nor are choices; is this the answer of another engine?")
    items = [object_of(call, item, f"output[{at}]") for at, item in enumerate(list_of(call, root["output"], "output"))]
    counts = usage_counts(call, root.get("usage"), "usage", ("input_tokens", "output_tokens"))
    finish_reason = _finish(call, root)
    index = _carrier(call, items)
    found = read_bundle(call, items[index], f"output[{index}]")
    return Answer(
        finished=True,
        finish_reason=finish_reason,
        prompts=found.prompts,
        ids=found.ids,
        log_probs=found.log_probs,
        prompt_counts=counts[0],
        counts=counts[1],
        model=text_of(call, root, "model") or "",
        response_id=response_id(call, root),
        created_at=time_of(call, root, "created" if root.get("created_at") is None else "created_at"),
        items=[{key: value for key, value in item.items() if key not in TOKEN_FIELDS} for item in items],
        item_index=index,
        routed_experts=items[index].get("routed_experts"),
    )


def _carrier(call: Call, items: Sequence[Mapping[str, Any]]) -> int:
    """Find the one item that carries token arrays."""
    carriers = [at for at, item in enumerate(items) if any(item.get(key) is not None for key in TOKEN_FIELDS)]
    if not carriers:
        problem = f"none of {len(items)} items carries token arrays; the server needs return_token_id_information"
        call.missing("output", problem, items=len(items), carriers=0)
    if len(carriers) > 1:
        problem = f"{len(carriers)} of {len(items)} items carry token arrays, one does for one call"
        call.wrong("output", problem, items=len(items), carriers=len(carriers))
    return carriers[0]


def _finish(call: Call, root: Mapping[str, Any]) -> str | None:
    """Give why a response ended, None if nothing out of the ordinary is said."""
    status = text_of(call, root, "status")
    if status in (None, "completed"):
        return None
    if status != "incomplete":
        call.unfinished("status", f"is {status!r}, the response did not end")
    details = optional_object(call, root, "incomplete_details")
    return text_of(call, details, "reason", "incomplete_details") or "incomplete"
