"""Answers in the form of OpenAI's, with the ids that engines add: one reader for whole answers and stream chunks.

| where | prompt ids | generated ids | log probabilities |
|---|---|---|---|
| root | `prompt_token_ids`, in one more list with TensorRT-LLM | | |
| choice | `prompt_token_ids` | `token_ids`, SGLang's `response_token_ids` | |
| choice, `logprobs.content[]` | | `token` as `"token_id:<n>"`, or an int `token_id` | `logprob` |
| choice, `logprobs` of completions | | `tokens[]` as `"token_id:<n>"` | `token_logprobs[]` |
| message | `prompt_token_ids` | `generation_token_ids` | `generation_log_probs` |
| SGLang's `meta_info` of a choice | | `output_token_logprobs[]` | `output_token_logprobs[]` |
| SGLang's `sglext` at the root | `input_ids` | `output_ids`, a list for each choice | |

`prompt_logprobs`, `top_logprobs`, `bytes` and `text_offset` are not read: none of them says what was sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tokenstore.engines.answer import Answer, Carrier, content_of, usage_counts
from tokenstore.engines.call import Call
from tokenstore.engines.failures import raise_failure
from tokenstore.engines.triples import Meta, read_meta
from tokenstore.engines.values import (
    ids_of,
    kind,
    list_of,
    log_probs_of,
    named_ids,
    object_of,
    optional_object,
    path,
    text_of,
    time_of,
)

BUNDLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""What an item or a message carries in NeMo Gym: all three or none."""


@attrs.frozen(kw_only=True)
class Piece:
    """The carriers of one choice, or of one chunk of it."""

    prompts: list[Carrier] = attrs.field(factory=list)
    """Prompt ids."""
    ids: list[Carrier] = attrs.field(factory=list)
    """Generated ids."""
    log_probs: list[Carrier] = attrs.field(factory=list)
    """Log probabilities."""

    def add(self, other: Piece) -> Piece:
        """Give the carriers of both."""
        return Piece(
            prompts=[*self.prompts, *other.prompts],
            ids=[*self.ids, *other.ids],
            log_probs=[*self.log_probs, *other.log_probs],
        )


def read_answer(call: Call, body: Any) -> Answer:
    """Find what a whole answer of chat, completions or token generation holds.

    Raises:
        EngineAnswerError: It is of another form, an error, or of more than one choice.
    """
    root = object_of(call, body, "answer")
    raise_failure(call, root, generated=0)
    choice = single_choice(call, root)
    message = optional_object(call, choice, "message", "choices[0]")
    meta = optional_object(call, choice, "meta_info", "choices[0]")
    metadata = optional_object(call, root, "metadata")
    found = read_root(call, root).add(read_choice(call, choice, "choices[0]"))
    found = found.add(read_bundle(call, message, "choices[0].message"))
    told = read_meta(call, meta, "choices[0].meta_info")
    found = found.add(_piece_of(told, "choices[0].meta_info"))
    prompt_counts, counts = usage_counts(call, root.get("usage"))
    finish_reason = text_of(call, choice, "finish_reason", "choices[0]")
    items = items_of(call, choice, message)
    return Answer(
        finished=finish_reason is not None,
        finish_reason=finish_reason,
        prompts=found.prompts,
        ids=found.ids,
        log_probs=found.log_probs,
        prompt_counts={**prompt_counts, **counted("choices[0].meta_info.prompt_tokens", told.prompt_tokens)},
        counts={**counts, **counted("choices[0].meta_info.completion_tokens", told.completion_tokens)},
        model=text_of(call, root, "model") or "",
        response_id=response_id(call, root),
        created_at=time_of(call, root, "created"),
        items=items,
        item_index=0 if items else None,
        routed_experts=_only(call, "routed_experts", choice, message, meta, optional_object(call, root, "sglext")),
        weight_version=text_of(call, metadata, "weight_version", "metadata"),
        weight_versions=_only(call, "weight_versions", choice, meta, metadata),
    )


