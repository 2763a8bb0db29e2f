"""Where the actors of one store object live: in the loop that entered it, and else in a daemon thread.

1. Inside `async with`, calls from that loop run in a host of its task group.
2. Every other use (never entered, another loop, a plain thread, a blocking twin) goes to one host in a daemon thread,
   started at first use.
3. Closing stops both. A store that was entered stays closed, one that never was starts again.
4. A child of a fork has neither: its use raises.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from tokenstore.crossing import Gate, HostThread
from tokenstore.errors import StoreClosedError
from tokenstore.hosting import Host

T = TypeVar("T")


class Home:
    """The hosts of one store object.

    Args:
        make_host: Makes a host in the running event loop.
    """

    def __init__(self, make_host: Callable[[], Awaitable[Host]]) -> None:
        self._make_host = make_host
        self._pid = os.getpid()
        self._guard = threading.Lock()
        self._thread: HostThread | None = None
        self._local: Gate | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._closed = False

    @property
    def hosts(self) -> list[Host]:
        """The hosts that there are now."""
        thread = self._thread
        gates = [self._local, thread.gate if thread else None]
        return [gate.host for gate in gates if gate is not None]

    async def run(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """Run a function where the actors are: here, if this loop entered the store, or across."""
        self._check_usable()
        if self._local is not None and self._local.host.loop.is_running_here():
            return await function(self._local.host)
        return await self._gate().cross(function)

    def wait(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """Run a function in the daemon thread's host and block until it is done."""
        return self._gate().wait(function)

    async def enter(self) -> None:
        """Make the running loop the one whose task group holds the actors.

        Raises:
            StoreClosedError: The store is closed, or was entered before.
        """
        self._check_usable()
        if self._local is not None:
            raise StoreClosedError("the store is entered already; use it as it is, or build another one")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._local = Gate(await self._make_host())
        await self._tasks.start(self._local.run)

    async def leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close, then leave the task group; a cancelled caller waits until what was accepted is finished."""
        with anyio.CancelScope(shield=True):
            await self.close()
        if self._tasks is None:
            return None
        return await self._tasks.__aexit__(kind, error, traceback)

    async def close(self) -> None:
        """Stop both hosts when their queued messages are finished. From any loop; again is a no-op."""
        with self._guard:
            self._closed = self._local is not None
            thread, self._thread = self._thread, None
        if self._local is not None:
            await self._local.close()
        if thread is not None:
            await anyio.to_thread.run_sync(thread.close)

    def _gate(self) -> Gate:
        """The way to the host in the daemon thread, which is started if it does not run."""
        with self._guard:
            self._check_usable()
            if self._thread is None:
                self._thread = HostThread(self._make_host)
            thread = self._thread
        return thread.gate

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            raise StoreClosedError("the store belongs to the process that forked this one; build one of your own here")
        if self._closed:
            raise StoreClosedError("the store is closed; build a new TokenCaptureStore")
