"""From the request of a client to the one that the engine gets: its options merged, what cannot be captured refused.

1. What the client asked for stays as it asked; only what is absent, null or false is set.
2. The order of keys stays: chat templates write tools into the prompt as they come.
3. A request that would give several samples is refused: each would be a call of its own.
4. Whether an answer is streamed, and whether it has ids, is asked for by `true`. Some engines read `"false"`, `0` or
   `"yes"` as a boolean too, others do not, so those are refused: engine and proxy would not expect the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tokenstore.codec import dumps, loads
from tokenstore.serve.endpoints import Endpoint, Path
from tokenstore.serve.problems import ProxyError

COUNTS = ("n", "best_of", "num_return_sequences", "n_cmpl")
"""Members of a request that ask for several samples."""
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "max_tokens", "max_completion_tokens", "max_output_tokens",
)  # fmt: skip
"""Members of a request that tell how ids are sampled, kept beside the entry."""
PROMPTS = ("prompt", "text", "input_ids")
"""Members of a request that may hold several prompts."""
_NAMES_IDS = "return_tokens_as_token_ids"
_USAGE: Path = ("usage",)


@attrs.frozen(kw_only=True)
class Plan:
    """What the engine is asked for, and what becomes of its answer."""

    endpoint: Endpoint
    """How the call is captured."""
    body: bytes
    """The request for the engine."""
    stream: bool
    """The answer is to be streamed."""
    hidden: tuple[Path, ...]
    """Where an answer holds what only the proxy asked for."""
    prompt_token_ids: list[int] | None
    """The prompt's ids, if the client sent ids."""
    sampling: Mapping[str, Any]
    """How ids are sampled, as asked."""

    @property
    def about(self) -> dict[str, Any]:
        """What the reader of the answer is told about the call."""
        found: dict[str, Any] = {"prompt_token_ids": self.prompt_token_ids} if self.prompt_token_ids else {}
        return {**found, "sampling": self.sampling} if self.sampling else found


def plan_of(endpoint: Endpoint, body: bytes) -> Plan:
    """Make the engine's request of the client's.

    Raises:
        ProxyError: The request cannot be captured; the message says what to change.
    """
    asked = _parsed(body)
    _check_single(asked)
    _check_flag("stream", asked.get("stream"))
    prompt = _prompt_ids(endpoint, asked)
    stream = asked.get("stream") is True
    options = endpoint.options(stream)
    if wanted(asked.get("logprobs")):
        options.pop(_NAMES_IDS, None)  # it would put ids in the place of the texts that the client asked for
    if wanted(asked.get("post_sampling_probs")) and "post_sampling_probs" in options:
        raise ProxyError(400, "not_capturable", "post_sampling_probs gives no log probabilities; leave it out")
    try:
        sent = dumps(merged(asked, options), sort_keys=False)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ProxyError(400, "invalid_json", "the body holds what cannot be written as JSON again") from error
    return Plan(
        endpoint=endpoint,
        body=sent,
        stream=stream,
        hidden=_hidden(endpoint, asked, stream=stream),
        prompt_token_ids=prompt,
        sampling=_sampling(asked),
    )


def wanted(value: object) -> bool:
    """Tell whether a member of a request asks for something; 0 does, as in `logprobs: 0`."""
    return value is not None and value is not False


def merged(asked: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Add options to a request; what is of the wrong type stays, for the engine to say so.

    Raises:
        ProxyError: An option that is on or off is neither.
    """
    made = dict(asked)
    for key, value in options.items():
        own = asked.get(key)
        if value is True:
            _check_flag(key, own)
        if not wanted(own):
            made[key] = value
        elif isinstance(value, dict) and isinstance(own, dict):
            made[key] = merged(own, value)
    return made


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        asked = loads(body, unique_keys=True)
    except (ValueError, RecursionError) as error:
        raise ProxyError(
            400, "invalid_json", "the body is no well-formed JSON, or has two members of one name"
        ) from error
    if not isinstance(asked, dict):
        raise ProxyError(400, "invalid_json", "the body is no JSON object")
    return asked


def _check_flag(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise ProxyError(400, "invalid_request", f"{name} must be true or false")


def _check_single(asked: Mapping[str, Any]) -> None:
    sampling = asked.get("sampling_params")
    if isinstance(sampling, list):
        raise ProxyError(400, "not_capturable", "sampling_params is a list; send each prompt as a call of its own")
    for holder in (asked, sampling if isinstance(sampling, dict) else {}):
        for name in COUNTS:
            if wanted(holder.get(name)) and holder[name] != 1:
                raise ProxyError(
                    400, "not_capturable", f"{name} must be 1: each sample is a call of its own; send more"
                )
    for name in PROMPTS:
        value = asked.get(name)
        if isinstance(value, list) and value and not _ids(value):
            raise ProxyError(400, "not_capturable", f"{name} is a list of prompts; send each as a call of its own")


def _ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(number) is int for number in value)


def _prompt_ids(endpoint: Endpoint, asked: Mapping[str, Any]) -> list[int] | None:
    value = asked.get(endpoint.prompt) if endpoint.prompt else None
    if isinstance(value, list) and _ids(value):
        return value
    if endpoint.prompt_needed:
        told = f"send {endpoint.prompt} as a list of token ids: this engine does not give a prompt's ids back"
        raise ProxyError(400, "not_capturable", told)
    return None


def _sampling(asked: Mapping[str, Any]) -> dict[str, Any]:
    inner = asked.get("sampling_params")
    found = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    return {**found, **inner} if isinstance(inner, dict) else found


def _hidden(endpoint: Endpoint, asked: Mapping[str, Any], *, stream: bool) -> tuple[Path, ...]:
    """List what the client did not ask for."""
    added = dict(endpoint.added)
    if stream and "stream_options" in endpoint.options(True):
        added[_USAGE] = "stream_options.include_usage"
    return tuple(path for path, option in added.items() if not _asked_for(asked, option))


def _asked_for(asked: Mapping[str, Any], option: str) -> bool:
    value: Any = asked
    for key in option.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return wanted(value)
