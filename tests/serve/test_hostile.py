"""Whatever strange clients and engines send: no call slips by, no answer is whole that is not stored, nothing hangs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, IncompleteRead, RemoteDisconnected
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import cast
from uuid import uuid4

import h2.connection
import h2.events
import httpx
import pytest

from tests.engines.dialects import DIALECTS, body_of
from tests.serve.engine import SHORT
from tests.serve.proxies import Running, connected, running
from tests.serve.test_outcomes import CHAT, ask, wait_until

ASK = json.dumps({"model": "form/vllm chat/0", "messages": []}).encode()


def told(proxy: Running, sent: bytes) -> bytes:
    """Send bytes and read to the end of the connection, which the proxy must close."""
    with connected(proxy.url) as raw:
        raw.sendall(sent)
        return b"".join(iter(lambda: raw.recv(65536), b""))


def head(line: str, *headers: str) -> bytes:
    """Write the head of a request after which the connection is to be closed."""
    return "\r\n".join([f"{line} HTTP/1.1", "host: h", "connection: close", *headers, "", ""]).encode("latin-1")


def status(answer: bytes) -> int:
    """Read the status of an answer."""
    return int(answer.split(b" ", 2)[1])


POST = "POST /rollouts/{}/v1/chat/completions"
PIECES = b"".join(b"1\r\n%c\r\n" % byte for byte in ASK) + b"0\r\n\r\n"
REQUESTS: dict[str, tuple[bytes, int | tuple[int, int], int]] = {
    "HEAD": (head("HEAD /v1/models"), 200, 0),
    "HEAD of a call": (head(POST.replace("POST", "HEAD")), 200, 0),
    "OPTIONS": (head(POST.replace("POST", "OPTIONS")), 200, 0),
    "OPTIONS of everything": (head("OPTIONS *"), 404, 0),
    "another server's target": (head("POST http://other/v1/chat/completions", "content-length: 0"), (400, 404), 0),
    "a byte a chunk": (head(POST, "transfer-encoding: chunked") + PIECES, 200, 1),
    "a length beside chunks": (head(POST, "transfer-encoding: chunked", "content-length: 3") + PIECES, (200, 400), 1),
    "two lengths": (head(POST, "content-length: 3", "content-length: 4") + ASK, 400, 0),
    "no length": (head(POST) + ASK, 400, 0),
    "chunks that are none": (head(POST, "transfer-encoding: chunked") + b"zz\r\n", 400, 0),
    "a compressed body": (head(POST, "content-encoding: gzip", "content-length: 4") + b"\x1f\x8b\x08\x00", 415, 0),
    "a body that says it is not compressed": (
        head(POST, "content-encoding: identity", f"content-length: {len(ASK)}") + ASK,
        200,
        1,
    ),
    "a header by which the rollout is dropped": (
        head("POST /v1/chat/completions", "X-Rollout-Id: {}", "connection: x-rollout-id", f"content-length: {len(ASK)}")
        + ASK,
        200,
        1,
    ),
    "two rollouts": (
        head("POST /v1/chat/completions", "X-Rollout-Id: {}", "x-rollout-id: other", "content-length: 0"),
        400,
        0,
    ),
    "an encoded rollout": (
        head("POST /rollouts/{}%2D%41/v1/chat/completions", f"content-length: {len(ASK)}") + ASK, 200, 1,
    ),
    "a rollout of bytes": (head("POST /rollouts/{}%ff/v1/chat/completions", "content-length: 0"), 400, 0),
    "a rollout with a NUL": (head("POST /rollouts/{}%00/v1/chat/completions", "content-length: 0"), 400, 0),
    "a rollout encoded twice": (head("POST /rollouts/{}%252e/v1/chat/completions", "content-length: 0"), 400, 0),
    "a path of raw bytes": (head("GET /rollouts/{}\xff/v1/models"), 400, 0),
    "a long query": (head(f"{POST}?{'q' * 20_000}", f"content-length: {len(ASK)}") + ASK, 414, 0),
    "a path that grows": (head(f"GET /v1/{'%ff' * 10_000}"), 414, 0),
    "an upgrade": (head("GET /rollouts/{}/v1/realtime", "upgrade: h3", "connection: upgrade"), 200, 0),
    "a call that asks for an upgrade": (
        head(POST, "upgrade: h2c", "connection: HTTP2-Settings, Upgrade", f"content-length: {len(ASK)}") + ASK,
        (400, 200),
        1,
    ),
    "a call in chunks that asks for an upgrade": (
        head(POST, "upgrade: websocket", "connection: Upgrade", "transfer-encoding: chunked") + PIECES,
        (400, 200),
        1,
    ),
    "metrics written": (head("POST /metrics", "content-length: 0"), 404, 0),
    "control by another method": (head("PUT /control/retire", "content-length: 0"), 405, 0),
    "control, encoded": (head("GET /%63ontrol/statistics"), 401, 0),
}  # fmt: skip
"""What a client sends, where `{}` is the rollout; the status that it gets, two where the parsers of the two servers
read differently, and the entries that it leaves if it is answered.
"""


@pytest.mark.parametrize("name", REQUESTS)
def test_strange_requests(name: str, proxy: Running) -> None:
    """A request is a call or is turned away, leaves an entry or nothing, and its connection is closed when it asked."""
    sent, wanted, entries = REQUESTS[name]
    rollout_id = f"r-{uuid4().hex}"

    answer = told(proxy, sent.replace(b"{}", rollout_id.encode(), 1))

    assert status(answer) in (wanted if isinstance(wanted, tuple) else (wanted,)), answer
    named = rollout_id + ("-A" if "encoded rollout" in name else "")
    files = list(proxy.root.glob(f"{rollout_id}*"))
    left = bool(entries) and status(answer) == 200
    assert bool(files) == left
    if left:
        snapshot = proxy.settled(named)
        assert ([SHORT.same(entry) for entry in snapshot.entries], snapshot.incomplete) == ([True], False)


def test_under_uvicorn_an_upgrade_is_told_of_and_is_the_last_request(engine: str, tmp_path: Path) -> None:
    """A body that its parser skips is told of, and a connection that it reads no more is closed after the answer."""
    asks = "host: h\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
    call = f"POST /rollouts/r/v1{CHAT} HTTP/1.1\r\n{asks}content-length: {len(ASK)}\r\n\r\n".encode() + ASK
    with running("asyncio", engine, tmp_path) as proxy:
        answer = told(proxy, call)
        passed = told(proxy, f"GET /v1/models HTTP/1.1\r\n{asks}\r\n".encode())

    assert b'"code":"upgrade"' in answer
    assert (status(answer), status(passed)) == (400, 200)
    assert list(tmp_path.glob("r.*")) == []


@pytest.mark.kernel
@pytest.mark.parametrize(("method", "path"), [("POST", "/rollouts/r/v1/chat/completions"), ("GET", "/v1/models")])
def test_a_request_over_http_2_is_turned_away(method: str, path: str, engine: str, tmp_path: Path) -> None:
    """Of the two servers hypercorn speaks HTTP/2, in which it never ends a stream that was broken off."""
    frames = h2.connection.H2Connection()
    frames.initiate_connection()
    frames.send_headers(1, [(":method", method), (":path", path), (":scheme", "http"), (":authority", "h")])
    frames.send_data(1, ASK, end_stream=True)
    found: dict[bytes, bytes] = {}
    with running("trio", engine, tmp_path) as proxy, connected(proxy.url) as raw:
        raw.sendall(frames.data_to_send())
        while not found:
            for event in frames.receive_data(raw.recv(65536)):
                if isinstance(event, h2.events.ResponseReceived):
                    found = dict(event.headers)
            raw.sendall(frames.data_to_send())

    assert found[b":status"] == b"505"
    assert list(tmp_path.glob("r.*")) == []


@pytest.mark.kernel
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/\xff"])
def test_what_hypercorn_makes_of_a_connection_ends_no_other(
    path: bytes, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """HTTP/2 that goes on after its answer, or whose path is no text, ends its own connection and not the proxy."""
    frames = h2.connection.H2Connection()
    frames.initiate_connection()
    frames.send_headers(1, [(b":method", b"POST"), (b":path", path), (b":scheme", b"http"), (b":authority", b"h")])
    with running("trio", engine, tmp_path) as proxy:
        with connected(proxy.url) as raw, suppress(ConnectionError):
            raw.sendall(frames.data_to_send())
            while came := raw.recv(65536):
                if any(isinstance(event, h2.events.StreamEnded) for event in frames.receive_data(came)):
                    frames.send_data(1, b"late")
                raw.sendall(frames.data_to_send())
        other = httpx.get(f"{proxy.url}/v1/models", timeout=20)

    assert other.status_code == 200
    assert "a connection was broken off: hypercorn raised " in caplog.text
    assert "Group" not in caplog.text


@pytest.mark.kernel
@pytest.mark.parametrize(
    "request_of_it",
    [
        b"upgrade: h2c\r\nhttp2-settings: A\r\n\r\n",
        b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nabc",
    ],
)
def test_no_upgrade_ends_another_connection(
    request_of_it: bytes, engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What hypercorn cannot read of another protocol that is asked for ends that connection and not the proxy."""
    with running("trio", engine, tmp_path) as proxy:
        with suppress(ConnectionError):
            told(proxy, b"GET /v1/models HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\n" + request_of_it)
        other = httpx.get(f"{proxy.url}/v1/models", timeout=20)

    assert other.status_code == 200
    assert "a connection was broken off: hypercorn raised " in caplog.text


