"""Bounds: giant bodies, too many calls at once, and numbers without tokens or text."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest

from tests.serve.proxies import call_of, connected, running
from tests.serve.test_outcomes import CHAT, ask, wait_until
from tokenstore.serve import exchange, settling
from tokenstore.serve import running as listeners
from tokenstore.serve.exchange import Message, Reply, Request
from tokenstore.serve.meters import Meters
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.relay import Relay
from tokenstore.serve.routes import route_of
from tokenstore.serve.settings import ProxySettings


def test_a_giant_body_is_turned_away(engine: str, tmp_path: Path) -> None:
    """A body above the limit gets 413, with its length before it or in pieces, and nothing is recorded."""
    with running("asyncio", engine, tmp_path, max_body_bytes=1000) as proxy, httpx.Client() as client:
        url = proxy.base("r") + CHAT
        said = client.post(url, content=b"x" * 1001)
        pieces = client.post(url, content=(b"x" * 100 for _ in range(11)))
        passed = client.post(f"{proxy.url}/tokenize", content=b"x" * 1001)

    assert [answer.status_code for answer in (said, pieces, passed)] == [413] * 3
    assert list(tmp_path.glob("r.*")) == []


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
def test_a_body_that_does_not_come_is_not_waited_for(
    backend: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who announces a body and sends none gets 408 and leaves its place to others, and nothing is recorded."""
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.2)
    with (
        running(backend, engine, tmp_path, max_calls=1) as proxy,
        httpx.Client(timeout=30) as client,
        connected(proxy.url) as slow,
    ):
        slow.sendall(call_of("slow", b"{", length=9))
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
        other = ask(client, proxy, "r", "form/vllm chat/0")

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert other.status_code == 200
    assert list(tmp_path.glob("slow.*")) == []


def slowly(pieces: Iterable[bytes], seconds: float) -> Request:
    """Make a request whose body comes in pieces, with a pause after each."""
    left = iter(pieces)

    async def receive() -> Message:
        if (piece := next(left, None)) is None:
            return {"type": "http.request"}
        await anyio.sleep(seconds)
        return {"type": "http.request", "body": piece, "more_body": True}

    return Request({"method": "POST", "path": "/", "headers": []}, receive)


@pytest.mark.anyio
async def test_a_body_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that comes byte by byte is given up, though it never stands still for long; the client may come again."""
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.2)

    with pytest.raises(ProxyError) as caught:
        await slowly([b"x"] * 1000, 0.01).body(1000)

    assert (caught.value.status, caught.value.code, caught.value.retry) == (408, "body_too_slow", True)


@pytest.mark.anyio
async def test_a_body_that_came_fast_has_not_gained_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends megabytes at once and then stops is not waited for longer than others."""
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.1)
    pieces = iter([b"x" * exchange.BODY_RATE * 600])

    async def receive() -> Message:
        if (piece := next(pieces, None)) is None:
            await anyio.sleep_forever()
        return {"type": "http.request", "body": piece, "more_body": True}

    request = Request({"method": "POST", "path": "/", "headers": []}, receive)
    with anyio.fail_after(30), pytest.raises(ProxyError) as caught:
        await request.body(2**30)

    assert caught.value.code == "body_too_slow"


@pytest.mark.anyio
async def test_a_large_body_has_the_time_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes at a good rate is waited for, though it takes longer than a body may stand still."""
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.5)
    piece = b"x" * exchange.BODY_RATE * 60

    body = await slowly([piece, piece], 0.3).body(len(piece) * 2)

    assert body == piece * 2


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
def test_a_client_that_stops_taking_its_answer_has_left(
    backend: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes nothing of a stream for too long is disconnected: the call is lost and its place is free."""
    monkeypatch.setattr(listeners, "READER_SECONDS", 0.5)
    body = b'{"model": "flood", "messages": [], "stream": true}'
    with running(backend, engine, tmp_path) as proxy, httpx.Client(timeout=30) as client:
        with connected(proxy.url) as stopped:
            stopped.sendall(call_of("r", body))
            wait_until(lambda: proxy.peek("r").incomplete and "marked" in proxy.peek("r").incomplete_reasons[0])
            wait_until(lambda: "in_flight 0\n" in client.get(f"{proxy.url}/metrics").text)

        assert proxy.settled("r").entries == ()


