"""The capture proxy under load: what it adds to the time of an answer, beside a pass-through of the same stack.

The engine answers after 5 s, give or take 2; 256 agents ask, each again when it has its answer. Engine, proxy and load
generator are processes of their own. What an answer took beyond the time that the engine itself waited is the added
time; what asking the engine directly adds is shown too, it is the load generator's and the engine's own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.request import urlopen

import anyio

from benchmarks.contenders.ours import PER_FILE
from benchmarks.harness.children import in_child
from benchmarks.harness.load import check_stored
from benchmarks.harness.statistics import percentile
from benchmarks.harness.suite import OURS, Key, Run, Target, Values
from tokenstore.serve.http import Connections
from tokenstore.serve.settings import MAX_ANSWER_BYTES

TITLE = "Capture proxy: what it adds to an answer while 256 calls are in flight"
PLOTS = ("added p50 ms",)
CALLS = 256
"""Calls in flight."""
ROUNDS = 4
"""Answers that each agent waits for."""
SECONDS, SPREAD = 5.0, 2.0
"""How long the engine takes, and by how much it differs."""
PROMPT, GENERATION = 512, 128
"""Tokens of a call."""
CASE = f"{PROMPT}/{GENERATION}, C = {CALLS}"
PASSING, DIRECT = "pass-through", "engine itself"
P50, P99 = "added p50 ms", "added p99 ms"
SEED = 6
ANSWERS = 512
"""Answers that the engine has ready, so that making them takes nothing from those who are measured."""
HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json"), (b"user-agent", b"agent")]
ASKED = b'{"model":"m","messages":[]}'


def targets() -> list[Target]:
    """So little that an agent does not notice, and hardly more than any proxy costs."""
    added = Key(CASE, OURS, P50)
    return [
        Target(text=f"{CASE}: added p50, ms", value=added, at_most=8.0),
        Target(text=f"{CASE}: added p50 over a pass-through's", value=added, over=Key(CASE, PASSING, P50), at_most=2.0),
    ]


def measure(run: Run) -> Values:
    """Measure all three once."""
    seconds, calls = run.size(SECONDS, 0.05), run.size(CALLS, 4)
    values: Values = {}
    spread, place = run.size(SPREAD, 0.02), str(run.place())
    with process("engine", str(seconds), str(spread)) as engine, process("proxy", engine, place) as proxy:
        paths = {OURS: f"{proxy}/rollouts/{{}}", PASSING: f"{proxy}/passing", DIRECT: engine}
        for who in run.turn(list(paths)):
            before, rounds = cpu_of(proxy), run.size(ROUNDS, 2)
            added = in_child(load, paths[who], calls, rounds)
            spent = cpu_of(proxy) - before
            values[Key(CASE, who, P50)] = percentile(added, 0.5) * 1e3
            values[Key(CASE, who, P99)] = percentile(added, 0.99) * 1e3
            values[Key(CASE, who, "calls")] = len(added)
            if who != DIRECT:
                values[Key(CASE, who, "CPU us/call")] = spent / (calls * (rounds + 1)) * 1e6
    check_stored(PER_FILE, Path(place), calls * (run.size(ROUNDS, 2) + 1))
    return values


def cpu_of(proxy: str) -> float:
    """Give the seconds of the processor that the proxy has taken so far."""
    with urlopen(f"{proxy}/cpu") as answer:  # noqa: S310 - a proxy of our own
        return float(answer.read())


def load(base: str, calls: int, rounds: int) -> list[float]:
    """Have agents ask, and give the seconds that each answer took beyond the engine's own waiting.

    They ask by the proxy's own client: that of httpx took 4 ms of the processor for a call, and added 8 ms of its own
    to every time that is measured here.
    """
    added: list[float] = []

    async def agent(number: int) -> None:
        async with Connections(base.format(f"r{number}"), timeout=120) as engine:
            for turn in range(rounds + 1):
                started = perf_counter()
                async with engine.ask("POST", "/v1/chat/completions", headers=HEADERS, body=ASKED) as answer:
                    text = await answer.whole(MAX_ANSWER_BYTES)
                took = perf_counter() - started
                if answer.status != 200:
                    raise RuntimeError(f"status {answer.status} of {base}: {text.decode()}")
                if turn:  # the first opens connections and files
                    added.append(took - float(dict(answer.headers)[b"x-waited"]))

    async def all_of_them() -> None:
        async with anyio.create_task_group() as agents:
            for number in range(calls):
                agents.start_soon(agent, number)

    anyio.run(all_of_them)
    return added


@contextmanager
def process(kind: str, *arguments: str) -> Iterator[str]:
    """Run a server of this module as a process, and give its URL; it ends with its input."""
    command = [sys.executable, "-m", "benchmarks.proxy", kind, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        try:
            assert child.stdout is not None  # noqa: S101
            yield child.stdout.readline().strip()
        finally:
            child.kill()


# ---------------------------------------------------------------------------------------------- the processes


class Engine:
    """Answers chat completions after some time, which it tells."""

    def __init__(self, seconds: float, spread: float) -> None:
        self._chance = random.Random(SEED)  # noqa: S311 - waiting times
        self._seconds, self._spread = seconds, spread
        self._answers = cycle([answer_of(number) for number in range(ANSWERS)])

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        while (await receive()).get("more_body"):
            pass
        wanted = self._chance.uniform(self._seconds - self._spread, self._seconds + self._spread)
        body = next(self._answers)
        started = perf_counter()
        await anyio.sleep(wanted)
        waited = f"{perf_counter() - started:.6f}".encode()
        headers = [(b"content-type", b"application/json"), (b"x-waited", waited)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def answer_of(number: int) -> bytes:
    """Make an answer as vLLM gives it, with ids of its own."""
    ids = [(number * 7919 + at * 104729) % 150_000 for at in range(PROMPT + GENERATION)]
    prompt, generated = ids[:PROMPT], ids[PROMPT:]
    logprobs = [{"token": f"token_id:{one}", "logprob": -one / 65536, "top_logprobs": []} for one in generated]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "word " * GENERATION},
        "logprobs": {"content": logprobs},
        "finish_reason": "stop",
        "token_ids": generated,
    }
    usage = {"prompt_tokens": PROMPT, "completion_tokens": GENERATION, "total_tokens": PROMPT + GENERATION}
    answer = {"id": f"a{number}", "model": "m", "choices": [choice], "usage": usage, "prompt_token_ids": prompt}
    return json.dumps(answer).encode()


async def run_engine(seconds: str, spread: str) -> None:
    """Serve the engine."""
    await _serve(Engine(float(seconds), float(spread)))


async def run_proxy(engine: str, root: str) -> None:
    """Serve the proxy; below `/passing` the same server and connections pass everything through and store nothing.

    The pass-through does all of HTTP that the proxy does: it reads the request whole, watches for the client's leaving,
    asks by the proxy's own connections and code, and passes on every byte of the answer, which is 20 times as large as
    the one without ids that clients of the store get. It looks into neither. `/cpu` tells what all of it has taken.
    """
    from tokenstore import StoreConfig, TokenCaptureStore  # noqa: PLC0415
    from tokenstore.serve.exchange import Reply, Request  # noqa: PLC0415
    from tokenstore.serve.http import Connections  # noqa: PLC0415
    from tokenstore.serve.meters import Meters  # noqa: PLC0415
    from tokenstore.serve.relay import Relay  # noqa: PLC0415
    from tokenstore.serve.routes import Route  # noqa: PLC0415
    from tokenstore.serve.running import settled_in  # noqa: PLC0415
    from tokenstore.serve.settings import ProxySettings  # noqa: PLC0415
    from tokenstore.serve.web import make_app, while_there  # noqa: PLC0415

    settings = ProxySettings(engine=engine)
    config = settled_in(settings, StoreConfig())
    async with TokenCaptureStore(root, config=config) as store, Connections(engine, timeout=60) as connections:
        capturing = make_app(settings, store, connections)
        relay = Relay(settings, store, connections, Meters())

        async def app(scope: Any, receive: Any, send: Any) -> None:
            request, reply = Request(scope, receive), Reply(send)
            if scope["path"] == "/cpu":
                await reply.whole(200, [], str(process_time()).encode())
                return
            if not scope["path"].startswith("/passing/"):
                await capturing(scope, receive, send)
                return
            body = await request.body(settings.max_body_bytes)
            route = Route(request.path.removeprefix("/passing"), None)
            problem = await while_there(request, reply, partial(relay.passing, request, route, body, reply))
            if problem is not None:
                await reply.fail(problem)

        await _serve(app)


async def _serve(app: Any) -> None:
    from tokenstore.serve.on_uvicorn import serve  # noqa: PLC0415
    from tokenstore.serve.running import listening, url_of  # noqa: PLC0415

    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    with listening("127.0.0.1", 0) as listener:
        print(url_of(listener), flush=True)
        await serve(app, listener, anyio.Event(), 1)


if __name__ == "__main__":
    from tokenstore.serve.running import loop_options

    first, second = sys.argv[2:]
    serving, options = {"engine": (run_engine, {}), "proxy": (run_proxy, loop_options("asyncio"))}[sys.argv[1]]
    anyio.run(serving, first, second, backend_options=options)
