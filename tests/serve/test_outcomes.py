"""What calls come to: refused with proof that nothing was generated, lost otherwise, and what the client hears."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.engines.dialects import DIALECTS
from tests.serve.engine import SHORT
from tests.serve.proxies import Running, call_of, connected, running
from tokenstore import TokenCaptureSnapshot, TokenEntry
from tokenstore.serve.settings import EngineKind

TOO_LONG = {"error": {"message": "This model's maximum context length is 10 tokens", "code": 400}}
CHAT = "/chat/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client that keeps its connections."""
    with httpx.Client(timeout=30) as client:
        yield client


def fresh() -> str:
    """Give a rollout id that nobody used."""
    return f"r-{uuid4().hex}"


def ask(client: httpx.Client, proxy: Running, rollout_id: str, model: str, **more: Any) -> httpx.Response:
    """Ask for a chat completion."""
    return client.post(proxy.base(rollout_id) + CHAT, json={"model": model, "messages": [], **more})


def broken_off(
    client: httpx.Client,
    proxy: Running,
    rollout_id: str,
    model: str,
    after_the_first: Callable[[], None] = lambda: None,
) -> bytes:
    """Read a stream that must break off, and give what came of it."""
    got = b""
    body = {"model": model, "messages": [], "stream": True}
    with client.stream("POST", proxy.base(rollout_id) + CHAT, json=body) as answer:
        pieces = answer.iter_raw()
        try:
            got = next(pieces)
            after_the_first()
            for piece in pieces:
                got += piece
        except httpx.RemoteProtocolError:
            return got
    raise AssertionError(f"the stream ended as if it were whole: {got!r}")


def lost(snapshot: TokenCaptureSnapshot) -> bool:
    """Tell whether a rollout has one call, which was lost."""
    reasons = [reason.partition(":")[0] for reason in snapshot.incomplete_reasons]
    return reasons == ["marked", "lost_call"] and snapshot.entries == () and snapshot.refusals == ()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, TOO_LONG, "context_length_exceeded"),
        (401, {"error": {"message": "m", "type": "AuthenticationError"}}, "AuthenticationError"),
        (404, {"object": "error", "message": "no model", "type": "NotFoundError", "code": 404}, "NotFoundError"),
        (422, {"detail": "x"}, "http_422"),
        (429, {}, "http_429"),
        (503, {}, "http_503"),
        (503, TOO_LONG, "context_length_exceeded"),
    ],
)
def test_a_refusal_costs_nothing(status: int, body: Any, code: str, proxy: Running, client: httpx.Client) -> None:
    """What the engine turned away is a refusal with its code; the client gets the engine's words, and may ask again."""
    rollout_id = fresh()

    refused = ask(client, proxy, rollout_id, f"status/{status}/{json.dumps(body)}")
    again = ask(client, proxy, rollout_id, "form/vllm chat/0")

    assert (refused.status_code, refused.json()) == (status, body)
    assert again.status_code == 200
    snapshot = proxy.settled(rollout_id)
    assert not snapshot.incomplete
    assert [(refusal.model_call_id, refusal.code) for refusal in snapshot.refusals] == [
        (refused.headers["x-model-call-id"], code)
    ]
    assert [entry.model_call_id for entry in snapshot.entries] == [again.headers["x-model-call-id"]]


@pytest.mark.parametrize("status", [408, 499, 500, 502, 504])
def test_without_proof_a_call_is_lost(status: int, proxy: Running, client: httpx.Client) -> None:
    """A status after which something may have been generated masks the rollout; the client gets it as it is."""
    rollout_id = fresh()

    answer = ask(client, proxy, rollout_id, f'status/{status}/{{"error": "e"}}')

    assert (answer.status_code, answer.json()) == (status, {"error": "e"})
    assert lost(proxy.settled(rollout_id))