def test_a_client_that_is_slow_to_ask_counts(engine: str, tmp_path: Path) -> None:
    """A call whose body has not come counts among those in flight, and no longer when its client has left."""
    with running("asyncio", engine, tmp_path, max_calls=1) as proxy, httpx.Client(timeout=30) as client:
        with connected(proxy.url) as slow:
            slow.sendall(head(POST.format("slow"), "content-length: 1000") + b"{")
            wait_until(lambda: "in_flight 1\n" in client.get(f"{proxy.url}/metrics").text)
            turned_away = ask(client, proxy, "r", "form/vllm chat/0")
        wait_until(lambda: "in_flight 0\n" in client.get(f"{proxy.url}/metrics").text)

        assert ask(client, proxy, "r", "form/vllm chat/0").status_code == 200
        assert (turned_away.status_code, turned_away.json()["error"]["code"]) == (503, "too_many_calls")
        assert list(tmp_path.glob("slow.*")) == []


# ---------------------------------------------------------------------------------------------- engines that break off

WHOLE = json.dumps(DIALECTS["vllm chat"].whole(SHORT)).encode()
EVENTS = body_of(DIALECTS["vllm chat"].chunks(SHORT, [1, 2]))
OK, OF_JSON, OF_EVENTS = (
    b"HTTP/1.1 200 OK\r\n",
    b"content-type: application/json\r\n",
    b"content-type: text/event-stream\r\n",
)


