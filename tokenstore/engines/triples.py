"""SGLang's `meta_info`: counts, and lists of `[log prob, id]` with or without a third element, the text.

`input_token_logprobs` begins at `logprob_start_len`, so it carries the end of a prompt; None stands for what is before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tokenstore.engines.answer import Carrier
from tokenstore.engines.call import Call
from tokenstore.engines.values import ids_of, kind, list_of, log_probs_of, optional_count, path


@attrs.frozen(kw_only=True)
class Meta:
    """What a `meta_info` says about tokens."""

    prompt_tokens: int | None
    """How long the prompt was; an abort does not say."""
    completion_tokens: int | None
    """How many ids there are, in a stream so far."""
    logprobs_length: int | None
    """How many log probabilities there are, in a stream so far."""
    input_ids: list[int] | None
    """Ids of the end of the prompt."""
    ids: list[int] | None
    """Generated ids, in a stream all or the new ones."""
    log_probs: list[float] | None
    """Their log probabilities."""

    def prompts(self, where: str) -> list[Carrier]:
        """Give the prompt as far as it is known, None where it is not."""
        if not self.input_ids or self.prompt_tokens is None:
            return []
        unknown = [None] * (self.prompt_tokens - len(self.input_ids))
        return [(path(where, "input_token_logprobs"), [*unknown, *self.input_ids])]


def read_meta(call: Call, meta: Mapping[str, Any], where: str) -> Meta:
    """Read the token part of a `meta_info`.

    Raises:
        EngineAnswerError: It holds what is no id, no log probability or no count.
    """
    triples = _triples(call, meta, "output_token_logprobs", where)
    field = path(where, "output_token_logprobs")
    inputs = _triples(call, meta, "input_token_logprobs", where)
    return Meta(
        prompt_tokens=optional_count(call, meta, "prompt_tokens", where),
        completion_tokens=optional_count(call, meta, "completion_tokens", where),
        logprobs_length=optional_count(call, meta, "output_token_logprobs_length", where),
        input_ids=None if inputs is None else ids_of(call, inputs[1], path(where, "input_token_logprobs")),
        ids=None if triples is None else ids_of(call, triples[1], field),
        log_probs=None if triples is None else log_probs_of(call, triples[0], field),
    )


def _triples(call: Call, meta: Mapping[str, Any], key: str, where: str) -> tuple[list[Any], list[Any]] | None:
    """Take log probabilities and ids apart, not looking at either."""
    if meta.get(key) is None:
        return None
    field = path(where, key)
    entries = list_of(call, meta[key], field)
    for at, entry in enumerate(entries):
        if not isinstance(entry, list | tuple) or len(entry) not in (2, 3):
            call.wrong(f"{field}[{at}]", f"is {kind(entry)}, it must be [log prob, id] or [log prob, id, text]")
    return [entry[0] for entry in entries], [entry[1] for entry in entries]
