"""What the engine is asked for in the client's name, and what cannot be asked for; events and their redaction."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenstore.engines import vllm
from tokenstore.errors import EngineFailureError
from tokenstore.serve.asking import Plan, plan_of
from tokenstore.serve.endpoints import CHAT, COMPLETIONS, ENDPOINTS, GENERATE, RESPONSES, TOKENS_IN
from tokenstore.serve.frames import Frames, OversizeError, data_of
from tokenstore.serve.outcomes import failure_code
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.redaction import event_without, tree_of, without
from tokenstore.serve.settings import EngineKind, ProxySettings


def plan(asked: Any, kind: EngineKind = "vllm", path: str = CHAT) -> Plan:
    """Plan a request."""
    return plan_of(ENDPOINTS[kind][path], json.dumps(asked).encode())


def sent(asked: Any, kind: EngineKind = "vllm", path: str = CHAT) -> dict[str, Any]:
    """Give what the engine is asked."""
    body: dict[str, Any] = json.loads(plan(asked, kind, path).body)
    return body


def test_the_engines_options_are_added() -> None:
    """What gives ids and log probabilities is asked for beside what the client asks."""
    asked = {"model": "m", "logprobs": None, "return_token_ids": False}

    assert sent(asked) == {"model": "m", **vllm.request_options("chat")}


def test_what_the_client_asked_for_stays() -> None:
    """Numbers of alternatives, options of streams and the like stay as the client sent them."""
    asked = {"logprobs": True, "top_logprobs": 5, "stream": True, "stream_options": {"continuous_usage_stats": True}}

    found = sent(asked)

    assert found["top_logprobs"] == 5
    assert found["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert "return_tokens_as_token_ids" not in found  # the client wants texts
    assert sent({"logprobs": 0, "prompt": "p"}, path=COMPLETIONS)["logprobs"] == 0


def test_keys_keep_their_order() -> None:
    """Tools are written into the prompt as they come, so the order of keys is the client's."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}, "description": "d"}}

    body = plan({"tools": [tool], "model": "m"}).body

    assert json.dumps(tool, separators=(",", ":")).encode() in body


@pytest.mark.parametrize(
    ("asked", "kind", "path"),
    [
        ({"n": 2}, "vllm", CHAT),
        ({"n": "2"}, "vllm", CHAT),
        ({"n": 0}, "vllm", CHAT),
        ({"best_of": 2, "prompt": "p"}, "vllm", COMPLETIONS),
        ({"prompt": ["a", "b"]}, "vllm", COMPLETIONS),
        ({"prompt": [[1], [2]]}, "vllm", COMPLETIONS),
        ({"prompt": [True]}, "vllm", COMPLETIONS),
        ({"sampling_params": {"n": 2}, "token_ids": [1]}, "vllm", TOKENS_IN),
        ({"sampling_params": {}, "token_ids": "text"}, "vllm", TOKENS_IN),
        ({"text": ["a", "b"]}, "sglang", GENERATE),
        ({"sampling_params": [{}, {}]}, "sglang", GENERATE),
        ({"prompt": "text"}, "llama_cpp", "/completion"),
        ({"prompt": [1], "post_sampling_probs": True}, "llama_cpp", "/completion"),
        ([], "vllm", CHAT),
        ("text", "vllm", CHAT),
    ],
)
def test_what_cannot_be_captured_is_refused(asked: Any, kind: EngineKind, path: str) -> None:
    """Several samples, several prompts, and a prompt without ids where ids are needed are turned away."""
    with pytest.raises(ProxyError) as caught:
        plan(asked, kind, path)

    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("asked", "kind", "path"),
    [
        ({"stream": "false"}, "vllm", CHAT),
        ({"stream": "true"}, "vllm", CHAT),
        ({"stream": 1}, "sglang", CHAT),
        ({"stream": 0}, "vllm", RESPONSES),
        ({"stream": []}, "llama_cpp", "/completion"),
        ({"logprobs": "false"}, "vllm", CHAT),
        ({"logprobs": 0}, "sglang", CHAT),
        ({"return_token_ids": 0}, "vllm", COMPLETIONS),
        ({"return_logprob": [True]}, "sglang", GENERATE),
        ({"return_tokens": "on", "prompt": [1]}, "llama_cpp", "/completion"),
        ({"stream": True, "stream_options": {"include_usage": "no"}}, "vllm", CHAT),
    ],
)
def test_what_is_on_or_off_is_a_boolean(asked: Any, kind: EngineKind, path: str) -> None:
    """A flag that is neither true nor false is turned away by its name: engines do not agree on what it means."""
    with pytest.raises(ProxyError, match=r"must be true or false") as caught:
        plan(asked, kind, path)

    assert (caught.value.status, caught.value.code) == (400, "invalid_request")
    assert str(caught.value).split()[0] in json.dumps(asked)


