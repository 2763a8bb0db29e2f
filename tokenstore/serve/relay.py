"""One call from its client to the engine and back, captured on the way.

1. `begin_call` is durable before the engine is asked.
2. What comes back is passed on and settled by `settling`.
3. Whatever does not end in `put` or `refuse` leaves the block of `captured` unsettled, which marks the loss; the
   client is told after that. A client that leaves cancels the block, and the request to the engine with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from tokenstore.serve.asking import Plan
from tokenstore.serve.endpoints import ENDPOINTS
from tokenstore.serve.exchange import Reply, Request, answer_headers
from tokenstore.serve.http import Answer, Connections, SilentError, UnreachableError
from tokenstore.serve.meters import Meters
from tokenstore.serve.outcomes import UNREACHABLE
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.routes import Route
from tokenstore.serve.settings import ProxySettings
from tokenstore.serve.settling import InFlight, Outlet
from tokenstore.serve.wire import BrokenError
from tokenstore.store import TokenCaptureStore

_SENT = [(b"accept-encoding", b"identity"), (b"content-type", b"application/json")]


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
            async for piece in answer.pieces(raw=True):
                await reply.write(piece)
            await reply.end()

    @contextmanager
    def admitted(self, route: Route, reply: Reply) -> Iterator[InFlight]:
        """Count a call until its client may see the end, who may ask again at once and finds the place free.

        Raises:
            ProxyError: There are as many as are allowed; the client may ask again.
        """
        call = InFlight(route.rollout_id or "")
        self._meters.in_flight += 1
        with ExitStack() as place:
            place.callback(self._left, call)
            reply.on_end = place.close
            if self._meters.in_flight > self._settings.max_calls:
                told = f"{self._settings.max_calls} calls are in flight, which is the limit"
                raise ProxyError(503, "too_many_calls", told, retry=True)
            yield call

    def _left(self, call: InFlight) -> None:
        self._meters.in_flight -= 1
        self._meters.calls[call.outcome] += 1
        call.log()

    async def generating(self, call: InFlight, request: Request, route: Route, body: bytes, reply: Reply) -> None:
        """Capture a call.

        Raises:
            ProxyError: The client is to be told; the loss, if it is one, is recorded.
        """
        plan = await call.planned(ENDPOINTS[self._settings.engine_kind], request, route, body)
        async with call.captured(self._store):
            await self._exchanged(request, route, plan, call, reply)

    async def _exchanged(self, request: Request, route: Route, plan: Plan, call: InFlight, reply: Reply) -> None:
        """Ask the engine and settle the call."""
        headers = [*request.passed_on(b"accept-encoding", b"content-type"), *_SENT]
        outlet = Outlet(call, plan, reply)
        try:
            async with self._asked(request, route, headers, plan.body) as answer:
                await outlet.start(answer.status, answer.headers)
                async for piece in answer.pieces():
                    await outlet.take(piece)
                await outlet.end()
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
