"""Critical sections of many rollouts that one thread takes to the disk together.

A thread runs every section that has come up to its wish for a sync, sends the wishes off, and lets each section go on
when its own is fulfilled: with `sync="filesystem"` by one sync for all, else by one a file, many at a time. So the
interpreter goes from thread to thread once for many sections instead of several times for each. Two threads take turns:
one works while the other waits for the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import attrs

from tokenstore.journal.flights import Flight, LoneFlight, flight_for
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Wish
from tokenstore.loop import Bell, Bells
from tokenstore.threads import Threads

StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
COMMITTERS = 2
"""Threads that take turns. One lane is left to others: under load these do not come back from theirs."""
SECTIONS = 256
"""Sections of one thread, fewer where few files may be open: each holds its lock until it is done."""
AT_A_TIME = 16
"""Sections that are run before their wishes are sent off, where each has a sync of its own: the disk is not to wait."""
SHARED_BYTES = 1024 * 1024
"""Batches up to this go together; what takes longer to be encoded would keep the others, and their locks, waiting."""


@attrs.define(eq=False)
class _Section:
    """A critical section on its way."""

    steps: Iterator[Wish]
    wish: Wish | None = None
    error: BaseException | None = None
    done: Bell = attrs.field(factory=Bell)

    def go_on(self) -> bool:
        """Run up to the next wish; false at the end."""
        try:
            self.wish = next(self.steps, None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the task that waits
            self.wish, self.error = None, error
        return self.wish is not None


class Together:
    """Runs the critical sections of one host's actors. Make it inside the host's event loop.

    Args:
        root: The store's directory.
        threads: The host's.
        start_soon: Starts a task beside the actors.
    """

    def __init__(self, root: Root, threads: Threads, start_soon: StartSoon) -> None:
        self._root = root
        self._threads = threads
        self._start_soon = start_soon
        self._most = max(1, min(COMMITTERS, threads.limit - 1))
        others = threads.limit - self._most
        self._limit = max(1, min(SECTIONS, (root.sections - others) // self._most))
        self._bells = Bells()
        self._committers = 0
        self._arrived: deque[_Section] = deque()
        self._flights: list[Flight] = []
        self.able = threads.limit > 1
        """False if there is no lane for it, and once it is known that nothing here can sync many files at a time."""

    async def commit(self, steps: Iterator[Wish]) -> None:
        """Run a critical section to its end. Shield it where somebody may cancel: it is never left half-way."""
        section = _Section(steps)
        self._arrived.append(section)
        if self._committers < self._most:
            self._committers += 1
            self._start_soon(self._commit_all)
        await section.done.wait()
        if section.error is not None:
            raise section.error

    async def _commit_all(self) -> None:
        # No await between the last look and the end: nobody can count on this task and leave a section to it.
        while self._arrived:
            try:
                await self._threads.commit(self._work)
            except Exception as error:  # noqa: BLE001 - no thread, no memory: it belongs to those who wait
                self._give_up(error)
        self._committers -= 1

    def _give_up(self, error: Exception) -> None:
        """Tell those whose sections nobody will begin now."""
        while self._arrived:
            section = self._arrived.popleft()
            section.error = error
            section.done.ring()

    def close(self) -> None:
        """Leave to others what syncs were sent off with."""
        while self._flights:
            self._flights.pop().close()

    # ------------------------------------------------------------------------------------------ in worker threads

    def _work(self) -> None:
        """Run sections until there are none."""
        flight = self._flights.pop() if self._flights else flight_for(self._root)
        if flight is None:
            self.able = False
            flight = LoneFlight(self._root)
        sections: dict[Wish, _Section] = {}
        try:
            self._work_with(flight, sections)
        except BaseException as error:
            self._fail(sections, error)
            raise
        self._flights.append(flight)

    def _fail(self, sections: dict[Wish, _Section], error: BaseException) -> None:
        """End sections whose wishes nobody can fulfil: left at them, they would keep their locks."""
        for wish, section in sections.items():
            wish.failure = error
            section.go_on()
            self._bells.ring(section.done)

    def _work_with(self, flight: Flight, sections: dict[Wish, _Section]) -> None:
        limit = min(self._limit, flight.size)
        size = limit if self._root.config.sync == "filesystem" else AT_A_TIME
        ready: list[_Section] = []
        while self._arrived or sections or ready:
            with self._root.turn:
                going = [*ready, *self._take(min(size, limit - len(sections)))]
                wishing = self._advance(going)
            sent = {section.wish: section for section in wishing if section.wish}
            sections.update(sent)
            # Told only now: the loop would want the interpreter back at every system call above.
            self._bells.ring(*[section.done for section in going if section.wish is None])
            wait = not self._arrived or len(sections) >= limit
            ready = [sections.pop(wish) for wish in flight.fulfil(list(sent), wait=wait)]

    def _take(self, count: int) -> list[_Section]:
        arrived: list[_Section] = []
        while self._arrived and len(arrived) < count:
            try:
                arrived.append(self._arrived.popleft())
            except IndexError:  # the other thread was faster
                break
        return arrived

    @staticmethod
    def _advance(sections: list[_Section]) -> list[_Section]:
        """Let sections go on, and give those that wish for another sync."""
        return [section for section in sections if section.go_on()]
