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
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio

from tokenstore.crossing import Gate, HostGoneError, HostThread
from tokenstore.errors import StoreClosedError
from tokenstore.hosting import Host
from tokenstore.mailbox import Message
from tokenstore.waiting import check_may_wait

T = TypeVar("T")


class Home:
    """The hosts of one store object.

    Args:
        make_host: Makes a host in the running event loop. It must not lead to this object, which is let go otherwise
            never: the daemon thread ends when nobody knows this object any more.
    """

    def __init__(self, make_host: Callable[[], Awaitable[Host]]) -> None:
        self._make_host = make_host
        self._pid = os.getpid()
        # Taken by plain `with` alone: a Ctrl-C between a context manager of ours and its block would leave it locked.
        # Only callers take it, and a signal handler or destructor that comes meanwhile may take it again (`waiting`).
        self._guard = threading.RLock()
        self._thread: HostThread | None = None
        self._local: Gate | None = None
        self._stack = AsyncExitStack()
        self._entered = False
        self._closed = False

    @property
    def hosts(self) -> list[Host]:
        """The hosts that there are now."""
        local, thread = self._local, self._thread
        hosts = [local.host if local else None, thread.host if thread else None]
        return [host for host in hosts if host is not None]

    # ------------------------------------------------------------------------------------------ calling

    async def ask(self, rollout_id: str, message: Message) -> Any:
        """Hand a message to a rollout's actor, here if this loop entered the store, else across; give its answer."""
        local = self._local
        if local is None or not local.host.loop.is_running_here():
            return await self.run(lambda host: host.ask(rollout_id, message))
        self._check_usable()
        return await local.host.ask(rollout_id, message)

    async def run(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """Run a function in a task of its host, which waits for its threads and for which the host waits.

        The caller's own task would not do: asyncio's native cancellation leaves it while its thread goes on, and then
        the host may end and give the directory away.
        """
        self._check_usable()
        local = self._local
        if local is not None and local.host.loop.is_running_here():
            return await local.cross(function)
        while True:
            thread = self._host_thread()
            try:
                return await (await thread.gate_soon()).cross(function)
            except HostGoneError as error:
                _check_died(thread, error)
            await thread.join()

    def wait(self, function: Callable[[Host], Awaitable[T]]) -> T:
        """Run a function in the daemon thread's host and block until it is done."""
        while True:
            thread = self._host_thread()
            try:
                return thread.gate().wait(function)
            except HostGoneError as error:
                _check_died(thread, error)
            thread.join_now()

    def _host_thread(self) -> HostThread:
        """The daemon thread with its host, started if there is none that takes calls."""
        self._check_owner()
        check_may_wait()
        with self._guard:
            self._check_usable()
            before = self._thread
            if before is not None and not before.is_over:
                return before
            made = HostThread(self._make_host, self)
            # In one step, without a call: another call may have come meanwhile on this same thread, and made its own.
            self._thread = thread = made if self._thread is before else self._thread
            if thread is made:
                made.start()
                if self._thread is not made:  # a call that came before it ran could not wait for it
                    made.begin_close()
            return self._thread or made

    # ------------------------------------------------------------------------------------------ opening, closing

    async def enter(self) -> None:
        """Make the running loop the one whose task group holds the actors.

        Raises:
            StoreClosedError: The store is closed, or was entered before.
        """
        self._check_owner()
        with self._guard:
            self._check_usable()
            if self._entered:
                raise StoreClosedError("the store is entered already; use it as it is, or build another one")
            self._entered = True
        try:
            await self._start_host()
        except BaseException:
            self._entered = False
            raise

    async def _start_host(self) -> None:
        gate = Gate(await self._make_host())
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(gate.host.begin_close)
            tasks.start_soon(gate.run)
            # Shielded, since the host is: under a cancelled scope it would run, and nobody would ever end it.
            with anyio.CancelScope(shield=True):
                await gate.host.running.wait()
            stack.push_async_callback(self._close_shielded)
            self._local, self._stack = gate, stack.pop_all()

    async def leave(self) -> None:
        """Close, then leave the task group; a cancelled caller waits until what was accepted is finished.

        The group is not told what the body raised: it would wrap that in an exception group.
        """
        await self._stack.aclose()

    async def _close_shielded(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def close(self) -> None:
        """Stop both hosts when their queued messages are finished. From any loop; again is a no-op."""
        self._check_owner()
        if self._local is not None or self._thread is not None:
            check_may_wait()
        with self._guard:
            self._closed = self._closed or self._local is not None
            local, thread = self._local, self._thread
        # Both begin before one is waited for: a caller that is cancelled meanwhile has closed the store all the same.
        if thread is not None:
            thread.begin_close()
        if local is not None:
            await local.close()
        if thread is not None:
            await thread.join()

    # ------------------------------------------------------------------------------------------ checks

    def _check_usable(self) -> None:
        self._check_owner()
        if self._closed:
            raise StoreClosedError("the store is closed; build a new TokenCaptureStore")

    def _check_owner(self) -> None:
        """Raise in a child of a fork; before the guard is taken, which the fork may have copied locked."""
        if os.getpid() != self._pid:
            raise StoreClosedError("the store belongs to the process that forked this one; build one of your own here")


def _check_died(thread: HostThread, error: HostGoneError) -> None:
    """Raise for a host that was closed; one that is dying is waited for, and the next one does what it has not."""
    if thread.is_closing:
        raise StoreClosedError(error.problem) from None
