"""The proxy as a process: the command line, an orderly end, and a kill under load."""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from tests.children import Child, opened, start_module
from tests.kernel import needs
from tests.kernel.test_kills import STRACE
from tests.serve.engine import SHORT
from tests.serve.proxies import call_of, connected
from tokenstore.config import MAX_OPEN_FILES
from tokenstore.serve.running import files_to_keep

STREAMS = 64
AGENTS = 24
BODY = {"messages": [], "stream": True}


def start(engine: str, root: Path, backend: str, *more: str, wrap: Sequence[str] = ()) -> tuple[Child, dict[str, Any]]:
    """Start a proxy and wait until it serves."""
    options = ["--engine", engine, "--root", root, "--port", 0, "--json", "--backend", backend, *more]
    child = start_module("tokenstore", "serve", *options, wrap=wrap)
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


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
def test_it_may_be_stopped_as_soon_as_it_serves(backend: str, engine: str, tmp_path: Path) -> None:
    """A signal that comes with the first line of output ends the proxy as well as a later one."""
    child, _ = start(engine, tmp_path, backend)

    with child:
        child.process.send_signal(signal.SIGTERM)
        assert child.finish() == []


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


@pytest.mark.kernel
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_stopped_under_load_it_loses_nothing(backend: str, engine: str, tmp_path: Path) -> None:
    """Told to stop while many agents call again and again it ends soon, with each whole answer and no mask."""
    wholes: Counter[int] = Counter()
    stopping = threading.Event()
    child, said = start(engine, tmp_path, backend)

    async def agent(number: int) -> None:
        url, stream = f"{said['url']}/rollouts/r{number}/v1/chat/completions", number % 2 == 0
        async with httpx.AsyncClient(timeout=30) as client:
            with suppress(httpx.TransportError):
                while True:
                    asked = {"model": "form/vllm chat/0", "messages": [], "stream": stream}
                    answer = await client.post(url, json=asked)
                    if answer.status_code != 200:
                        assert stopping.is_set()
                        return
                    assert not stream or answer.text.endswith("data: [DONE]\n\n")
                    wholes[number] += 1

    async def stop_in_the_middle() -> None:
        async with anyio.create_task_group() as group:
            for number in range(AGENTS):
                group.start_soon(agent, number)
            while min(wholes[number] for number in range(AGENTS)) < 3:
                await anyio.lowlevel.checkpoint()
            stopping.set()
            child.process.send_signal(signal.SIGTERM)

    with child:
        anyio.run(stop_in_the_middle)
        assert child.finish() == []

    with opened(tmp_path) as store:
        for number in range(AGENTS):
            snapshot = store.freeze_now(f"r{number}")
            assert len(snapshot.entries) >= wholes[number]  # the last one's client may have heard of the end alone
            assert snapshot.incomplete_reasons == ()


@pytest.mark.kernel
@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_what_does_not_end_in_time_is_cut_off_and_marked(
    backend: str, signals: int, engine: str, tmp_path: Path
) -> None:
    """After `--grace`, or a second signal, what is still in flight is broken off, and its rollout is marked."""
    seen: dict[int, bytes] = {}
    child, said = start(engine, tmp_path, backend, "--grace", "1" if signals == 1 else "60")

    async def stop_in_the_middle() -> None:
        async with httpx.AsyncClient(timeout=30) as client, anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(read_stream, client, said["url"], number, "wait_then_stream", seen)
            while len(seen) < 8:
                await anyio.lowlevel.checkpoint()
            child.process.send_signal(signal.SIGTERM)
            while signals == 2 and await refused(said["url"]) is False:
                await anyio.lowlevel.checkpoint()
            if signals == 2:
                child.process.send_signal(signal.SIGTERM)

    with child:
        anyio.run(stop_in_the_middle)
        assert child.finish() == []

    assert not any(b"finish_reason" in got and b'"stop"' in got for got in seen.values())
    with opened(tmp_path) as store:
        for number in range(8):
            reasons = [reason.partition(":")[0] for reason in store.freeze_now(f"r{number}").incomplete_reasons]
            assert reasons == ["marked", "lost_call"]


