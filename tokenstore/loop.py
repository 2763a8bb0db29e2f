"""A running event loop, as somebody outside it sees it, and what one task waits for in it.

anyio lets other threads into a loop only by waiting there; a host must never wait for a caller's loop, nor a caller for
a host's. Both loops have one call for that, each under its own name, which is used here and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel

sniffio: Any
try:  # anyio asks it which loop is running, where it is installed: trio brings it along
    import sniffio
except ImportError:
    sniffio = None


class Loop:
    """The event loop in which it is made."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()
        # Functions run in a copy of this context: asyncio would hand over the one of whoever schedules, which may say
        # that another library's loop is running.
        self._context = copy_context()
        if sniffio is not None:  # outside of a task it would not know a loop that `asyncio.run` began
            self._context.run(sniffio.current_async_library_cvar.set, sniffio.current_async_library())

    def is_running_here(self) -> bool:
        """Whether this is the loop of the calling code.

        Raises:
            anyio.NoEventLoopError: No event loop is running in this thread.
        """
        return anyio.lowlevel.current_token() == self._token

    def run_apart(self, function: Callable[..., object], *args: object) -> None:
        """Call a function here, at once, in the context in which the loop was met.

        A task that it starts copies that one, and does not keep alive what the caller's context holds.
        """
        self._context.copy().run(function, *args)

    def call_soon(self, function: Callable[[], object]) -> bool:
        """Have a function called inside the loop, from any thread, without waiting; false if the loop has ended."""
        native: Any = self._token.native_token
        schedule = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon
        try:
            schedule(self._context.copy().run, function)
        except RuntimeError:  # asyncio: the loop is closed; trio's RunFinishedError is one too
            return False
        return True


class Bell:
    """An event for one waiter, who may leave in any way.

    Under trio a Ctrl-C in the middle of `Event.wait` leaves the task among those that the event will wake, and waking a
    task that has ended is fatal to the loop. So a waiter that leaves takes its event away.
    """

    __slots__ = ("_event", "_rung")

    def __init__(self) -> None:
        self._rung = False
        self._event: anyio.Event | None = None

    @property
    def rung(self) -> bool:
        """Whether it was rung."""
        return self._rung

    def ring(self) -> None:
        """Wake the waiter, now or as soon as it comes."""
        self._rung = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Wait until it was rung."""
        if not self._rung:
            self._event = anyio.Event()
            try:
                await self._event.wait()
            except BaseException:
                self._event = None
                raise


class Bells:
    """Bells of one event loop that threads ring; those rung at about the same time wake the loop once."""

    def __init__(self) -> None:
        self._loop = Loop()
        self._rung: deque[Bell] = deque()
        self._announced = False

    def ring(self, *bells: Bell) -> None:
        """From any thread: have bells rung in the loop, soon."""
        self._rung.extend(bells)
        # Seen as set, it is not yet taken back by `_ring_all`, which then finds this bell too.
        if not self._announced:
            self._announced = True
            self._loop.call_soon(self._ring_all)

    def _ring_all(self) -> None:
        self._announced = False
        while self._rung:
            self._rung.popleft().ring()
