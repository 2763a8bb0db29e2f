"""One call from its client to the engine and back, captured on the way.

1. `begin_call` is durable before the engine is asked.
2. Of a stream, everything passes as it comes until the engine says why it finished; that event and all behind it wait
   for the entry to be durable. A whole answer waits altogether.
3. Whatever does not end in `put` or `refuse` leaves the block of `store.capture` unsettled, which marks the loss; the
   client is told after that. A client that leaves cancels the block, and the request to the engine with it.

A SIGKILL at any point: before 1 nobody was asked; until the put the intent masks the rollout, and no client has seen
the end; after it the entry is there, whether or not the client saw the end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from time import perf_counter
from uuid import uuid4

import attrs
from anyio import to_thread

from tokenstore.capture import Capture
from tokenstore.errors import EngineAnswerError, EngineFailureError, TokenStoreError
from tokenstore.ids import MAX_MODEL_CALL_ID, validate_model_call_id
from tokenstore.records import TokenEntry
from tokenstore.serve.asking import Plan, plan_of
from tokenstore.serve.endpoints import ENDPOINTS
from tokenstore.serve.exchange import Reply, Request, answer_headers
from tokenstore.serve.frames import OversizeError
from tokenstore.serve.http import Answer, BrokenError, Connections, SilentError, UnreachableError
from tokenstore.serve.meters import Meters
from tokenstore.serve.outcomes import UNREACHABLE, failure_code, refusal_code
from tokenstore.serve.problems import ProxyError, store_problem
from tokenstore.serve.reading import Passing, read_whole
from tokenstore.serve.routes import CALL_HEADER, ROLLOUT_HEADER, Route
from tokenstore.serve.settings import MAX_ANSWER_BYTES, ProxySettings
from tokenstore.store import TokenCaptureStore

logger = logging.getLogger("tokenstore.serve")
LARGE = 128 * 1024
"""Bytes of an answer above which it is read in a thread, so that other calls need not wait for it."""
UNIQUE = 12
"""Characters that make the id of each attempt its own, so that a client's retry is a call of its own."""


