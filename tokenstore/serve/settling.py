"""An engine's answer on its way to the client, whichever way it comes: piece by piece, settled before its end is sent.

1. Of a stream, everything passes as it comes until the engine says why it finished; that event and all behind it wait
   for the entry to be durable. A whole answer waits altogether.
2. What was stored or refused is settled, and sent. Everything else is raised, through the block of `store.capture`,
   which marks the loss; the client is told after that.

A SIGKILL at any point: until the put the intent masks the rollout, and no client has seen the end; after it the entry
is there, whether or not the client saw the end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from secrets import token_hex
from time import perf_counter

from anyio import to_thread

from tokenstore.capture import Capture
from tokenstore.errors import EngineAnswerError, EngineFailureError, TokenStoreError
from tokenstore.ids import MAX_MODEL_CALL_ID, validate_model_call_id
from tokenstore.records import TokenEntry
from tokenstore.serve.asking import Plan, plan_of
from tokenstore.serve.endpoints import Endpoint
from tokenstore.serve.exchange import Reply, Request, answer_headers, has_events
from tokenstore.serve.frames import OversizeError
from tokenstore.serve.outcomes import failure_code, refusal_code
from tokenstore.serve.problems import EngineAnsweredError, ProxyError, store_problem
from tokenstore.serve.reading import Passing, read_whole
from tokenstore.serve.routes import CALL_HEADER, ROLLOUT_HEADER, Headers, Route
from tokenstore.serve.settings import MAX_ANSWER_BYTES
from tokenstore.store import TokenCaptureStore

logger = logging.getLogger("tokenstore.serve")
LARGE = 128 * 1024
"""Bytes of a body above which it is read in a thread, so that other calls need not wait for it."""
UNIQUE = 12
"""Characters that make the id of each attempt its own, so that a client's retry is a call of its own."""


class InFlight:
    """A call on its way, and what it came to."""

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self.call_id = ""
        self.outcome = "rejected"
        """One of `OUTCOMES`."""
        self._capture: Capture
        self._started = perf_counter()

    async def planned(self, endpoints: Mapping[str, Endpoint], request: Request, route: Route, body: bytes) -> Plan:
        """Say what the engine is to be asked for.

        Raises:
            ProxyError: The call cannot be captured; nothing was recorded.
        """
        endpoint = endpoints.get(route.path)
        if endpoint is None:
            told = f"{route.path} gives no ids with this kind of engine, so it is not captured"
            lacks_v1 = f"/v1{route.path}" in endpoints
            hint = "the base URL must end in /v1" if lacks_v1 else "is the engine kind right?"
            raise ProxyError(501, "not_capturable", f"{told}; {hint}")
        if route.rollout_id is None:
            told = "the call names no rollout: use /rollouts/<id>/v1 as the base URL, or the header X-Rollout-Id"
            raise ProxyError(400, "no_rollout", told)
        make = partial(plan_of, endpoint, body)
        plan = await to_thread.run_sync(make) if len(body) > LARGE else make()
        self.call_id = call_id_of(request.header(CALL_HEADER))
        return plan

    @asynccontextmanager
    async def captured(self, store: TokenCaptureStore) -> AsyncIterator[None]:
        """Guard the call: its intent is durable before the body runs, and a body that settles nothing is a loss.

        Raises:
            ProxyError: The intent was not recorded.
        """
        async with AsyncExitStack() as block:
            self.outcome = "lost"  # also if the client leaves now: the intent may be on its way to the disk
            try:
                self._capture = await block.enter_async_context(store.capture(self.rollout_id, self.call_id))
            except TokenStoreError as error:
                self.outcome = "rejected"
                raise store_problem(error, before=True) from error
            yield

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

    async def refuse(self, code: str | None) -> bool:
        """Record a refusal, if it is one, and tell whether; one that cannot be recorded is a loss, and is logged."""
        if code is None:
            return False
        try:
            await self._capture.refuse(code)
        except TokenStoreError:
            logger.exception("rollout %s: the refusal of call %s was not recorded", self.rollout_id, self.call_id)
            return False
        self.outcome = "refused"
        return True

    def headers(self, answered: Headers) -> list[tuple[bytes, bytes]]:
        """Give the engine's headers, and those by which the client finds the entry."""
        named = [(ROLLOUT_HEADER, self.rollout_id.encode()), (CALL_HEADER, self.call_id.encode("latin-1"))]
        return [*(pair for pair in answer_headers(answered) if pair[0] not in (ROLLOUT_HEADER, CALL_HEADER)), *named]

    def log(self) -> None:
        """Say what became of it."""
        seconds = perf_counter() - self._started
        logger.info("rollout %s, call %s: %s after %.3f s", self.rollout_id, self.call_id, self.outcome, seconds)


