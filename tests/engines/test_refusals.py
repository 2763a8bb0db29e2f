"""A refusal before generation is told from a lost call."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import attrs
import pytest

from tests.engines.dialects import DIALECTS, SMALL
from tokenstore.engines import llama_cpp, responses, sglang, vllm
from tokenstore.errors import EngineFailureError

ENGINES = (vllm, sglang, responses, llama_cpp)
TOO_LONG = "context_length_exceeded"

VLLM_LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens: a secret"
VLLM = {"error": {"message": VLLM_LONG, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
SGLANG = {
    "object": "error",
    "message": "Requested token count exceeds the model's maximum context length of 40960 tokens.",
    "type": "BadRequest",
    "param": None,
    "code": 400,
}
LLAMA = {
    "error": {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
}
OPENAI = {"error": {"message": "too long", "type": "invalid_request_error", "code": TOO_LONG}}
UNKNOWN = {"error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": None, "code": 404}}


@attrs.frozen
class HttpxLike:
    """Stands in for a response of httpx or requests."""

    status_code: int
    content: bytes


@attrs.frozen
class AiohttpLike:
    """Stands in for a response of aiohttp, whose body can only be awaited."""

    status: int
    content: object = None


class OpenAiLikeError(Exception):
    """Stands in for an exception of the openai client, which holds the error object itself."""

    def __init__(self, status_code: int, body: object) -> None:
        super().__init__("Error code")
        self.status_code = status_code
        self.body = body


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
@pytest.mark.parametrize(
    ("response", "status", "code"),
    [
        (VLLM, 400, TOO_LONG),
        (VLLM, None, TOO_LONG),
        (SGLANG, None, TOO_LONG),
        (LLAMA, 400, TOO_LONG),
        (OPENAI, 400, TOO_LONG),
        (UNKNOWN, None, "NotFoundError"),
        (json.dumps(UNKNOWN), 404, "NotFoundError"),
        (json.dumps(UNKNOWN).encode(), 404, "NotFoundError"),
        (HttpxLike(400, json.dumps(VLLM).encode()), None, TOO_LONG),
        (HttpxLike(413, b"<html>"), None, "http_413"),
        (AiohttpLike(422), None, "http_422"),
        (OpenAiLikeError(400, VLLM["error"]), None, TOO_LONG),
        (OpenAiLikeError(401, None), None, "http_401"),
        ({"detail": [{"msg": "field required"}]}, 422, "http_422"),
        ({"error": "input too long: maximum context length"}, 400, TOO_LONG),
        (None, 429, "http_429"),
        ("", 400, "http_400"),
    ],
)
def test_a_refusal_is_told_with_its_code(engine: Any, response: Any, status: int | None, code: str) -> None:
    """Any 4xx is a refusal, in any wrapping; its code is a word of the engine's, never its message."""
    refusal = engine.refusal_from_response(response, model_call_id="c", status=status)

    assert (refusal.model_call_id, refusal.code) == ("c", code)


