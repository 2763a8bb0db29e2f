"""Which requests generate, for each kind of engine, and how they are captured.

A path that generates for some engine, but cannot be captured with this one, is turned away: an answer without token ids
would be a hole that nobody sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import attrs

from tokenstore.engines import llama_cpp, responses, sglang, vllm
from tokenstore.serve.settings import EngineKind

Path = tuple[str, ...]
"""Where something is in an answer: keys, and `*` for every element of a list."""

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
GENERATE, TOKENS_IN = "/generate", "/inference/v1/generate"

LOST_WITHOUT_TRACE = frozenset(
    {
        "/v1/messages", "/infill", "/api/chat", "/api/generate", "/chat/completions", "/responses", "/invocations",
        "/v1/chat/completions/batch", "/generate_stream", "/generate_from_file", "/vertex_generate",
    }
)  # fmt: skip
"""Other paths by which engines generate, none of which gives ids and log probabilities."""


@attrs.frozen(kw_only=True)
class Endpoint:
    """How one endpoint of an engine is captured."""

    engine: ModuleType
    """Reads its answers."""
    options: Callable[[bool], dict[str, Any]]
    """What to ask for, by whether the answer is streamed."""
    added: Mapping[Path, str]
    """Where an answer holds what was asked for, and the option that asks for it."""
    prompt: str | None = None
    """Member of a request that may hold the prompt's ids."""
    prompt_needed: bool = False
    """The engine does not give the prompt's ids back, so they must be in the request."""


def _below(place: Path, fields: Mapping[str, str]) -> dict[Path, str]:
    return {(*place, field): option for field, option in fields.items()}


_CHOICE: Path = ("choices", "*")
_IDS = "return_token_ids"

_VLLM: dict[Path, str] = {
    ("prompt_token_ids",): _IDS,
    **_below(
        _CHOICE,
        {
            "token_ids": _IDS,
            "prompt_token_ids": _IDS,
            "logprobs": "logprobs",
            "weight_versions": "return_weight_versions",
        },
    ),
}
_VLLM_TOKENS: dict[Path, str] = _below(
    _CHOICE, {"logprobs": "sampling_params.logprobs", "weight_versions": "return_weight_versions"}
)
_SGLANG: dict[Path, str] = {
    ("prompt_token_ids",): "return_prompt_token_ids",
    ("sglext", "input_ids"): "return_input_ids_in_sglext",
    ("sglext", "output_ids"): "return_output_ids_in_sglext",
    **_below(
        _CHOICE,
        {
            "token_ids": _IDS,
            "response_token_ids": _IDS,
            "prompt_token_ids": "return_prompt_token_ids",
            "meta_info": "return_meta_info",
            "logprobs": "logprobs",
        },
    ),
}
_LISTS = ("token_logprobs", "top_logprobs", "token_ids_logprobs")
_SGLANG_GENERATE: dict[Path, str] = {
    ("prompt_token_ids",): "return_prompt_token_ids",
    ("meta_info", "output_token_logprobs_length"): "return_logprob",
    **{("meta_info", f"{side}_{name}"): "return_logprob" for side in ("input", "output") for name in _LISTS},
}
_LLAMA: dict[Path, str] = {("tokens",): "return_tokens", ("completion_probabilities",): "n_probs"}
_ARRAYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
_ITEMS: tuple[Path, ...] = (
    ("output", "*"),
    ("item",),
    ("response", "output", "*"),
    (*_CHOICE, "message"),
    (*_CHOICE, "delta"),
)
_RESPONSES: dict[Path, str] = {(*place, field): "return_token_id_information" for place in _ITEMS for field in _ARRAYS}


def _nothing(_: bool) -> dict[str, Any]:
    return {}  # a setting of the server, which requests cannot ask for


_BY_RESPONSES = Endpoint(engine=responses, options=_nothing, added=_RESPONSES)
_BY_LLAMA = Endpoint(
    engine=llama_cpp,
    options=lambda stream: llama_cpp.request_options(stream=stream),
    added=_LLAMA,
    prompt="prompt",
    prompt_needed=True,
)

ENDPOINTS: dict[EngineKind, dict[str, Endpoint]] = {
    "vllm": {
        CHAT: Endpoint(engine=vllm, options=lambda stream: vllm.request_options("chat", stream=stream), added=_VLLM),
        COMPLETIONS: Endpoint(
            engine=vllm,
            options=lambda stream: vllm.request_options("completions", stream=stream),
            added=_VLLM,
            prompt="prompt",
        ),
        TOKENS_IN: Endpoint(
            engine=vllm,
            options=lambda stream: vllm.request_options("generate", stream=stream),
            added=_VLLM_TOKENS,
            prompt="token_ids",
            prompt_needed=True,
        ),
        RESPONSES: _BY_RESPONSES,
    },
    "sglang": {
        GENERATE: Endpoint(
            engine=sglang,
            options=lambda stream: sglang.request_options("generate", stream=stream),
            added=_SGLANG_GENERATE,
            prompt="input_ids",
        ),
        CHAT: Endpoint(
            engine=sglang, options=lambda stream: sglang.request_options("chat", stream=stream), added=_SGLANG
        ),
        COMPLETIONS: Endpoint(
            engine=sglang,
            options=lambda stream: sglang.request_options("completions", stream=stream),
            added=_SGLANG,
            prompt="prompt",
        ),
        RESPONSES: _BY_RESPONSES,
    },
    "llama_cpp": {"/completion": _BY_LLAMA, "/completions": _BY_LLAMA},
    "responses": {RESPONSES: _BY_RESPONSES, CHAT: _BY_RESPONSES},
}
"""The endpoints that are captured."""

GENERATING = LOST_WITHOUT_TRACE.union(*(known.keys() for known in ENDPOINTS.values()))
"""Every path by which some engine generates."""


def generates(method: str, path: str) -> bool:
    """Tell whether a request generates, with any engine."""
    return method == "POST" and path in GENERATING
