"""The proxy as a process: the command line, an orderly end, and a kill under load."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.children import Child, opened, start_module
from tests.serve.engine import SHORT

STREAMS = 64
BODY = {"messages": [], "stream": True}


def start(engine: str, root: Path, backend: str, *more: str) -> tuple[Child, dict[str, Any]]:
    """Start a proxy and wait until it serves."""
    child = start_module(
        "tokenstore", "serve", "--engine", engine, "--root", root, "--port", 0, "--json", "--backend", backend, *more
    )
    return child, json.loads(child.line())


async def read_stream(client: httpx.AsyncClient, base: str, number: int, model: str, seen: dict[int, bytes]) -> None:
    """Read a stream as far as it comes."""
    try:
        url = f"{base}/rollouts/r{number}/v1/chat/completions"
        async with client.stream("POST", url, json={"model": model, **BODY}) as answer:
            async for piece in answer.aiter_raw():
                seen[number] = seen.get(number, b"") + piece
    except httpx.TransportError:
        pass


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_is_in_flight_is_finished(backend: str, engine: str, tmp_path: Path) -> None:
    """Told to stop, the proxy takes no new call, ends the streams that run, and exits well with them in the store."""
    seen: dict[int, bytes] = {}
    child, said = start(engine, tmp_path, backend)

    async def stop_in_the_middle() -> None:
        async with httpx.AsyncClient(timeout=30) as client, anyio.create_task_group() as group:
            before = (await client.get(f"{engine}/state")).json()["waiting"]
            for number in range(3):
                group.start_soon(read_stream, client, said["url"], number, "wait_then_stream", seen)
            while (await client.get(f"{engine}/state")).json()["waiting"] < before + 3 or len(seen) < 3:
                await anyio.lowlevel.checkpoint()
            child.process.send_signal(signal.SIGTERM)
            while await refused(said["url"]) is False:
                await anyio.lowlevel.checkpoint()
            await client.post(f"{engine}/go", json={})

    with child:
        anyio.run(stop_in_the_middle)
        assert child.finish() == []

    assert all(got.endswith(b"data: [DONE]\n\n") for got in seen.values())
    with opened(tmp_path) as store:
        assert [SHORT.same(entry) for number in range(3) for entry in store.read_entries(f"r{number}")] == [True] * 3


async def refused(url: str) -> bool:
    """Tell whether nobody listens any more."""
    host, port = url.removeprefix("http://").split(":")
    try:
        await (await anyio.connect_tcp(host, int(port))).aclose()
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--engine", "localhost:8000"], "no URL"),
        (["--engine", "http://h", "--max-body", "0"], "max_body_bytes"),
        (["--engine", "http://h", "--control-token-file", "short"], "control_token"),
        (["--engine", "http://h", "--control-token-file", "none"], "none: No such file"),
    ],
)
def test_wrong_options_are_one_line(options: list[str], complaint: str, tmp_path: Path) -> None:
    """An option that cannot be meant so ends the command with one line that names it."""
    (tmp_path / "short").write_text("secret")
    options = [str(tmp_path / word) if word in ("short", "none") else word for word in options]

    with start_module("tokenstore", "serve", *options, "--root", tmp_path / "captures") as child:
        _, told = child.process.communicate()

    assert child.process.returncode == 1
    assert told.count(b"\n") == 1
    assert complaint in told.decode()
    assert "secret" not in told.decode()


@pytest.mark.kernel
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_kill_loses_no_answer_that_was_seen_whole(backend: str, engine: str, tmp_path: Path) -> None:
    """Killed under 64 streams at several moments: what a client saw whole is stored, every other rollout is masked."""
    for part in range(4):
        root, seen = tmp_path / str(part), dict[int, bytes]()
        child, said = start(engine, root, backend)
        with child:
            anyio.run(kill_under_load, engine, said["url"], child, part, seen)
        child, said = start(engine, root, backend)  # a new proxy over the same directory works
        with child:
            again: dict[int, bytes] = {}
            anyio.run(one_more, said["url"], again)
            assert again[STREAMS].endswith(b"data: [DONE]\n\n")
        wholes = account(root, seen)

        print(f"{backend}: {wholes} of {STREAMS} streams were seen whole")  # noqa: T201


async def kill_under_load(engine: str, url: str, child: Child, part: int, seen: dict[int, bytes]) -> None:
    """Have 64 streams begin, let them end, and kill the proxy when some share of them has."""

    def ended() -> int:
        return sum(got.endswith(b"data: [DONE]\n\n") for got in seen.values())

    async with (
        httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client,
        anyio.create_task_group() as group,
    ):
        before = (await client.get(f"{engine}/state")).json()["waiting"]
        for number in range(STREAMS):
            group.start_soon(read_stream, client, url, number, "wait_then_stream", seen)
        while len(seen) < STREAMS or (await client.get(f"{engine}/state")).json()["waiting"] < before + STREAMS:
            await anyio.lowlevel.checkpoint()
        await client.post(f"{engine}/go", json={})
        while ended() < part * STREAMS // 4:
            await anyio.lowlevel.checkpoint()
        child.process.kill()


async def one_more(url: str, seen: dict[int, bytes]) -> None:
    """Make one call that is not disturbed."""
    async with httpx.AsyncClient(timeout=60) as client:
        await read_stream(client, url, STREAMS, "form/vllm chat/0", seen)


def account(root: Path, seen: dict[int, bytes]) -> int:
    """Hold the store against what the clients saw, and give how many saw a whole answer."""
    wholes = 0
    with opened(root) as store:
        for number in range(STREAMS):
            snapshot = store.freeze_now(f"r{number}")
            whole = b"[DONE]" in seen[number] or b'"finish_reason":"stop"' in seen[number]
            wholes += whole
            stored = [SHORT.same(entry) for entry in snapshot.entries]
            assert stored == [True] or (stored == [] and snapshot.incomplete and not whole)
    return wholes
