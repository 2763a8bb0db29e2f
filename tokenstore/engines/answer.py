"""What was found in an answer, and the one way from there to an entry: every rule that all engines share.

A carrier is a place that holds the same list as others: all carriers must agree, so that ids and log probabilities
never come from two sources that differ. Prompts may be carried in part, with None at what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import attrs

from tokenstore.engines.call import Call
from tokenstore.engines.values import count_of, ids_of, kind, list_of, object_of
from tokenstore.records import TokenEntry

Carrier = tuple[str, Sequence[Any]]
"""A field of the answer and the list that it holds."""

TOKEN_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"})
"""What an item carries beside its content; the entry holds it once, so it is taken off."""
FLOORS = frozenset({-9999.0, -3.4028234663852886e38})
"""What vLLM and llama.cpp write for minus infinity."""


@attrs.frozen(kw_only=True)
class Answer:
    """What an engine's file found in an answer."""

    finished: bool
    """The engine said that it was done."""
    finish_reason: str | None = None
    """Why, in the engine's word."""
    prompts: Sequence[Carrier] = ()
    """Prompt ids, from each place that has them."""
    ids: Sequence[Carrier] = ()
    """Generated ids, from each place that has them."""
    log_probs: Sequence[Carrier] = ()
    """Their log probabilities, from each place that has them."""
    prompt_counts: Mapping[str, int] = attrs.field(factory=dict)
    """How many prompt ids the engine says there are, by field."""
    counts: Mapping[str, int] = attrs.field(factory=dict)
    """How many generated ids the engine says there are, by field."""
    model: str = ""
    """The model's name."""
    response_id: str | None = None
    """The engine's id of the answer."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    items: list[dict[str, Any]] = attrs.field(factory=list)
    """The content, without token arrays."""
    item_index: int | None = None
    """Which item carried the token arrays, or would have."""
    routed_experts: Any = None
    """Routing of a mixture of experts, as given."""
    weight_version: str | None = None
    """The weights, if the engine names one version."""
    weight_versions: Any = None
    """Spans of versions over the generated ids."""
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    """More that goes into `extra`."""


def entry_of(call: Call, answer: Answer) -> TokenEntry:
    """Make an entry of what was found, or refuse.

    Raises:
        EngineAnswerError: A rule is broken; the kind says which, the message has the numbers.
        InvalidEntryError: What the caller passed cannot be stored.
        InvalidRolloutIdError: The rollout id cannot name files.
    """
    _check_end(call, answer)
    given: list[Carrier] = []
    if call.prompt_token_ids is not None:
        given = [("prompt_token_ids=", ids_of(call, call.prompt_token_ids, "prompt_token_ids="))]
    prompt = _prompt(call, [*answer.prompts, *given], answer.prompt_counts)
    ids = agreed(call, answer.ids)
    log_probs = agreed(call, answer.log_probs)
    ids, log_probs = _pair(call, ids, log_probs, answer.counts)
    _check_counts(call, len(prompt), answer.prompt_counts, "prompt ids")
    _check_counts(call, len(ids), answer.counts, "generated ids")
    return TokenEntry(
        rollout_id=call.rollout_id,
        model_call_id=call.model_call_id,
        prompt_token_ids=prompt,
        generation_token_ids=ids,
        generation_log_probs=log_probs,
        model=answer.model,
        routed_experts=answer.routed_experts,
        output_items=answer.items,
        token_item_index=answer.item_index,
        response_id=answer.response_id,
        created_at=answer.created_at,
        extra=_extra(call, answer, ids, log_probs),
    )


def agreed(call: Call, carriers: Sequence[Carrier]) -> list[Any] | None:
    """Give the list that all carriers hold, None if there is no carrier that holds it whole.

    Raises:
        DisagreeingAnswerError: Two of them differ; the message has both fields and the numbers.
    """
    whole = next((carrier for carrier in carriers if None not in carrier[1]), None)
    first = whole or next(iter(carriers), None)
    for other in carriers:
        if first is not None and other is not first:
            _compare(call, first, other)
    return None if whole is None else list(whole[1])


def usage_counts(
    call: Call, usage: Any, field: str = "usage", names: tuple[str, str] = ("prompt_tokens", "completion_tokens")
) -> tuple[dict[str, int], dict[str, int]]:
    """Give the counts of prompt and generated ids in a `usage` object, empty if it is null.

    Raises:
        EngineAnswerError: A count is missing or no int.
        DisagreeingAnswerError: The total is not their sum.
    """
    if usage is None:
        return {}, {}
    found = object_of(call, usage, field)
    prompt, generated = (count_of(call, found.get(name), f"{field}.{name}") for name in names)
    total = found.get("total_tokens")
    if total is not None and count_of(call, total, f"{field}.total_tokens") != prompt + generated:
        problem = f"total_tokens is {total}, but {names[0]} and {names[1]} are {prompt} and {generated}"
        call.disagree(field, problem, total=total, prompt=prompt, generated=generated)
    return {f"{field}.{names[0]}": prompt}, {f"{field}.{names[1]}": generated}


def content_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Make an item of a message: its token arrays off, a type and a role on."""
    kept = {key: value for key, value in message.items() if key not in TOKEN_FIELDS}
    return {"type": "message", "role": "assistant", **kept}