def single_choice(call: Call, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the one choice of an answer.

    Raises:
        EngineAnswerError: There is another number of them.
    """
    if root.get("choices") is None:
        call.wrong("choices", "are not there; is this the answer of another engine, or another endpoint?")
    choices = list_of(call, root["choices"], "choices")
    if len(choices) != 1:
        problem = f"are {len(choices)}, one is needed: each would be a sample of its own, so ask for n=1"
        call.wrong("choices", problem, choices=len(choices))
    return object_of(call, choices[0], "choices[0]")


def read_root(call: Call, root: Mapping[str, Any]) -> Piece:
    """Take the carriers of an answer's root; prompt ids in one more list are TensorRT-LLM's form.

    Raises:
        EngineAnswerError: One of them holds what is no id, or is for another number of choices.
    """
    prompts: list[Carrier] = []
    value = root.get("prompt_token_ids")
    if value is not None:
        nested = isinstance(value, list) and len(value) == 1 and isinstance(value[0], list)
        prompts.append(("prompt_token_ids", ids_of(call, value[0] if nested else value, "prompt_token_ids")))
    sglext = optional_object(call, root, "sglext")
    if sglext.get("input_ids") is not None:
        prompts.append(("sglext.input_ids", ids_of(call, sglext["input_ids"], "sglext.input_ids")))
    if sglext.get("output_ids") is None:
        return Piece(prompts=prompts)
    output = list_of(call, sglext["output_ids"], "sglext.output_ids")
    if len(output) != 1:
        call.wrong("sglext.output_ids", f"are of {len(output)} choices, one is needed", choices=len(output))
    return Piece(prompts=prompts, ids=[("sglext.output_ids[0]", ids_of(call, output[0], "sglext.output_ids[0]"))])


def read_choice(call: Call, choice: Mapping[str, Any], where: str) -> Piece:
    """Take the carriers of a choice, whole or a chunk of it.

    Raises:
        EngineAnswerError: One of them holds what is no id or no log probability.
    """
    ids: list[Carrier] = [
        (path(where, key), ids_of(call, choice[key], path(where, key)))
        for key in ("token_ids", "response_token_ids")
        if choice.get(key) is not None
    ]
    prompts: list[Carrier] = []
    if choice.get("prompt_token_ids") is not None:
        field = path(where, "prompt_token_ids")
        prompts = [(field, ids_of(call, choice["prompt_token_ids"], field))]
    logprobs = optional_object(call, choice, "logprobs", where)
    where = path(where, "logprobs")
    found = Piece(prompts=prompts, ids=ids)
    return found.add(_content(call, logprobs, where)).add(_completion(call, logprobs, where))


def read_bundle(call: Call, message: Mapping[str, Any], where: str) -> Piece:
    """Take the three arrays that a message or an item carries in NeMo Gym.

    Raises:
        MissingTokensError: Only some of them are there.
    """
    missing = [key for key in BUNDLE if message.get(key) is None]
    if len(missing) == len(BUNDLE):
        return Piece()
    if missing:
        problem = f"carries {len(BUNDLE) - len(missing)} of 3 token arrays, without {', '.join(missing)}"
        call.missing(where, problem, carried=len(BUNDLE) - len(missing))
    prompt, ids, log_probs = (path(where, key) for key in BUNDLE)
    return Piece(
        prompts=[(prompt, ids_of(call, message[BUNDLE[0]], prompt))],
        ids=[(ids, ids_of(call, message[BUNDLE[1]], ids))],
        log_probs=[(log_probs, log_probs_of(call, message[BUNDLE[2]], log_probs))],
    )


def items_of(call: Call, choice: Mapping[str, Any], message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the content of a choice as items: a chat message, a completion's text, or nothing where only ids came."""
    if message:
        return [content_of(message)]
    text = text_of(call, choice, "text", "choices[0]")
    return [] if text is None else [content_of({"content": text})]


def response_id(call: Call, root: Mapping[str, Any]) -> str | None:
    """Give the engine's id of the answer, under either of its names."""
    return text_of(call, root, "id") or text_of(call, root, "request_id")


def counted(field: str, count: int | None) -> dict[str, int]:
    """Give a count by its field, nothing if the engine gave none."""
    return {} if count is None else {field: count}


def _only(call: Call, key: str, *holders: Mapping[str, Any]) -> Any:
    """Give the value under a key, wherever it is; in several places it must be the same."""
    found = [holder[key] for holder in holders if holder.get(key) is not None]
    if any(other != found[0] for other in found[1:]):
        call.disagree(key, f"is in {len(found)} places, and differs", places=len(found))
    return found[0] if found else None


def _piece_of(meta: Meta, where: str) -> Piece:
    field = path(where, "output_token_logprobs")
    return Piece(
        prompts=meta.prompts(where),
        ids=[] if meta.ids is None else [(field, meta.ids)],
        log_probs=[] if meta.log_probs is None else [(field, meta.log_probs)],
    )


def _content(call: Call, logprobs: Mapping[str, Any], where: str) -> Piece:
    """Read `logprobs.content`, an object for each token."""
    if logprobs.get("content") is None:
        return Piece()
    field = path(where, "content")
    entries = list_of(call, logprobs["content"], field)
    if set(map(type, entries)) - {dict}:
        entries = [object_of(call, entry, f"{field}[{at}]") for at, entry in enumerate(entries)]
    log_probs = [entry.get("logprob") for entry in entries]
    ids = _entry_ids(call, entries, field)
    return Piece(
        ids=[] if ids is None else [(field, ids)],
        log_probs=[(field, log_probs_of(call, log_probs, field))],
    )


def _entry_ids(call: Call, entries: Sequence[Mapping[str, Any]], field: str) -> list[int] | None:
    numbers = [entry["token_id"] for entry in entries if entry.get("token_id") is not None]
    if not numbers:
        return named_ids(call, [entry.get("token") for entry in entries], field)
    if len(numbers) != len(entries):
        problem = f"{len(numbers)} of {len(entries)} entries have a token_id"
        call.wrong(field, problem, with_id=len(numbers), entries=len(entries))
    return ids_of(call, numbers, field)


def _completion(call: Call, logprobs: Mapping[str, Any], where: str) -> Piece:
    """Read `logprobs` of completions, lists side by side."""
    if logprobs.get("token_logprobs") is None:
        return Piece()
    field = path(where, "token_logprobs")
    given = list_of(call, logprobs["token_logprobs"], field)
    if given and given[0] is None:
        problem = f"is null, the first of {len(given)}: with echo the prompt's come first; do not ask for echo"
        call.wrong(f"{field}[0]", problem, log_probs=len(given))
    log_probs = log_probs_of(call, given, field)
    if logprobs.get("tokens") is None:
        call.wrong(
            path(where, "tokens"), f"is {kind(None)} beside {len(log_probs)} log probs", log_probs=len(log_probs)
        )
    tokens = list_of(call, logprobs["tokens"], path(where, "tokens"))
    if len(tokens) != len(log_probs):
        problem = f"are {len(tokens)} beside {len(log_probs)} log probs"
        call.disagree(path(where, "tokens"), problem, tokens=len(tokens), log_probs=len(log_probs))
    ids = named_ids(call, tokens, path(where, "tokens"))
    return Piece(
        ids=[] if ids is None else [(path(where, "tokens"), ids)],
        log_probs=[(field, log_probs)],
    )
