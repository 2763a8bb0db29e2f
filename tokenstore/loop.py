"""A running event loop, as somebody outside it sees it, and what one task waits for in it.

anyio lets other threads into a loop only by waiting there; a host must never wait for a caller's loop, nor a caller for
a host's. Both loops have one call for that, each under its own name, which is used here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel


class Loop:
    """The event loop in which it is made."""

    def __init__(self) -> None:
        self._token = anyio.lowlevel.current_token()
        # Functions run in a copy of this context: asyncio would hand over the one of whoever schedules, which may say
        # that another library's loop is running.
        self._context = copy_context()

    def is_running_here(self) -> bool:
        """Whether this is the loop of the calling code.

        Raises:
            anyio.NoEventLoopError: No event loop is running in this thread.
        """
        return anyio.lowlevel.current_token() == self._token

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