@pytest.mark.kernel
@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_client_that_reads_nothing_keeps_no_proxy_from_stopping(
    backend: str, signals: int, engine: str, tmp_path: Path
) -> None:
    """A call whose client has stopped taking its answer is cut off and marked, as any other that does not end."""
    child, said = start(engine, tmp_path, backend, "--grace", "1" if signals == 1 else "60")
    with child, connected(said["url"]) as stopped:
        stopped.sendall(call_of("r0", json.dumps({"model": "flood", **BODY}).encode()))
        stopped.recv(1)
        for _ in range(signals):
            child.process.send_signal(signal.SIGTERM)
            while anyio.run(refused, said["url"]) is False:
                pass
        assert child.finish() == []

    with opened(tmp_path) as store:
        reasons = [reason.partition(":")[0] for reason in store.freeze_now("r0").incomplete_reasons]
    assert reasons == ["marked", "lost_call"]


async def refused(url: str) -> bool:
    """Tell whether nobody listens any more."""
    host, port = url.removeprefix("http://").split(":")
    try:
        await (await anyio.connect_tcp(host, int(port))).aclose()
    except OSError:
        return True
    return False


@pytest.mark.kernel
def test_the_stores_options_reach_the_store(engine: str, tmp_path: Path) -> None:
    """With `--sync filesystem` the proxy waits for `syncfs`; with `--prompt-storage full` lines are the reference's."""
    needs.programs("strace")
    log, root = tmp_path / "log", tmp_path / "captures"
    wrap = [*STRACE, str(log), "-e", "trace=syncfs,fdatasync"]
    options = ["--sync", "filesystem", "--prompt-storage", "full"]

    child, said = start(engine, root, "asyncio", *options, wrap=wrap)
    with child:
        answer = httpx.post(f"{said['url']}/rollouts/r/v1/chat/completions", json={"model": "form/vllm chat/0"})
        traced = Path(f"/proc/{child.process.pid}/task/{child.process.pid}/children").read_text(encoding="ascii")
        os.kill(int(traced.split()[0]), signal.SIGTERM)
        child.finish()

    assert answer.status_code == 200
    assert "syncfs" in log.read_text(encoding="utf-8")
    assert b"crc32" not in (root / "r.tokens.jsonl").read_bytes()


@pytest.mark.kernel
def test_descriptors_last_for_the_calls_that_are_allowed(engine: str, tmp_path: Path) -> None:
    """A soft limit of open files, as shells set it, does not bound the calls in flight."""
    low = ["bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash"]
    statuses: list[int] = []
    child, said = start(engine, tmp_path, "asyncio", wrap=low)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        url = f"{said['url']}/rollouts/r{number}/v1/chat/completions"
        statuses.append((await client.post(url, json={"model": "wait_then_answer"})).status_code)

    async def all_at_once() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=30, limits=limits) as client, anyio.create_task_group() as group:
            before = (await client.get(f"{engine}/state")).json()["waiting"]
            for number in range(STREAMS):
                group.start_soon(one, client, number)
            while (await client.get(f"{engine}/state")).json()["waiting"] < before + STREAMS:
                await anyio.lowlevel.checkpoint()
            await client.post(f"{engine}/go", json={})

    with child:
        anyio.run(all_at_once)

    assert statuses == [200] * STREAMS


@pytest.mark.kernel
def test_files_stay_open_for_the_next_call(engine: str, tmp_path: Path) -> None:
    """The files of more rollouts than a store keeps open for others are open after the calls of all of them."""
    child, said = start(engine, tmp_path, "asyncio")
    rollouts = range(MAX_OPEN_FILES // 2)

    with child, httpx.Client() as client:
        for number in rollouts:
            client.post(f"{said['url']}/rollouts/r{number}/v1/chat/completions", json={"model": "form/vllm chat/0"})
        opened_files = {path.resolve().name for path in Path(f"/proc/{child.process.pid}/fd").iterdir()}

    assert {f"r{number}.tokens.{kind}" for number in rollouts for kind in ("lock", "jsonl", "intents")} <= opened_files


@pytest.mark.parametrize(
    ("limit", "calls", "kept"),
    [
        (1_048_576, 4096, 12_288),  # all files of all calls that are allowed
        (20_000, 4096, 5_904),  # half of what their connections leave
        (4_096, 4096, 160),  # what any store keeps
        (resource.RLIM_INFINITY, 8, 24),
    ],
)
def test_files_kept_leave_room_for_connections(limit: int, calls: int, kept: int) -> None:
    """How many files stay open depends on the calls that are allowed and on what their connections leave."""
    assert files_to_keep(limit, calls) == kept


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
        await client.post(f"{engine}/forget", json={})  # what other tests asked makes its state slow to read
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