class Outlet:
    """Takes what the engine answers, and gives the client what it may see of it."""

    def __init__(self, call: InFlight, plan: Plan, reply: Reply) -> None:
        self._call = call
        self._plan = plan
        self._reply = reply
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self._passing: Passing | None = None

    async def start(self, status: int, headers: Headers) -> None:
        """Take the head."""
        self._status, self._headers = status, self._call.headers(headers)
        if has_events(headers) and _good(status):
            self._passing = Passing(self._plan, self._call.rollout_id, self._call.call_id, MAX_ANSWER_BYTES)
            await self._reply.start(status, self._headers, events=True)

    async def take(self, piece: bytes) -> None:
        """Take a piece of the body.

        Raises:
            ProxyError: The answer cannot be stored.
        """
        if self._passing is None:
            self._body += piece
            if len(self._body) > MAX_ANSWER_BYTES:
                raise _too_large()
            return
        try:
            shown = self._passing.take(piece)
        except (TokenStoreError, OversizeError) as error:
            raise await self._problem(self._passing, error) from error
        await self._reply.write(shown)

    async def end(self) -> None:
        """Take the end of the body: settle the call and let the client have the rest.

        Raises:
            ProxyError: There is no entry, which is a loss unless the refusal was recorded.
        """
        if self._passing is None:
            await self._end_whole(bytes(self._body))
        else:
            await self._end_stream(self._passing)

    async def _end_stream(self, passing: Passing) -> None:
        try:
            entry = passing.entry()
        except (TokenStoreError, OversizeError) as error:
            raise await self._problem(passing, error) from error
        await self._call.put(entry)
        await self._reply.end(passing.held)

    async def _end_whole(self, body: bytes) -> None:
        engine, call_id = self._plan.endpoint.engine, self._call.call_id
        if 300 <= self._status < 400:
            told = f"the engine redirects with status {self._status}, where nothing is captured; use its final URL"
            raise ProxyError(502, "engine_redirects", told)
        if not _good(self._status):
            await self._failed(self._status, body, refusal_code(engine, call_id, self._status, body))
            return
        read = partial(read_whole, self._plan, self._call.rollout_id, call_id, body)
        try:
            entry, shown = await to_thread.run_sync(read) if len(body) > LARGE else read()
        except EngineFailureError as failure:
            status = failure.status if failure.status and failure.status >= 400 else 502
            await self._failed(status, body, failure_code(engine, call_id, failure))
        except TokenStoreError as error:
            raise _unreadable(error) from error
        else:
            await self._call.put(entry)
            await self._reply.whole(self._status, self._headers, shown)

    async def _failed(self, status: int, body: bytes, code: str | None) -> None:
        """Give the client the engine's error, if it is a refusal; a loss is recorded first."""
        if not await self._call.refuse(code):
            raise EngineAnsweredError(status, self._headers, body)
        await self._reply.whole(status, self._headers, body)

    async def _problem(self, passing: Passing, error: Exception) -> ProxyError:
        """Say why a stream cannot be stored, after recording a refusal if it is one."""
        if isinstance(error, OversizeError):
            return _too_large()
        if not isinstance(error, EngineFailureError):
            return _unreadable(error)
        await self._call.refuse(failure_code(self._plan.endpoint.engine, self._call.call_id, error))
        return ProxyError(502, "engine_failed", str(error), frame=passing.failed)


def call_id_of(given: bytes | None) -> str:
    """Make the id of a call: the client's own word for it, if it gave one, and what makes each attempt its own.

    Raises:
        ProxyError: The word cannot be part of an id.
    """
    unique = token_hex(UNIQUE // 2)
    if given is None:
        return f"call-{unique}"
    try:
        return validate_model_call_id(f"{given.decode('latin-1')}.{unique}")
    except TokenStoreError as error:
        told = f"X-Model-Call-Id has up to {MAX_MODEL_CALL_ID - UNIQUE - 1} characters, none of them control characters"
        raise ProxyError(400, "invalid_call_id", told) from error


def _good(status: int) -> bool:
    return 200 <= status < 300


def _unreadable(error: Exception) -> ProxyError:
    told = f"the engine's answer cannot be stored and is withheld: {error}"
    code = "answer_not_capturable" if isinstance(error, EngineAnswerError) else "answer_not_storable"
    return ProxyError(502, code, told)


def _too_large() -> ProxyError:
    return ProxyError(502, "answer_too_large", f"the engine's answer is larger than {MAX_ANSWER_BYTES} bytes")