def test_a_giant_answer_is_lost(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event or an answer above the limit is given up, and the rollout is masked."""
    monkeypatch.setattr(settling, "MAX_ANSWER_BYTES", 100_000)
    with running("asyncio", engine, tmp_path) as proxy, httpx.Client() as client:
        whole = ask(client, proxy, "whole", f'status/200/{{"x": "{"x" * 100_000}"}}')
        with pytest.raises(httpx.RemoteProtocolError):
            ask(client, proxy, "stream", "never_ending_event", stream=True)

        assert (whole.status_code, whole.json()["error"]["code"]) == (502, "answer_too_large")
        assert proxy.settled("whole").incomplete
        assert proxy.settled("stream").incomplete


@pytest.mark.anyio
async def test_who_has_the_whole_answer_has_left_its_place() -> None:
    """A call is counted until the last piece of its answer is sent, so a client that asks again at once gets in."""
    meters, nothing = Meters(), cast("Any", None)
    counted: list[int] = []
    relay = Relay(ProxySettings(engine="http://engine", max_calls=1), nothing, nothing, meters)

    async def send(_: object) -> None:
        counted.append(meters.in_flight)

    for _ in range(2):
        reply = Reply(send)
        with relay.admitted(route_of("/rollouts/r/v1/chat/completions", []), reply):
            await reply.start(200, [])
            await reply.write(b"one")
            await reply.end(b"two")

    assert counted == [1, 1, 0] * 2
    assert (meters.in_flight, sum(meters.calls.values())) == (0, 2)


def test_more_calls_than_allowed_are_turned_away(engine: str, tmp_path: Path) -> None:
    """A call above the limit gets 503 before anything is recorded, and may come again; others are not slowed."""
    with running("asyncio", engine, tmp_path, max_calls=1) as proxy, httpx.Client(timeout=30) as client:
        before = client.get(f"{engine}/state").json()["waiting"]
        first = threading.Thread(target=ask, args=(client, proxy, "r", "wait_then_answer"))
        first.start()
        wait_until(lambda: client.get(f"{engine}/state").json()["waiting"] > before)

        second = ask(client, proxy, "s", "form/vllm chat/0")
        passed = client.get(f"{proxy.url}/v1/models")
        client.post(f"{engine}/go", json={})
        first.join()
        third = ask(client, proxy, "s", "form/vllm chat/0")

        assert (second.status_code, second.json()["error"]["code"]) == (503, "too_many_calls")
        assert second.headers["retry-after"]
        assert (passed.status_code, third.status_code) == (200, 200)
        assert not proxy.settled("s").incomplete


def test_metrics_count_and_tell_nothing(engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The metrics are names and numbers alone, and no log line holds tokens or text."""
    caplog.set_level("INFO", "tokenstore")
    with running("asyncio", engine, tmp_path) as proxy, httpx.Client(timeout=30) as client:
        stored = ask(client, proxy, "r", "form/vllm chat/0", user="a-secret-prompt")
        for model in ("status/429/{}", "status/500/{}", "status/200/[]"):
            ask(client, proxy, "r", model)
        ask(client, proxy, "r", "m", n=2)
        client.get(f"{proxy.url}/v1/models")
        text = client.get(f"{proxy.url}/metrics").text

    counts = dict(re.findall(r'calls_total\{outcome="(\w+)"\} (\d+)', text))
    assert counts == {"stored": "1", "refused": "1", "lost": "2", "rejected": "1"}
    assert "tokenstore_proxy_calls_in_flight 0\n" in text
    assert "tokenstore_store_puts_total 1\n" in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in samples if not re.fullmatch(r'\w+(\{(outcome|le)="[\w.+-]+"\})? [0-9.e+-]+', line)] == []
    assert "a-secret-prompt" not in caplog.text
    assert stored.json()["choices"][0]["message"]["content"] not in caplog.text
    assert "stored after" in caplog.text