NAN = {"object": "error", "message": "Out of range float values are not JSON compliant: nan", "code": 400}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
@pytest.mark.parametrize(
    ("response", "status"),
    [
        (VLLM, 500),
        (VLLM, 200),
        (VLLM, 408),
        (VLLM, 499),
        (NAN, 400),
        (NAN, None),
        ({"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}, None),
        (HttpxLike(503, b""), None),
        (TimeoutError(), None),
        (None, None),
        ({"error": {"code": True}}, None),
        (DIALECTS["vllm chat"].whole(SMALL), 400),
        *[(dialect.whole(SMALL), None) for dialect in DIALECTS.values()],
        *[(json.dumps(dialect.whole(SMALL)), 200) for dialect in DIALECTS.values()],
    ],
)
def test_everything_else_is_none(engine: Any, response: Any, status: int | None) -> None:
    """A server that broke, a time-out, a good answer, and an error made of what was generated are no refusals."""
    assert engine.refusal_from_response(response, model_call_id="c", status=status) is None


def test_a_refusal_in_a_stream_is_told_by_its_error() -> None:
    """SGLang refuses inside a stream; the error that `feed` raises is asked about like a body."""
    assembler = sglang.StreamAssembler(rollout_id="r", model_call_id="c")
    with pytest.raises(EngineFailureError) as caught:
        assembler.feed(b'data: {"error":{"message":"longer than the context length","type":"x","code":400}}\n\n')

    refusal = sglang.refusal_from_response(caught.value, model_call_id="c")

    assert refusal is not None
    assert refusal.code == TOO_LONG


def test_a_failure_after_tokens_is_no_refusal() -> None:
    """An error behind the first ids is a lost call, whatever its status."""
    assembler = vllm.StreamAssembler(rollout_id="r", model_call_id="c")
    for chunk in DIALECTS["vllm chat"].chunks(SMALL, [2])[:2]:
        assembler.feed(chunk)
    with pytest.raises(EngineFailureError) as caught:
        assembler.feed(VLLM)

    assert caught.value.generated == 2
    assert vllm.refusal_from_response(caught.value, model_call_id="c") is None


@pytest.mark.parametrize("name", ["vllm chat", "sglang generate, cumulative", "responses", "llama.cpp"])
def test_a_failure_beside_an_answer_is_no_refusal(name: str) -> None:
    """An error in an answer that holds something generated is a lost call, whatever its status."""
    dialect = DIALECTS[name]
    body = {**dialect.whole(SMALL), "error": {"message": "m", "code": 400, "type": "BadRequestError"}}
    event = {"type": "response.failed", "response": body} if name == "responses" else body

    for read in (dialect.read, lambda spoken, _: dialect.read_stream(spoken, [event])):
        with pytest.raises(EngineFailureError) as caught:
            read(SMALL, body)

        assert (caught.value.status, caught.value.generated) == (400, 1)
        assert dialect.engine.refusal_from_response(caught.value, model_call_id="c") is None


def test_messages_are_not_kept() -> None:
    """An engine's message may quote the prompt; neither the code nor an error repeats it."""
    with pytest.raises(EngineFailureError) as caught:
        vllm.entry_from_response(VLLM, rollout_id="r", model_call_id="c")

    assert "secret" not in str(caught.value)
    odd = {"error": {"type": "a secret", "code": "x" * 500, "message": "a secret"}}
    refusal = vllm.refusal_from_response(odd, model_call_id="c", status=400)
    assert refusal is not None
    assert refusal.code == "http_400"


SAID: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "text": (vllm, {"id": "i", "choices": [{"index": 0, "delta": {"content": "a"}}]}),
    "reasoning": (sglang, {"id": "i", "choices": [{"index": 0, "delta": {"reasoning_content": "a"}}]}),
    "a tool call": (vllm, {"id": "i", "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}),
    "a completion": (vllm, {"id": "i", "choices": [{"index": 0, "text": "a"}]}),
    "content": (llama_cpp, {"content": "a", "stop": False}),
    "a delta": (responses, {"type": "response.output_text.delta", "delta": "a"}),
    "an item": (responses, {"type": "response.output_item.added", "item": {}}),
}
NOTHING: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "a role": (vllm, {"id": "i", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    "a beginning": (responses, {"type": "response.created", "response": {}}),
}


@pytest.mark.parametrize("name", [*SAID, *NOTHING])
def test_text_without_ids_was_generated(name: str) -> None:
    """An error after text, reasoning or a call is no refusal, though no id had come; after the mere beginning it is."""
    module, event = {**SAID, **NOTHING}[name]
    assembler = module.StreamAssembler(rollout_id="r", model_call_id="c")
    assembler.feed(event)

    with pytest.raises(EngineFailureError) as caught:
        assembler.feed({"type": "error", "error": {"message": "m", "code": 400, "type": "BadRequestError"}})

    refusal = module.refusal_from_response(caught.value, model_call_id="c")
    assert (refusal is None) == (name in SAID)