def in_chunks(body: bytes, size: int) -> bytes:
    """Write a body in chunks."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])


ANSWERS = {
    "whole, by length": OK + OF_JSON + b"content-length: %d\r\n\r\n" % len(WHOLE) + WHOLE,
    "whole, in chunks": OK + OF_JSON + b"transfer-encoding: chunked\r\n\r\n" + in_chunks(WHOLE, 100),
    "whole, to the end": OK + OF_JSON + b"connection: close\r\n\r\n" + WHOLE,
    "events, in chunks": OK + OF_EVENTS + b"transfer-encoding: chunked\r\n\r\n" + in_chunks(EVENTS, 100),
    "events, to the end": OK + OF_EVENTS + b"connection: close\r\n\r\n" + EVENTS,
}
"""The same answer, framed in the ways that HTTP has."""


class Cutting(StreamRequestHandler):
    """Sends the beginning of an answer and closes; the model's name says of which, and how much."""

    def handle(self) -> None:
        """Answer one request."""
        length = 0
        while line := self.rfile.readline().strip().lower():
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        name, _, count = json.loads(self.rfile.read(length))["model"].rpartition("/")
        self.wfile.write(ANSWERS[name][: int(count)])


@contextmanager
def cutting() -> Iterator[str]:
    """Run an engine that breaks off."""
    with ThreadingTCPServer(("127.0.0.1", 0), Cutting) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{cast('tuple[str, int]', server.server_address)[1]}"
        server.shutdown()
        thread.join()


def seen(connection: HTTPConnection, rollout_id: str, model: str, *, stream: bool) -> bytes | None:
    """Ask, and give the body if the client takes it for a whole answer."""
    body = json.dumps({"model": model, "messages": [], "stream": stream})
    try:
        connection.request("POST", f"/rollouts/{rollout_id}/v1{CHAT}", body)
        answer = connection.getresponse()
        got = answer.read()
    except (IncompleteRead, RemoteDisconnected):
        connection.close()
        return None
    return got if answer.status == 200 else None


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
@pytest.mark.parametrize("step", [61, pytest.param(17, marks=[pytest.mark.kernel, pytest.mark.timeout(300)])])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_engine_that_breaks_off_anywhere(name: str, step: int, backend: str, memory_path: Path) -> None:
    """Wherever an answer is cut: what the client takes for whole is stored, token for token, all else is masked."""
    answer, wholes = ANSWERS[name], 0
    with cutting() as engine, running(backend, engine, memory_path) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        connection = HTTPConnection(host, int(port), timeout=20)
        for count in [*range(0, len(answer), step), len(answer)]:
            got = seen(connection, f"r{count}", f"{name}/{count}", stream=name.startswith("events"))
            snapshot = proxy.settled(f"r{count}")

            whole = got is not None and (b"[DONE]" in got or b'"finish_reason":"stop"' in got)
            assert whole == (got is not None), (count, got)
            assert ([SHORT.same(entry) for entry in snapshot.entries] == [True]) == whole, (count, got)
            assert snapshot.incomplete != whole, (count, got)
            assert snapshot.refusals == ()
            wholes += whole
        connection.close()

    assert wholes >= 1