@attrs.frozen
class Whole:
    """An answer to be sent at once."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Relay:
    """Passes requests on and captures what generates."""

    def __init__(self, settings: ProxySettings, store: TokenCaptureStore, engine: Connections, meters: Meters) -> None:
        self._settings = settings
        self._store = store
        self._engine = engine
        self._meters = meters

    async def passing(self, request: Request, route: Route, body: bytes, reply: Reply) -> None:
        """Pass a request through that does not generate, and its answer as it is."""
        self._meters.passed += 1
        headers = request.passed_on()
        async with self._asked(request, route, headers, body) as answer:
            await reply.start(answer.status, answer_headers(answer.headers, raw=True))
            async with aclosing(answer.pieces(raw=True)) as pieces:
                async for piece in pieces:
                    await reply.write(piece)
            await reply.end()

    async def generating(self, request: Request, route: Route, body: bytes, reply: Reply) -> None:
        """Capture a call.

        Raises:
            ProxyError: The client is to be told; the loss, if it is one, is recorded.
        """
        call = InFlight(route.rollout_id or "")
        self._meters.in_flight += 1
        started = perf_counter()
        try:
            await self._captured(request, route, body, call, reply)
        finally:
            self._meters.in_flight -= 1
            self._meters.calls[call.outcome] += 1
            seconds = perf_counter() - started
            logger.info("rollout %s, call %s: %s after %.3f s", call.rollout_id, call.call_id, call.outcome, seconds)

    # ------------------------------------------------------------------------------------------ before the engine

    def _planned(self, request: Request, route: Route, body: bytes) -> tuple[Plan, str]:
        endpoint = ENDPOINTS[self._settings.engine_kind].get(route.path)
        if endpoint is None:
            told = f"{route.path} of the engine kind {self._settings.engine_kind} gives no ids, so it is not captured"
            raise ProxyError(501, "not_capturable", f"{told}; is --engine-kind right?")
        if route.rollout_id is None:
            told = "the call names no rollout: use /rollouts/<id>/v1 as the base URL, or the header X-Rollout-Id"
            raise ProxyError(400, "no_rollout", told)
        if self._meters.in_flight > self._settings.max_calls:
            told = f"{self._settings.max_calls} calls are in flight, which is the limit"
            raise ProxyError(503, "too_many_calls", told, retry=True)
        return plan_of(endpoint, body), call_id_of(request.header(CALL_HEADER))

    async def _captured(self, request: Request, route: Route, body: bytes, call: InFlight, reply: Reply) -> None:
        plan, call.call_id = self._planned(request, route, body)
        answer: Whole | None = None
        try:
            async with self._store.capture(call.rollout_id, call.call_id) as capture:
                call.begun(capture)
                answer = await self._exchanged(request, route, plan, call, reply)
        except TokenStoreError as error:  # whatever comes later is a problem already: the intent was not recorded
            raise store_problem(error, before=True) from error
        if answer is not None:  # the refusal or the loss is recorded, and then the client is told
            await reply.whole(answer.status, answer.headers, answer.body)

    async def _exchanged(
        self, request: Request, route: Route, plan: Plan, call: InFlight, reply: Reply
    ) -> Whole | None:
        """Ask the engine and settle the call; gives a whole answer back, a stream has been sent."""
        headers = [*request.passed_on(b"accept-encoding", b"content-type"), *_SENT]
        try:
            async with self._asked(request, route, headers, plan.body) as answer:
                if answer.streamed and 200 <= answer.status < 300:
                    await self._stream(call, plan, answer, reply)
                    return None
                return await self._whole(call, plan, answer)
        except ProxyError as problem:
            if problem.code == UNREACHABLE:
                await call.refuse(UNREACHABLE)
            raise

    @asynccontextmanager
    async def _asked(
        self, request: Request, route: Route, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> AsyncIterator[Answer]:
        """Ask the engine, and say what is wrong with it in words for the client."""
        target = f"{route.target}?{request.query}" if request.query else route.target
        try:
            async with self._engine.ask(request.method, target, headers=headers, body=body) as answer:
                yield answer
        except UnreachableError as error:
            told = f"the engine at {self._settings.engine} cannot be connected to; nothing was sent"
            raise ProxyError(502, UNREACHABLE, told, retry=True) from error
        except SilentError as error:
            told = f"the engine was silent for {self._settings.engine_timeout:g} s"
            raise ProxyError(504, "engine_timeout", told) from error
        except BrokenError as error:
            raise ProxyError(502, "engine_broke_off", f"the connection to the engine broke ({error})") from error
        except OversizeError as error:
            told = f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes"
            raise ProxyError(502, "answer_too_large", told) from error

    # ------------------------------------------------------------------------------------------ the engine's answer

    async def _whole(self, call: InFlight, plan: Plan, answer: Answer) -> Whole:
        """Store a whole answer, or record its refusal; it is sent afterwards."""
        body = await answer.whole(MAX_ANSWER_BYTES)
        headers = call.headers(answer)
        if 300 <= answer.status < 400:  # a client that followed it would go past the proxy
            told = f"the engine redirects with status {answer.status}; start the proxy with its final URL"
            raise ProxyError(502, "engine_redirects", told)
        if not 200 <= answer.status < 300:
            await call.refuse(refusal_code(plan.endpoint.engine, call.call_id, answer.status, body))
            return Whole(answer.status, headers, body)
        read = partial(read_whole, plan, call.rollout_id, call.call_id, body)
        try:
            entry, shown = await to_thread.run_sync(read) if len(body) > LARGE else read()
        except EngineFailureError as failure:
            await call.refuse(failure_code(plan.endpoint.engine, call.call_id, failure))
            return Whole(failure.status if failure.status and failure.status >= 400 else 502, headers, body)
        except TokenStoreError as error:
            raise _unreadable(error) from error
        await call.put(entry)
        return Whole(answer.status, headers, shown)

    async def _stream(self, call: InFlight, plan: Plan, answer: Answer, reply: Reply) -> None:
        """Pass a stream on as it comes, but its end only when the entry is durable."""
        passing = Passing(plan, call.rollout_id, call.call_id, MAX_ANSWER_BYTES)
        try:
            await reply.start(answer.status, call.headers(answer), events=True)
            async with aclosing(answer.pieces()) as pieces:
                async for piece in pieces:
                    await reply.write(passing.take(piece))
            entry = passing.entry()
        except EngineFailureError as failure:
            await call.refuse(failure_code(plan.endpoint.engine, call.call_id, failure))
            raise ProxyError(502, "engine_failed", str(failure), frame=passing.failed) from failure
        except TokenStoreError as error:
            raise _unreadable(error) from error
        await call.put(entry)
        await reply.end(passing.held)


class InFlight:
    """A call on its way, and what it came to."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.call_id = ""
        self.outcome = "rejected"
        """One of `OUTCOMES`."""
        self._capture: Capture

    def begun(self, capture: Capture) -> None:
        """Take note that the intent is durable: whatever settles nothing from here on is a loss."""
        self._capture, self.outcome = capture, "lost"

    async def put(self, entry: TokenEntry) -> None:
        """Store the entry.

        Raises:
            ProxyError: It is not in the store.
        """
        try:
            await self._capture.put(entry)
        except TokenStoreError as error:
            raise store_problem(error, before=False) from error
        self.outcome = "stored"

    async def refuse(self, code: str | None) -> None:
        """Record a refusal, if it is one; if it cannot be recorded it is a loss, and the client hears of its cause."""
        if code is None:
            return
        try:
            await self._capture.refuse(code)
        except TokenStoreError:
            logger.exception("rollout %s: the refusal of call %s was not recorded", self.rollout_id, self.call_id)
        else:
            self.outcome = "refused"

    def headers(self, answer: Answer) -> list[tuple[bytes, bytes]]:
        """Give the engine's headers, and those by which the client finds the entry."""
        named = [(ROLLOUT_HEADER, self.rollout_id.encode()), (CALL_HEADER, self.call_id.encode("latin-1"))]
        return [*answer_headers(answer.headers), *named]


_SENT = [(b"accept-encoding", b"identity"), (b"content-type", b"application/json")]


def call_id_of(given: bytes | None) -> str:
    """Make the id of a call: the client's own word for it, if it gave one, and what makes each attempt its own.

    Raises:
        ProxyError: The word cannot be part of an id.
    """
    unique = uuid4().hex[:UNIQUE]
    if given is None:
        return f"call-{unique}"
    try:
        return validate_model_call_id(f"{given.decode('latin-1')}.{unique}")
    except TokenStoreError as error:
        told = f"X-Model-Call-Id has up to {MAX_MODEL_CALL_ID - UNIQUE - 1} characters, none of them control characters"
        raise ProxyError(400, "invalid_call_id", told) from error


def _unreadable(error: TokenStoreError) -> ProxyError:
    told = f"the engine's answer cannot be stored and is withheld: {error}"
    code = "answer_not_capturable" if isinstance(error, EngineAnswerError) else "answer_not_storable"
    return ProxyError(502, code, told)
