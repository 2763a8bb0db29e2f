"""llama.cpp's server: `/completion`, whole and streamed.

Read: answers constructed after `tools/server/server-task.cpp` of llama.cpp, 2026; there is no wheel to read.

* `tokens` and `completion_probabilities` both name the ids; they must agree.
* The prompt comes back as text, so pass the ids that you sent as `prompt_token_ids`, of which `tokens_evaluated` is the
  number. A prompt that the server truncated is refused.
* `logprob` is of the model's own distribution, hence `logprobs_mode` is raw. With `post_sampling_probs` there is `prob`
  in its place, between 0 and 1, which is refused.
* Probability 0 is written as -3.4028234663852886e38. It is kept, and counted in `extra["clamped_log_probs"]`.
* After a stopping word the server leaves its tokens out of the probabilities, not out of the ids: refused with both
  numbers. Stop at an end token instead.
* A stream brings what is new; `tokens_predicted` counts all so far, so that a lost chunk shows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tokenstore.engines.answer import Answer, Carrier, agreed, content_of, entry_of
from tokenstore.engines.call import About, Call
from tokenstore.engines.choices import counted
from tokenstore.engines.failures import raise_failure, refusal_in
from tokenstore.engines.streams import Assembler
from tokenstore.engines.values import (
    ids_of,
    list_of,
    log_probs_of,
    object_of,
    optional_count,
    optional_object,
    parsed,
    text_of,
)
from tokenstore.records import RefusalRecord, TokenEntry

ENGINE = "llama_cpp"

_PROBABILITIES = "completion_probabilities"


def request_options(*, stream: bool = False) -> dict[str, Any]:
    """Say what to ask llama.cpp for; send the prompt as a list of ids, and keep it for `prompt_token_ids`.

    Args:
        stream: The answer will be streamed.

    Returns:
        Members of the request's body.
    """
    return {"return_tokens": True, "n_probs": 1, "post_sampling_probs": False, **({"stream": True} if stream else {})}


def entry_from_response(response: Any, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> TokenEntry:
    """Make an entry of a whole answer.

    Args:
        response: Parsed JSON, JSON text, or an object with `model_dump`.
        rollout_id: The rollout.
        model_call_id: The call, as given to `begin_call`.
        about: `prompt_token_ids` that were sent, `sampling`, `logprobs_mode`, `extra`: see `Call`.

    Raises:
        EngineAnswerError: The answer cannot be trusted; the kind and the message say why. Mark the rollout incomplete.
    """
    call = Call(engine=ENGINE, rollout_id=rollout_id, model_call_id=model_call_id, **about)
    root = object_of(call, parsed(call, response), "answer")
    raise_failure(call, root, generated=0)
    ids, log_probs = _tokens(call, root, "")
    text = text_of(call, root, "content") or ""
    return entry_of(call, _answer(call, root, ids=ids, log_probs=log_probs, text=text))


class StreamAssembler(Assembler):
    """Makes an entry of a streamed answer: `feed` it each chunk, then ask for `entry()`. Arguments as above."""

    engine = ENGINE

    def __init__(self, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> None:
        super().__init__(rollout_id=rollout_id, model_call_id=model_call_id, **about)
        self._ids: list[int] = []
        self._log_probs: list[float] = []
        self._texts: list[str] = []
        self._last: Mapping[str, Any] = {}

    def _generated(self) -> int:
        return len(self._ids)

    def _take(self, event: Mapping[str, Any], where: str) -> None:
        call = self._call
        if self._last.get("stop"):
            call.wrong(where, "comes after the last chunk: two streams were mixed", chunks=self._chunks)
        carried, probabilities = _tokens(call, event, f"{where}.")
        ids, log_probs = agreed(call, carried) or [], agreed(call, probabilities) or []
        if len(ids) != len(log_probs):
            lengths = {
                "generation_token_ids": len(self._ids) + len(ids),
                "generation_log_probs": len(self._log_probs) + len(log_probs),
            }
            call.disagree(where, f"brings {len(ids)} ids and {len(log_probs)} log probs", **lengths)
        self._ids += ids
        self._log_probs += log_probs
        self._texts.append(text_of(call, event, "content", where) or "")
        self._last = {**self._last, **event}
        counted_so_far = optional_count(call, event, "tokens_predicted", where)
        if counted_so_far is not None and counted_so_far != len(self._ids):
            problem = f"is {counted_so_far}, but {len(self._ids)} ids have come: a chunk was lost or doubled"
            call.disagree(f"{where}.tokens_predicted", problem, counted=counted_so_far, found=len(self._ids))

    def _answer(self) -> Answer:
        ids: list[Carrier] = [("tokens of all chunks", self._ids)]
        log_probs: list[Carrier] = [(f"{_PROBABILITIES} of all chunks", self._log_probs)]
        return _answer(self._call, self._last, ids=ids, log_probs=log_probs, text="".join(self._texts))


def refusal_from_response(response: Any, *, model_call_id: str, status: int | None = None) -> RefusalRecord | None:
    """Tell whether llama.cpp refused a call before it generated anything: see `failures` for what counts.

    Args:
        response: The body, a response of httpx or requests, or the `EngineFailureError` that a stream raised.
        model_call_id: The call.
        status: The HTTP status, if the response does not carry it.

    Returns:
        What to pass to `refuse_call`, or None: without an entry, the call is lost.
    """
    return refusal_in(response, model_call_id=model_call_id, status=status)


def _tokens(call: Call, root: Mapping[str, Any], where: str) -> tuple[list[Carrier], list[Carrier]]:
    """Take the ids, from both places, and the log probabilities of an answer or a chunk."""
    ids: list[Carrier] = []
    if root.get("tokens") is not None:
        ids.append((f"{where}tokens", ids_of(call, root["tokens"], f"{where}tokens")))
    if root.get(_PROBABILITIES) is None:
        return ids, []
    field = f"{where}{_PROBABILITIES}"
    entries = [
        object_of(call, entry, f"{field}[{at}]") for at, entry in enumerate(list_of(call, root[_PROBABILITIES], field))
    ]
    for at, entry in enumerate(entries):
        if "prob" in entry:
            call.wrong(f"{field}[{at}].prob", "is a probability after sampling; ask with post_sampling_probs false")
    ids.append((field, ids_of(call, [entry.get("id") for entry in entries], field)))
    log_probs = [entry.get("logprob") for entry in entries]
    return ids, [(field, log_probs_of(call, log_probs, field))]


def _answer(call: Call, root: Mapping[str, Any], *, ids: list[Carrier], log_probs: list[Carrier], text: str) -> Answer:
    if root.get("truncated"):
        call.disagree("truncated", "is true: the model was given less than the prompt that was sent")
    settings = optional_object(call, root, "generation_settings")
    facts: dict[str, Any] = {"logprobs_mode": "raw"}
    if settings and call.sampling is None:
        facts["sampling"] = dict(settings)
    return Answer(
        finished=root.get("stop") is True,
        finish_reason=text_of(call, root, "stop_type"),
        ids=ids,
        log_probs=log_probs,
        prompt_counts=counted("tokens_evaluated", optional_count(call, root, "tokens_evaluated")),
        counts=counted("tokens_predicted", optional_count(call, root, "tokens_predicted")),
        model=text_of(call, root, "model") or "",
        items=[content_of({"content": text})],
        item_index=0,
        facts=facts,
    )