def _check_end(call: Call, answer: Answer) -> None:
    numbers = {
        "generation_token_ids": max((len(ids) for _, ids in answer.ids), default=0),
        "generation_log_probs": max((len(values) for _, values in answer.log_probs), default=0),
    }
    seen = f"{numbers['generation_token_ids']} ids and {numbers['generation_log_probs']} log probs"
    if not answer.finished:
        call.unfinished("finish_reason", f"is not there, so the answer was cut; it holds {seen}", **numbers)
    if answer.finish_reason == "abort" and not call.accept_aborted:
        problem = f"is 'abort', the answer holds {seen}; accept_aborted=True takes them"
        call.unfinished("finish_reason", problem, **numbers)


def _compare(call: Call, one: Carrier, other: Carrier) -> None:
    (field, values), (other_field, others) = one, other
    if len(values) != len(others):
        problem = f"holds {len(others)} values, {field} holds {len(values)}"
        call.disagree(other_field, problem, **{field: len(values), other_field: len(others)})
    if list(values) == list(others):
        return
    for at, (value, another) in enumerate(zip_longest(values, others)):
        if value != another and value is not None and another is not None:
            call.disagree(f"{other_field}[{at}]", f"differs from {field}[{at}]", position=at)


def _prompt(call: Call, carriers: Sequence[Carrier], counts: Mapping[str, int]) -> list[int]:
    prompt = agreed(call, carriers)
    expected = next(iter(counts.values()), None)
    numbers = {} if expected is None else {"prompt_tokens": expected}
    if prompt is None:
        known = max((sum(value is not None for value in ids) for _, ids in carriers), default=0)
        problem = f"the answer holds {known} of {'its' if expected is None else expected} prompt ids"
        remedy = "ask for them with request_options(), or pass prompt_token_ids="
        call.missing("prompt_token_ids", f"{problem}; {remedy}", known=known, **numbers)
    if not prompt:
        problem = (
            f"are 0{'' if expected is None else f' (the engine counts {expected})'}; no engine works without a prompt"
        )
        call.missing("prompt_token_ids", problem, known=0, **numbers)
    return prompt


def _pair(
    call: Call, ids: list[int] | None, log_probs: list[float] | None, counts: Mapping[str, int]
) -> tuple[list[int], list[float]]:
    said = next(iter(counts.values()), None)
    numbers = {} if said is None else {"completion_tokens": said}
    told = "" if said is None else f" (the engine counts {said})"
    if ids is None:
        has = 0 if log_probs is None else len(log_probs)
        problem = f"the answer holds no generated ids, but {has} log probs{told}; ask with request_options()"
        call.missing("generation_token_ids", problem, generation_log_probs=has, **numbers)
    if log_probs is None and ids:
        problem = f"the answer holds no log probs for {len(ids)} generated ids{told}; ask with request_options()"
        call.missing("generation_log_probs", problem, generation_token_ids=len(ids), **numbers)
    values = log_probs or []
    if len(ids) != len(values):
        problem = f"the answer holds {len(values)} log probs for {len(ids)} generated ids{told}"
        lengths = {"generation_token_ids": len(ids), "generation_log_probs": len(values)}
        call.disagree("generation_log_probs", problem, **lengths, **numbers)
    return ids, values


def _check_counts(call: Call, length: int, counts: Mapping[str, int], what: str) -> None:
    for field, count in counts.items():
        if count != length:
            call.disagree(field, f"is {count}, but there are {length} {what}", counted=count, found=length)


def _extra(call: Call, answer: Answer, ids: list[int], log_probs: list[float]) -> dict[str, Any]:
    clamped = 0 if FLOORS.isdisjoint(log_probs) else sum(value in FLOORS for value in log_probs)
    said = {
        **_weights(call, answer, len(ids)),
        **({"finish_reason": answer.finish_reason} if answer.finish_reason is not None else {}),
        **({"clamped_log_probs": clamped} if clamped else {}),
        **answer.facts,
    }
    passed = {
        **({"sampling": dict(call.sampling)} if call.sampling is not None else {}),
        **({"logprobs_mode": call.logprobs_mode} if call.logprobs_mode is not None else {}),
    }
    extra = call.extra or {}
    _same(call, said, passed, "of the answer differs from the one that was passed")
    _same(call, passed, extra, "is passed twice, by itself and in extra, and differs")
    _same(call, said, extra, "of the answer differs from the one that was passed in extra")
    return {**said, **passed, **extra}


def _same(call: Call, one: Mapping[str, Any], other: Mapping[str, Any], problem: str) -> None:
    for key in one.keys() & other.keys():
        if one[key] != other[key]:
            call.disagree(key, problem)


def _weights(call: Call, answer: Answer, length: int) -> dict[str, Any]:
    """Check that spans of weight versions cover the ids without a gap, and name the version if it is one."""
    if answer.weight_versions is None:
        return {} if answer.weight_version is None else {"weight_version": answer.weight_version}
    spans = [
        object_of(call, span, f"weight_versions[{at}]")
        for at, span in enumerate(list_of(call, answer.weight_versions, "weight_versions"))
    ]
    reached = 0
    for at, span in enumerate(spans):
        start, end = (count_of(call, span.get(key), f"weight_versions[{at}].{key}") for key in ("start", "end"))
        if not isinstance(span.get("version"), str):
            call.wrong(f"weight_versions[{at}].version", f"is {kind(span.get('version'))}, it must be a string")
        if start != reached or end < start:
            problem = f"spans {start} to {end}, but the spans before it end at {reached}"
            call.disagree(f"weight_versions[{at}]", problem, start=start, end=end)
        reached = end
    if reached != length:
        problem = f"cover {reached} of {length} generated ids"
        call.disagree("weight_versions", problem, covered=reached, found=length)
    versions = {span["version"] for span in spans}
    one = {"weight_version": versions.pop()} if len(versions) == 1 else {}
    return {**one, "weight_versions": [dict(span) for span in spans]}