@pytest.mark.parametrize("status", [400, 503])
def test_a_status_proves_nothing_against_ids(status: int, proxy: Running, client: httpx.Client) -> None:
    """An answer with a choice is no refusal, whatever its status."""
    rollout_id = fresh()
    body = json.dumps(DIALECTS["vllm chat"].whole(SHORT))

    assert ask(client, proxy, rollout_id, f"status/{status}/{body}").status_code == status

    assert lost(proxy.settled(rollout_id))


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("half_answer", "engine_broke_off"),
        ("no_answer", "engine_broke_off"),
        ("redirect", "engine_redirects"),
        ("status/200/{", "answer_not_capturable"),
        ("status/200/[]", "answer_not_capturable"),
        ('status/200/{"choices": []}', "answer_not_capturable"),
    ],
)
def test_a_whole_answer_that_is_none_is_lost(trouble: str, code: str, proxy: Running, client: httpx.Client) -> None:
    """An answer that broke off, leads elsewhere or cannot be read gives 502, and masks the rollout."""
    rollout_id = fresh()

    answer = ask(client, proxy, rollout_id, trouble)

    if trouble == "no_answer":  # the server of the fake answers 500 by itself
        assert answer.status_code == 500
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, code)
        assert answer.headers["x-should-retry"] == "false"
    assert lost(proxy.settled(rollout_id))


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        ("break_off", "engine_broke_off"),
        ("break_off_at_the_end", "engine_broke_off"),
        ("end_early", "answer_not_capturable"),
        ("garbled/{", "answer_not_capturable"),
        ('garbled/{"choices": 7}', "answer_not_capturable"),
        ('garbled/{"choices": [], "choices": []}', "answer_not_capturable"),
        ("garbled_line", "answer_not_capturable"),
        ("fail_later", 500),
    ],
)
def test_a_broken_stream_never_ends_well(trouble: str, code: Any, proxy: Running, client: httpx.Client) -> None:
    """The client of a stream that cannot be stored gets an error event and no end, and the rollout is masked."""
    rollout_id = fresh()

    got = broken_off(client, proxy, rollout_id, trouble)

    events = [json.loads(event.removeprefix("data: ")) for event in got.decode().strip().split("\n\n")]
    assert events[-1]["error"]["code"] == code
    assert not any(choice.get("finish_reason") for event in events for choice in event.get("choices", ()))
    assert b"[DONE]" not in got
    assert b"token_ids" not in got
    assert lost(proxy.settled(rollout_id))


def test_a_refusal_in_a_stream_costs_nothing(proxy: Running, client: httpx.Client) -> None:
    """An error that names a refusal before any id is one, though the status was 200; the client gets the error."""
    rollout_id = fresh()

    with pytest.raises(httpx.RemoteProtocolError):
        ask(client, proxy, rollout_id, "fail_at_once", stream=True)

    snapshot = proxy.settled(rollout_id)
    assert [refusal.code for refusal in snapshot.refusals] == ["context_length_exceeded"]
    assert not snapshot.incomplete


def test_an_error_with_status_200_gets_its_status(proxy: Running, client: httpx.Client) -> None:
    """A whole answer that is an error is given the status that it names, so that no client takes it for an answer."""
    rollout_id = fresh()

    answer = ask(client, proxy, rollout_id, f"status/200/{json.dumps(TOO_LONG)}")

    assert (answer.status_code, answer.json()) == (400, TOO_LONG)
    assert [refusal.code for refusal in proxy.settled(rollout_id).refusals] == ["context_length_exceeded"]


def test_bytes_may_come_one_by_one(proxy: Running, client: httpx.Client) -> None:
    """A stream in the smallest pieces, with comments and the other kind of line ends, is captured as any other."""
    rollout_id = fresh()

    answer = ask(client, proxy, rollout_id, "byte_by_byte", stream=True)

    assert answer.text.startswith(": hello")
    assert "data: [DONE]" in answer.text
    (entry,) = proxy.settled(rollout_id).entries
    assert SHORT.same(entry)


@contextmanager
def alone(proxy_of: Callable[[EngineKind], Running], engine: str, tmp_path: Path, **settings: Any) -> Iterator[Running]:
    """Run a proxy of its own on the same server as the shared one."""
    backend = "trio" if proxy_of("vllm").portal.call(_library) == "trio" else "asyncio"
    with running(backend, engine, tmp_path / "captures", **settings) as found:
        yield found


async def _library() -> str:
    from sniffio import current_async_library  # noqa: PLC0415

    return current_async_library()


