"""Every form of every engine through the proxy: the client gets what the engine sent, the store what it generated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from uuid import uuid4

import attrs
import httpx
import pytest

from tests.engines.dialects import Body
from tests.engines.samples import parsed as sample_of
from tests.engines.samples import read, sample
from tests.engines.test_wire import LENT, READABLE, REFUSED
from tests.serve.engine import calls
from tests.serve.proxies import Running
from tokenstore.codec import loads
from tokenstore.serve.settings import EngineKind
from tokenstore.testing import first_difference

PATHS: dict[str, tuple[EngineKind, str]] = {
    "vllm chat": ("vllm", "/v1/chat/completions"),
    "vllm completions": ("vllm", "/v1/completions"),
    "vllm generate": ("vllm", "/inference/v1/generate"),
    "sglang generate, cumulative": ("sglang", "/generate"),
    "sglang generate, deltas": ("sglang", "/generate"),
    "sglang chat": ("sglang", "/v1/chat/completions"),
    "sglang completions": ("sglang", "/v1/completions"),
    "responses": ("responses", "/v1/responses"),
    "llama.cpp": ("llama_cpp", "/completion"),
}
"""The kind of engine that speaks a form, and the endpoint."""
ASKED: dict[str, Body] = {
    "vllm chat": {"logprobs": True, "return_token_ids": True},
    "vllm completions": {"logprobs": 1, "stream_options": {"include_usage": True}},
    "vllm generate": {"sampling_params": {"logprobs": 0}},
    "sglang generate, deltas": {"return_logprob": True},
    "sglang chat": {"logprobs": True},
    "responses": {"return_token_id_information": True},
    "llama.cpp": {"return_tokens": True},
}
"""What a client may ask for itself."""
KINDS: dict[str, EngineKind] = {"vllm": "vllm", "sglang": "sglang", "responses": "responses", "llama_cpp": "llama_cpp"}
PROMPTS = {
    "/v1/completions": "prompt",
    "/inference/v1/generate": "token_ids",
    "/generate": "input_ids",
    "/completion": "prompt",
}
"""Where a request holds the prompt's ids, by endpoint."""
WITHHELD = {
    "vllm/chat_token_id_strings_prompt_logprobs.json": "gives no prompt ids, and a chat request cannot hold any",
    "sglang/generate_abort_partial.json": "was aborted",
}
"""Samples that can be read, but not with what the proxy knows."""


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client that keeps its connections."""
    with httpx.Client(timeout=30) as client:
        yield client


def body_for(name: str, number: int, **more: Any) -> Body:
    """Make a request, with the prompt's ids where an engine takes them."""
    field = PROMPTS.get(PATHS[name][1])
    return {"model": f"form/{name}/{number}", **({field: calls()[number].prompt} if field else {}), **more}


def parsed(response: httpx.Response) -> Any:
    """Read an answer: its JSON, or the JSON of each event."""
    assert response.status_code == 200, response.text
    if not response.headers["content-type"].startswith("text/event-stream"):
        return loads(response.content)
    assert response.text.endswith("\n\n")
    events = [event.removeprefix("data: ") for event in response.text.strip().split("\n\n")]
    return [event if event == "[DONE]" else loads(event) for event in events]


def without_arrays(value: Any) -> Any:
    """Take the arrays off a response."""
    if isinstance(value, list):
        return [without_arrays(element) for element in value]
    if not isinstance(value, dict):
        return value
    arrays = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}
    return {key: without_arrays(inner) for key, inner in value.items() if key not in arrays}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param((), id="whole"),
        pytest.param(("asking", "stream"), id="asking stream"),
        pytest.param(("stream",), id="stream", marks=pytest.mark.kernel),
        pytest.param(("asking",), id="asking", marks=pytest.mark.kernel),
    ],
)
@pytest.mark.parametrize("name", PATHS)
def test_the_client_gets_what_the_engine_sent(
    name: str,
    how: tuple[str, ...],
    engine: str,
    proxy_of: Callable[[EngineKind], Running],
    client: httpx.Client,
) -> None:
    """With the proxy between a client gets the same as without it, and the store has ids and log probabilities."""
    kind, path = PATHS[name]
    rollout_id = f"r-{uuid4().hex}"
    body = body_for(name, 1, stream="stream" in how, **(ASKED.get(name, {}) if "asking" in how else {}))
    proxy = proxy_of(kind)

    direct = parsed(client.post(engine + path, json=body))
    response = client.post(f"{proxy.url}/rollouts/{rollout_id}{path}", json=body)

    given_always = name == "responses" and "asking" not in how  # there it is a setting of the server
    assert parsed(response) == (without_arrays(direct) if given_always else direct)
    (entry,) = proxy.settled(rollout_id).entries
    assert calls()[1].same(entry)
    assert entry.model_call_id == response.headers["x-model-call-id"]


