"""From one event loop or thread into another: how callers reach a host that is not their own.

Nobody blocks an event loop: a task is started in the host's loop from outside, and its caller is woken through the loop
it waits in, or through a plain lock if it is a thread. `waiting` says why nothing else is locked here.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread

from tokenstore.errors import StoreClosedError
from tokenstore.hosting import CLOSED, Host
from tokenstore.loop import Bell, Loop
from tokenstore.waiting import Latch, own_this_thread

# anyio would import it in the first thread of a store, and who forks meanwhile has a child that never can: the lock of
# that import stays with a thread that is not there.
with suppress(ImportError):
    import_module("anyio._backends._asyncio")

T = TypeVar("T")
logger = logging.getLogger("tokenstore")
UNKNOWN = "the store was closed; the outcome of this call is unknown"


class HostGoneError(StoreClosedError):
    """The host takes no calls any more, and nothing of this one was done."""


class _Crossing(Generic[T]):
    """One call on its way into a host's loop and back."""

    def __init__(self, function: Callable[[Host], Awaitable[T]], wake: Callable[[], object]) -> None:
        self._function = function
        self._wake = wake
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._finished = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self.begun = False

    async def run(self, host: Host) -> None:
        """In the host's loop: do it. Errors go to the caller."""
        try:
            with anyio.CancelScope() as self._scope:
                if not self._cancelled:
                    self._result = await self._function(host)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            self._error = error
        except BaseException:
            # The host's loop is being torn down; without an error the caller would take this for success.
            self._error = StoreClosedError(UNKNOWN)
            raise
        finally:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """Wake the caller, once."""
        if not self._finished:
            self._finished = True
            self._error = self._error or error
            self._wake()

    def cancel(self) -> None:
        """In the host's loop: the caller does not wait any more."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    def outcome(self) -> T:
        """What came of it, once the caller was woken."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # it is a T when there was no error