def test_an_engine_that_is_down_costs_nothing(
    proxy_of: Callable[[EngineKind], Running], client: httpx.Client, tmp_path: Path
) -> None:
    """Without a connection to the engine the client gets 502 with a clear body, and the call is a refusal."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with alone(proxy_of, nobody, tmp_path) as proxy:
        answers = [ask(client, proxy, "r", "m", stream=stream) for stream in (False, True)]
        passed = client.get(f"{proxy.url}/v1/models")

        snapshot = proxy.settled("r")
    assert [answer.status_code for answer in (*answers, passed)] == [502] * 3
    assert {answer.json()["error"]["code"] for answer in (*answers, passed)} == {"engine_unreachable"}
    assert [refusal.code for refusal in snapshot.refusals] == ["engine_unreachable"] * 2
    assert not snapshot.incomplete


def test_a_silent_engine_loses_the_call(
    proxy_of: Callable[[EngineKind], Running], engine: str, client: httpx.Client, tmp_path: Path
) -> None:
    """An engine that says nothing for longer than is allowed has lost the call, before its answer and in a stream."""
    with alone(proxy_of, engine, tmp_path, engine_timeout=0.2) as proxy:
        whole = ask(client, proxy, "whole", "wait_then_answer")
        with pytest.raises(httpx.RemoteProtocolError):
            ask(client, proxy, "stream", "wait_then_stream", stream=True)

        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "engine_timeout")
        assert lost(proxy.settled("whole"))
        assert lost(proxy.settled("stream"))


@pytest.mark.parametrize("model", ["wait_then_stream", "wait_then_answer"])
def test_a_client_that_leaves_loses_the_call(model: str, proxy: Running, engine: str, client: httpx.Client) -> None:
    """A client that leaves masks the rollout, and the engine is told by its connection."""
    rollout_id = fresh()
    left = client.get(f"{engine}/state").json()["left"]
    body = json.dumps({"model": model, "messages": [], "stream": model.endswith("stream")}).encode()
    with connected(proxy.url) as leaving:
        leaving.sendall(call_of(rollout_id, body))
        wait_until(lambda: client.get(f"{engine}/state").json()["waiting"] > 0)

    wait_until(lambda: client.get(f"{engine}/state").json()["left"] > left)

    wait_until(lambda: proxy.peek(rollout_id).incomplete)
    assert lost(proxy.settled(rollout_id))


def wait_until(true: Callable[[], bool]) -> None:
    """Ask another process again and again; the time limit of the test ends it."""
    while not true():
        pass


def test_a_frozen_rollout_turns_calls_away(proxy: Running, client: httpx.Client, engine: str) -> None:
    """A call of a frozen or retired rollout is turned away before the engine is asked, and told not to be repeated."""
    rollout_id = fresh()
    frozen = proxy.settled(rollout_id)
    client.get(f"{engine}/state")

    late = ask(client, proxy, rollout_id, f"status/418/{rollout_id}")
    proxy.portal.call(lambda: proxy.store.retire([rollout_id]))
    later = ask(client, proxy, rollout_id, f"status/418/{rollout_id}")

    assert [answer.json()["error"]["code"] for answer in (late, later)] == ["rollout_frozen", "rollout_retired"]
    assert {answer.headers["x-should-retry"] for answer in (late, later)} == {"false"}
    assert rollout_id not in client.get(f"{engine}/state").text
    assert frozen.entries == ()


def test_an_answer_that_comes_after_the_freeze_is_withheld(proxy: Running, client: httpx.Client, engine: str) -> None:
    """A rollout that is frozen while the engine generates has lost the call; its client gets no end of the stream."""
    rollout_id = fresh()
    snapshots: list[TokenCaptureSnapshot] = []

    def freeze() -> None:
        snapshots.append(proxy.settled(rollout_id))
        wait_until(lambda: httpx.get(f"{engine}/state").json()["waiting"] > 0)
        httpx.post(f"{engine}/go", json={})

    got = broken_off(client, proxy, rollout_id, "wait_then_stream", after_the_first=freeze)

    assert b'"code":"rollout_frozen"' in got
    assert b"[DONE]" not in got
    assert [reason.partition(":")[0] for reason in snapshots[0].incomplete_reasons] == ["lost_call"]


def test_an_entry_that_the_disk_does_not_take_is_withheld(
    proxy_of: Callable[[EngineKind], Running], engine: str, client: httpx.Client, tmp_path: Path
) -> None:
    """A store that fails at the put gives the client an error in place of the answer."""
    with alone(proxy_of, engine, tmp_path) as proxy:
        assert ask(client, proxy, "r", "form/vllm chat/0").status_code == 200
        file = proxy.store.path_for("r")
        file.unlink()
        file.mkdir()  # what is no file is refused, also where root could write
        answer = ask(client, proxy, "r", "form/vllm chat/0")

    assert answer.status_code >= 500
    assert answer.json()["error"]["type"] == "tokenstore_error"


def test_the_same_word_for_two_calls_makes_two_calls(proxy: Running, client: httpx.Client) -> None:
    """A client's own word for a call is kept in its id, and a retry with the same word is a call of its own."""
    rollout_id = fresh()
    url, named = proxy.base(rollout_id) + CHAT, {"X-Model-Call-Id": "turn-7"}

    answers = [
        client.post(url, json={"model": model, "messages": []}, headers=named)
        for model in ("status/429/{}", "form/vllm chat/0", "form/vllm chat/0")
    ]

    ids = [answer.headers["x-model-call-id"] for answer in answers]
    assert len(set(ids)) == 3
    assert all(call_id.startswith("turn-7.") for call_id in ids)
    snapshot = proxy.settled(rollout_id)
    assert {entry.model_call_id for entry in snapshot.entries} == set(ids[1:])
    assert not snapshot.incomplete


def test_how_ids_were_sampled_is_kept(proxy: Running, client: httpx.Client) -> None:
    """Temperature and its like are stored beside the ids, and the engine gets them as they were sent."""
    rollout_id = fresh()

    assert ask(client, proxy, rollout_id, "form/vllm chat/0", temperature=0.7, top_p=1).status_code == 200

    (entry,) = proxy.settled(rollout_id).entries
    assert isinstance(entry, TokenEntry)
    assert entry.extra["sampling"] == {"temperature": 0.7, "top_p": 1}