SHARE = 1 if os.environ.get("TOKENSTORE_WIRE_CALLS") == "all" else 4
"""Each form takes one recorded call in so many, the next form the next ones: all of them take minutes."""


@pytest.mark.kernel
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PATHS)
def test_every_call_that_the_engine_knows(
    name: str, engine: str, proxy_of: Callable[[EngineKind], Running], client: httpx.Client
) -> None:
    """Recorded calls, in every form, whole and streamed: the client gets the same, the store token for token."""
    kind, path = PATHS[name]
    proxy, rollout_id = proxy_of(kind), f"r-{uuid4().hex}"
    made: dict[str, int] = {}

    for number in range(list(PATHS).index(name) % SHARE, len(calls()), SHARE):
        for stream in (False, True):
            body = body_for(name, number, stream=stream)
            direct = parsed(client.post(engine + path, json=body))
            response = client.post(f"{proxy.url}/rollouts/{rollout_id}{path}", json=body)
            assert parsed(response) == (without_arrays(direct) if name == "responses" else direct), (number, stream)
            made[response.headers["x-model-call-id"]] = number

    snapshot = proxy.settled(rollout_id)
    assert [entry.model_call_id for entry in snapshot.entries] == list(made)
    wrong = [entry.model_call_id for entry in snapshot.entries if not calls()[made[entry.model_call_id]].same(entry)]
    assert (wrong, snapshot.incomplete) == ([], False)


@pytest.mark.parametrize("name", [name for name in READABLE if name not in WITHHELD])
def test_samples_are_stored_as_their_reader_reads_them(
    name: str, proxy_of: Callable[[EngineKind], Running], client: httpx.Client
) -> None:
    """A sample of the wire is in the store as the engine's file reads it."""
    sample(name)
    module, about = READABLE[name]
    if about.get("prompt_token_ids") == LENT:
        about = {"prompt_token_ids": sample_of(LENT)["choices"][0]["prompt_token_ids"]}
    path = path_of(name, module)
    prompt = {PROMPTS[path]: about["prompt_token_ids"]} if about else {}
    proxy, rollout_id = proxy_of(KINDS[module.ENGINE]), f"r-{uuid4().hex}"

    response = client.post(f"{proxy.url}/rollouts/{rollout_id}{path}", json={"model": f"wire/{name}", **prompt})

    assert parsed(response)
    snapshot = proxy.settled(rollout_id)
    (entry,) = snapshot.entries
    wanted = attrs.evolve(read(module, name, **about), rollout_id=rollout_id, model_call_id=entry.model_call_id)
    assert first_difference(wanted, entry) is None
    assert not snapshot.incomplete


@pytest.mark.parametrize("name", dict.fromkeys([*REFUSED, *WITHHELD]))
def test_samples_that_cannot_be_read_are_withheld(
    name: str, proxy_of: Callable[[EngineKind], Running], client: httpx.Client
) -> None:
    """A sample that cannot be trusted gives the client an error before its end, and masks the rollout."""
    sample(name)
    module = REFUSED[name][0] if name in REFUSED else READABLE[name][0]
    proxy, rollout_id, path = proxy_of(KINDS[module.ENGINE]), f"r-{uuid4().hex}", path_of(name, module)
    url = f"{proxy.url}/rollouts/{rollout_id}{path}"

    if name.endswith(".json"):
        assert client.post(url, json={"model": f"wire/{name}"}).json()["error"]["code"] == "answer_not_capturable"
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(url, json={"model": f"wire/{name}"})

    snapshot = proxy.settled(rollout_id)
    assert (snapshot.entries, snapshot.refusals) == ((), ())
    assert [reason.partition(":")[0] for reason in snapshot.incomplete_reasons] == ["marked", "lost_call"]


def path_of(name: str, module: ModuleType) -> str:
    """Find the endpoint whose form a sample has."""
    stem = name.partition("/")[2]
    if module.ENGINE in ("vllm", "sglang"):
        words = {"completions": "/v1/completions", "inference": "/inference/v1/generate", "generate": "/generate"}
        return words.get(stem.partition("_")[0], "/v1/chat/completions")
    return {"responses": "/v1/responses", "llama_cpp": "/completion"}[module.ENGINE]
