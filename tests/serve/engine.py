"""An engine in a process of its own that speaks every form of the wire, and misbehaves when it is asked to.

`model` of a request says what the answer is to be:

| model | answer |
|---|---|
| `form/<name of a form>/<number of a call>` | that call in that form, with ids only where the request asks for them |
| `wire/<name of a sample>` | that sample as it is |
| `status/<status>/<JSON of the body>` | that |
| `<trouble>` | see `TROUBLES` |
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import anyio

from tests.engines.dialects import DIALECTS, Body, Spoken
from tests.engines.samples import sample
from tests.recordings import recordings
from tokenstore.serve.exchange import Message, Receive, Request, Send
from tokenstore.serve.on_uvicorn import serve
from tokenstore.serve.running import listening, url_of
from tokenstore.testing import agent_rollout

SEED = 20261130
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
SHORT = Spoken([1, 2, 3], [5, 6, 7, 8], [-0.5, 0.0, -0.25, -1e-05])


@cache
def calls() -> list[Spoken]:
    """The calls that the engine makes: recorded ones, where they are, else generated ones."""
    folder = os.environ.get("TOKENSTORE_RECORDED_DATA")
    entries = (
        recordings(Path(folder, "recorded"))
        if folder
        else agent_rollout("generated", seed=SEED, turns=20, first_prompt=100, generated=40, added=40)
    )
    return [SHORT, *(Spoken.of(entry) for entry in entries if entry.prompt_token_ids and entry.generation_token_ids)]


# ---------------------------------------------------------------------------------------------- what was asked for

TAKEN: dict[str, tuple[tuple[str, str], ...]] = {
    "return_token_ids": (
        ("", "prompt_token_ids"),
        *(("choice", field) for field in ("token_ids", "response_token_ids", "prompt_token_ids")),
    ),
    "return_prompt_token_ids": (("", "prompt_token_ids"), ("choice", "prompt_token_ids")),
    "logprobs": (("choice", "logprobs"),),
    "return_meta_info": (("choice", "meta_info"),),
    "return_weight_versions": (("choice", "weight_versions"),),
    "return_input_ids_in_sglext": (("sglext", "input_ids"),),
    "return_output_ids_in_sglext": (("sglext", "output_ids"),),
    "return_logprob": (("meta", "output_token_logprobs"), ("meta", "output_token_logprobs_length")),
    "return_tokens": (("", "tokens"),),
    "n_probs": (("", "completion_probabilities"),),
}
"""What an engine leaves out unless it is asked for."""
ONLY: dict[str, tuple[str, ...]] = {
    "vllm": ("return_token_ids", "logprobs", "return_weight_versions"),
    "sglang": (
        "return_token_ids", "return_prompt_token_ids", "logprobs", "return_meta_info", "return_logprob",
        "return_input_ids_in_sglext", "return_output_ids_in_sglext",
    ),
    "llama_cpp": ("return_tokens", "n_probs"),
    "responses": (),
}  # fmt: skip
"""The options that each engine knows."""


def as_asked(answer: Any, asked: Body, engine: str, *, native: bool) -> Any:
    """Give an answer, or a chunk, with what was asked for; an endpoint of ids gives ids in any case."""
    if not isinstance(answer, dict):
        return answer
    answer = json.loads(json.dumps(answer))
    inner = asked.get("sampling_params") or {}
    for option in ONLY[engine]:
        value = asked.get(option, inner.get(option))
        if value is not None and value is not False:
            continue
        for place, field in TAKEN[option]:
            if not (native and field == "token_ids"):
                for holder in _holders(answer, place):
                    holder.pop(field, None)
    if asked.get("stream") and not (asked.get("stream_options") or {}).get("include_usage") and "choices" in answer:
        answer.pop("usage", None)
    return answer


def _holders(answer: Body, place: str) -> list[Body]:
    if place == "":
        return [answer]
    if place == "choice":
        return list(answer.get("choices") or ())
    return [answer[name] for name in ({"meta": "meta_info"}.get(place, place),) if name in answer]


def form(name: str, number: int, asked: Body) -> tuple[bool, list[Any]]:
    """Give an answer in a form: whether it is streamed, and its chunks."""
    dialect, call = DIALECTS[name], calls()[number]
    give = partial(as_asked, asked=asked, engine=dialect.engine.ENGINE, native=name == "vllm generate")
    if not asked.get("stream"):
        return False, [give(dialect.whole(call))]
    cuts = random.Random(f"{SEED} {name} {number}").choices(range(len(call.ids) + 1), k=6)  # noqa: S311
    chunks = [give(chunk) for chunk in dialect.chunks(call, cuts)]
    return True, [chunk for chunk in chunks if chunk != "[DONE]" and not _empty(chunk)] + _done(chunks)


def _empty(chunk: Body) -> bool:
    """Tell whether an engine would not send a chunk at all, since nothing of it was asked for."""
    rest = {key for key, value in chunk.items() if value not in ({}, None)}
    return chunk.get("choices") == [] and rest <= {"id", "object", "created", "model", "choices", "request_id"}


def _done(chunks: Sequence[Any]) -> list[Any]:
    return ["[DONE]"] if "[DONE]" in chunks else []


def wire(name: str) -> tuple[bool, list[Any]]:
    """Give a sample as it is."""
    text = sample(name).read_text(encoding="utf-8")
    return (False, [text]) if name.endswith(".json") else (True, text.splitlines())


# ---------------------------------------------------------------------------------------------- sending it


def event(chunk: Any) -> bytes:
    """Write a chunk as an event."""
    text = chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


class Engine:
    """The engine as an ASGI application."""

    def __init__(self) -> None:
        self.asked: list[Body] = []
        self.left = 0
        self.waiting = 0
        self._go = anyio.Event()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        body = await request.body(2**30)
        if request.path == "/state":
            state = {"asked": self.asked, "left": self.left, "waiting": self.waiting}
            await whole(send, 200, json.dumps(state).encode())
        elif request.path == "/go":
            self._go.set()
            self._go = anyio.Event()
            await whole(send, 200, b"{}")
        elif request.path == "/forget":
            self.asked.clear()
            await whole(send, 200, b"{}")
        elif request.method != "POST":
            await whole(send, 200, json.dumps({"path": request.path, "query": request.query}).encode())
        else:
            await self._generate(request, json.loads(body), send)

    async def _generate(self, request: Request, asked: Body, send: Send) -> None:
        self.asked.append({"path": request.path, **asked})
        kind, _, rest = str(asked["model"]).partition("/")
        if kind == "form":
            name, _, number = rest.rpartition("/")
            await answer(send, *form(name, int(number), asked))
        elif kind == "wire":
            await answer(send, *wire(rest))
        elif kind == "status":
            status, _, body = rest.partition("/")
            await whole(send, int(status), body.encode())
        else:
            await TROUBLES[kind](self, request, asked, send)

    async def wait(self, request: Request) -> bool:
        """Wait to be told to go on; false if the client left before."""
        self.waiting += 1
        gone = True
        async with anyio.create_task_group() as group:

            async def told() -> None:
                nonlocal gone
                await self._go.wait()
                gone = False
                group.cancel_scope.cancel()

            async def left() -> None:
                await request.gone()
                group.cancel_scope.cancel()

            group.start_soon(told)
            group.start_soon(left)
        self.waiting -= 1
        self.left += gone
        return not gone


async def whole(send: Send, status: int, body: bytes, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Send a whole answer."""
    headers = [*JSON, (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer(send: Send, streamed: bool, chunks: Sequence[Any]) -> None:
    """Send an answer that is whole, or in chunks."""
    if not streamed:
        body = chunks[0] if isinstance(chunks[0], str) else json.dumps(chunks[0], ensure_ascii=False)
        await whole(send, 200, body.encode())
        return
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


# ---------------------------------------------------------------------------------------------- misbehaving

Trouble = Callable[[Engine, Request, Body, Send], Any]


async def begin_stream(send: Send, chunks: Sequence[Any]) -> None:
    """Send the beginning of a stream."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    for chunk in chunks:
        await send({"type": "http.response.body", "body": event(chunk), "more_body": True})


def chat_chunks() -> list[Any]:
    """The stream of a short call."""
    return DIALECTS["vllm chat"].chunks(SHORT, [1, 2])


async def wait_then_stream(engine: Engine, request: Request, _: Body, send: Send) -> None:
    """Begin a stream, and end it when told."""
    chunks = chat_chunks()
    await begin_stream(send, chunks[:2])
    if await engine.wait(request):
        for chunk in chunks[2:]:
            await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def wait_then_answer(engine: Engine, request: Request, _: Body, send: Send) -> None:
    """Answer whole when told."""
    if await engine.wait(request):
        await answer(send, False, [DIALECTS["vllm chat"].whole(SHORT)])


async def break_off(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Close the connection in the middle of a stream."""
    await begin_stream(send, chat_chunks()[:2])


async def break_off_at_the_end(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Close the connection after the last event, before the body's end."""
    await begin_stream(send, chat_chunks())


async def end_early(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """End a stream as if it were whole, before the finish reason."""
    await answer(send, True, chat_chunks()[:2])


async def half_answer(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Promise a longer answer than is sent."""
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON, (b"content-length", b"1000")]})
    await send({"type": "http.response.body", "body": b'{"choices":', "more_body": True})


async def no_answer(_: Engine, __: Request, ___: Body, ____: Send) -> None:
    """Close the connection without a byte."""
    raise ConnectionResetError


async def garbled(_: Engine, __: Request, asked: Body, send: Send) -> None:
    """Send an event that is no JSON, in the middle."""
    chunks = chat_chunks()
    await answer(send, True, [*chunks[:2], str(asked["model"]).partition("/")[2], *chunks[2:]])


async def garbled_line(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Send a bare line with ids, which a lenient client might read."""
    chunks = chat_chunks()
    await begin_stream(send, chunks[:2])
    await send({"type": "http.response.body", "body": json.dumps(chunks[2]).encode() + b"\n\n", "more_body": True})
    for chunk in chunks[3:]:
        await send({"type": "http.response.body", "body": event(chunk), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def fail_at_once(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Refuse in a stream, after HTTP 200, as SGLang does."""
    error = {"error": {"message": "the prompt is longer than the context length", "code": 400, "type": "BadRequest"}}
    await answer(send, True, [error, "[DONE]"])


async def fail_later(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Fail in a stream, after ids."""
    await answer(send, True, [*chat_chunks()[:3], {"error": {"message": "m", "code": 500}}, "[DONE]"])


async def redirect(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Send the client elsewhere."""
    await whole(send, 307, b"", [(b"location", b"http://127.0.0.1:9/v1/chat/completions")])


async def never_ending_event(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Send an event that does not end until somebody is tired of it."""
    await begin_stream(send, chat_chunks()[:1])
    for _number in range(64):
        await send({"type": "http.response.body", "body": b"data: " + b"x" * 65536, "more_body": True})


async def flood(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Send more than the buffers on the way hold, in the middle of a stream."""
    await begin_stream(send, chat_chunks()[:2])
    for _number in range(1024):
        await send({"type": "http.response.body", "body": b": " + b"x" * 65536 + b"\n\n", "more_body": True})


async def byte_by_byte(_: Engine, __: Request, ___: Body, send: Send) -> None:
    """Send a stream a byte at a time, with the other kind of line ends and comments between."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM})
    body = b": hello\r\n\r\n" + b"".join(event(chunk) for chunk in chat_chunks()).replace(b"\n", b"\r\n")
    for at in range(len(body)):
        await send({"type": "http.response.body", "body": body[at : at + 1], "more_body": True})
    await send({"type": "http.response.body", "body": b""})


TROUBLES: dict[str, Trouble] = {
    function.__name__: function
    for function in (
        wait_then_stream, wait_then_answer, break_off, break_off_at_the_end, end_early, half_answer, no_answer, garbled,
        garbled_line, fail_at_once, fail_later, redirect, never_ending_event, flood,
        byte_by_byte,
    )
}  # fmt: skip
"""Every way to misbehave."""


async def main() -> None:
    """Serve until the parent closes our stdin."""
    stop = anyio.Event()
    with listening("127.0.0.1", 0) as listener:
        print(url_of(listener), flush=True)  # noqa: T201 - the parent waits for it
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        await serve(Engine(), listener, stop, 1)


if __name__ == "__main__":
    calls()
    anyio.run(main)