class Gate:
    """The way into one host, for everybody who is not in its loop."""

    def __init__(self, host: Host) -> None:
        self.host = host
        # Both sides do lone operations on these. Who takes a crossing out is the one who finishes it.
        self._crossings: set[_Crossing[Any]] = set()
        self._watchers: deque[Callable[[], object]] = deque()
        self._shut = False

    async def run(self) -> None:
        """Run the host until it is closed, and leave nobody waiting behind it."""
        try:
            await self.host.run()
        finally:
            self._shut_now()

    def wait(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """From a thread: run a function in the host's loop and block until it is done."""
        done = Latch()
        crossing: _Crossing[T] = _Crossing(function, done.set)
        self._enter(crossing)
        try:
            done.wait()
        except BaseException:  # Ctrl-C
            self.host.loop.call_soon(crossing.cancel)
            raise
        return crossing.outcome()

    async def cross(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """From any event loop: run a function in the host's loop and await it. Cancelling cancels it there."""
        done = Bell()
        here = Loop()
        crossing: _Crossing[T] = _Crossing(function, lambda: here.call_soon(done.ring))
        self._enter(crossing)
        try:
            await done.wait()
        except BaseException:
            self.host.loop.call_soon(crossing.cancel)
            raise
        return crossing.outcome()

    def _enter(self, crossing: _Crossing[Any]) -> None:
        # Put in before looking, as `_shut_now` shuts before it looks: one of both finds the other.
        self._crossings.add(crossing)
        if self._shut or not self.host.loop.call_soon(lambda: self._start(crossing)):
            self._give_back(crossing)

    def _start(self, crossing: _Crossing[Any]) -> None:
        async def run() -> None:
            try:
                await crossing.run(self.host)
            finally:
                self._crossings.discard(crossing)

        try:
            self.host.start_soon(run)
            crossing.begun = True
        except StoreClosedError:
            self._give_back(crossing)

    def _give_back(self, crossing: _Crossing[Any]) -> None:
        """End a crossing that finds the host gone, unless that was done meanwhile."""
        try:
            self._crossings.remove(crossing)
        except KeyError:
            return
        crossing.finish(StoreClosedError(UNKNOWN) if crossing.begun else HostGoneError(CLOSED))

    def begin_close(self) -> bool:
        """From anywhere: have the host finish every queued message and end; false if its loop has ended."""
        return self.host.loop.call_soon(self.host.begin_close)

    async def close(self) -> None:
        """From any event loop: close the host and wait for its end. Again is a no-op."""
        done = Bell()
        here = Loop()
        self._watchers.append(lambda: here.call_soon(done.ring))
        if not self._shut and self.begin_close():
            await done.wait()

    def _shut_now(self) -> None:
        """Nobody comes through any more, and who is inside fails: the host has ended."""
        self._shut = True
        while self._watchers:
            self._watchers.popleft()()
        for crossing in list(self._crossings):
            self._give_back(crossing)


class HostThread:
    """A host in an event loop of its own, in a daemon thread.

    The worker threads that anyio starts from it are daemons too, since that is inherited, so leaving the process
    without closing never hangs; what was not acknowledged is lost with it.

    Args:
        make_host: Makes the host; it must not lead to the user.
        user: Who calls; the thread ends when nobody knows it any more.
    """

    def __init__(self, make_host: Callable[[], Awaitable[Host]], user: object) -> None:
        self._make_host = make_host
        self._user = weakref.ref(user, self._let_go)
        self._pid = os.getpid()
        self._ready = Latch()
        self._ended = Latch()
        self._failure: BaseException | None = None
        self._gate: Gate | None = None
        self._closing = False
        self._runs = False
        self._thread = threading.Thread(target=self._run, name="tokenstore", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: The system has no thread left.
        """
        self._thread.start()
        self._runs = True

    @property
    def is_over(self) -> bool:
        """Whether it takes no calls: it was not started, was closed, or could not start."""
        return not self._runs or self._closing or self._failure is not None or self._ended.is_set

    @property
    def is_closing(self) -> bool:
        """Whether it was closed; else, if it is over, it has died or could not start."""
        return self._closing

    @property
    def host(self) -> Host | None:
        """The host, once its loop runs."""
        return self._gate.host if self._gate else None

    def gate(self) -> Gate:
        """The way in, for threads: blocks until the loop runs.

        Raises:
            OSError: The directory could not be opened.
        """
        self._ready.wait()
        if self._gate is None:
            raise self._failure or StoreClosedError("the store's thread did not start")
        return self._gate

    async def gate_soon(self) -> Gate:
        """The way in, for event loops."""
        if not self._ready.is_set:
            await _wait_in_thread(self._ready.wait)
        return self.gate()

    def _run(self) -> None:
        own_this_thread()
        self._runs = True  # also known to a signal handler that comes before `start` returns
        try:
            anyio.run(self._main)
        except BaseException as error:  # there is nobody above in this thread
            self._failure = error
            if self._gate is not None:
                logger.critical("the store's thread died; the next call starts another one", exc_info=error)
        finally:
            self._ready.set()
            self._ended.set()

    async def _main(self) -> None:
        gate = Gate(await self._make_host())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.run)
            await gate.host.running.wait()
            self._gate = gate
            self._ready.set()
            if self._closing:
                gate.begin_close()

    def begin_close(self) -> None:
        """Take no more calls, and end when every queued message is finished."""
        self._closing = True
        # Seen here, or there after the gate was set: one of both notices the other.
        if self._gate is not None:
            self._gate.begin_close()

    def _let_go(self, _: object) -> None:
        """Begin to close, for nobody can come any more. The collector calls this anywhere, so nothing is waited for."""
        if os.getpid() == self._pid:  # else the loop is not here, and what wakes it leads to the parent's
            self.begin_close()

    def join_now(self) -> None:
        """Block until the host has ended."""
        self._ended.wait()

    async def join(self) -> None:
        """Wait until the thread has ended; cancelled, it ends all the same."""
        if self._runs:
            await _wait_in_thread(self._thread.join)


async def _wait_in_thread(function: Callable[[], object]) -> None:
    """Await what blocks, in a thread that the program's own work cannot keep busy; who is cancelled leaves it alone."""
    await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
