"""Bounds: giant bodies, too many calls at once, and numbers without tokens or text."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from tests.serve.proxies import running
from tests.serve.test_outcomes import CHAT, ask, wait_until
from tokenstore.serve import settling
from tokenstore.serve.exchange import Reply
from tokenstore.serve.meters import Meters
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