@pytest.mark.parametrize("value", [None, False, True])
def test_whether_to_stream_is_read_as_engines_do(value: bool | None) -> None:
    """An answer is streamed if that was asked for by `true`."""
    asked = plan({"stream": value})

    assert asked.stream is (value is True)
    assert ("stream_options" in json.loads(asked.body)) is asked.stream


def test_what_is_of_the_wrong_type_stays() -> None:
    """What the client sent in the place of an object of options goes on to the engine, which says what is wrong."""
    assert sent({"sampling_params": "x", "token_ids": [1]}, path=TOKENS_IN)["sampling_params"] == "x"
    assert sent({"sampling_params": None, "token_ids": [1]}, path=TOKENS_IN)["sampling_params"]["logprobs"] == 0


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"n": 1, "n": 2}', b'{"a": NaN}', b'{"a": ' + b"[" * 100_000, b'{"a": "\\ud800"}'],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """A body that cannot be read, or not be written again, is turned away, two members of one name too."""
    with pytest.raises(ProxyError) as caught:
        plan_of(ENDPOINTS["vllm"][CHAT], body)

    assert caught.value.code == "invalid_json"


def test_nothing_is_changed_in_place() -> None:
    """What was taken out of an answer is still in the answer, of which the entry is made."""
    answer = {"choices": [{"token_ids": [1], "text": "t"}, {"text": "u"}], "prompt_token_ids": [2], "id": "i"}
    before = json.dumps(answer)

    shown = without(answer, tree_of([("choices", "*", "token_ids"), ("prompt_token_ids",), ("other", "x")]))

    assert shown == {"choices": [{"text": "t"}, {"text": "u"}], "id": "i"}
    assert json.dumps(answer) == before
    assert without(answer, tree_of([("other",), ("id", "x")])) is answer


def test_an_event_that_only_counts_is_left_out() -> None:
    """A stream's event that held nothing but what the proxy had asked for does not reach the client."""
    tree = tree_of([("usage",)])

    assert event_without({"choices": [], "usage": {}}, tree) is None
    assert event_without({"choices": [], "id": "i"}, tree) == {"choices": [], "id": "i"}
    assert event_without({"choices": [{}], "usage": None}, tree) == {"choices": [{}]}


@given(
    st.lists(st.sampled_from([b"data: {}\n\n", b": c\r\n\r\n", b"event: e\ndata: a\ndata: b\n\n"]), max_size=6),
    st.lists(st.integers(0, 120), max_size=6),
)
def test_events_come_whole_however_they_are_cut(events: list[bytes], cuts: list[int]) -> None:
    """Whatever the pieces, the same events come, each with all its bytes."""
    body = b"".join(events)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    frames = Frames(1000)

    found = [frame for a, b in pairwise(edges) for frame in frames.feed(body[a:b])]

    assert found == events
    assert frames.end() == b""


def test_an_event_without_an_end_is_too_large() -> None:
    """What grows without an end is given up at the limit, and what is no event's line is told."""
    frames = Frames(10)

    assert frames.feed(b"data: 1\n\ndata: 2") == [b"data: 1\n\n"]
    with pytest.raises(OversizeError):
        frames.feed(b"345678")
    with pytest.raises(ValueError, match="a line"):
        data_of(b"data: 1\n{}\n\n")


@pytest.mark.parametrize(("generated", "code"), [(0, "http_503"), (1, None)])
def test_no_room_after_status_200_is_a_refusal_without_ids(generated: int, code: str | None) -> None:
    """An error that names 503 in a stream is a refusal before the first id, and a loss after it."""
    failure = EngineFailureError("vllm", status=503, code="error", generated=generated)

    assert failure_code(vllm, "c", failure) == code


@pytest.mark.parametrize("engine", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_engines_url_may_be_the_clients(engine: str) -> None:
    """The URL may end as people write it for clients."""
    assert ProxySettings(engine=engine).engine == "http://h:1"


def test_no_setting_shows_the_token() -> None:
    """The token is in no representation."""
    assert "abcdefgh" not in repr(ProxySettings(engine="http://h", control_token="abcdefgh" * 2))
