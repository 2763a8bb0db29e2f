"""Critical sections of many rollouts that go to the disk together: group commit with `sync="filesystem"`.

A thread runs every section that has come up to its wish for a sync, fulfils all wishes by one sync of the file system,
and lets the sections go on. Two threads take turns: one writes while the other waits for the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import attrs

from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Wish
from tokenstore.loop import Bell, Bells
from tokenstore.threads import Threads

StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
COMMITTERS = 2
"""Threads that take turns."""
SECTIONS = 256
"""Sections that share one sync, fewer where few files may be open: each holds its lock until it is done."""
SHARED_BYTES = 1024 * 1024
"""Batches up to this share; what takes longer to be encoded would keep the others, and their locks, waiting."""


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
        others = threads.limit - COMMITTERS
        self._limit = max(1, min(SECTIONS, (root.sections - others) // COMMITTERS))
        self._bells = Bells()
        self._committers = 0
        self._arrived: deque[_Section] = deque()

    async def commit(self, steps: Iterator[Wish]) -> None:
        """Run a critical section to its end. Shield it where somebody may cancel: it is never left half-way."""
        section = _Section(steps)
        self._arrived.append(section)
        if self._committers < COMMITTERS:
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
            except RuntimeError as error:  # no thread is to be had: nothing of them was begun
                self._give_up(error)
        self._committers -= 1

    def _give_up(self, error: RuntimeError) -> None:
        while self._arrived:
            section = self._arrived.popleft()
            section.error = error
            section.done.ring()

    def _work(self) -> None:
        """In a worker thread: run sections until there are none."""
        waiting: list[_Section] = []
        while self._arrived or waiting:
            with self._root.turn:
                waiting = self._advance(waiting)
                waiting += self._begin(self._limit - len(waiting))
            if waiting:
                self._root.fulfil([section.wish for section in waiting if section.wish])

    def _begin(self, count: int) -> list[_Section]:
        arrived: list[_Section] = []
        while self._arrived and len(arrived) < count:
            try:
                arrived.append(self._arrived.popleft())
            except IndexError:  # the other thread was faster
                break
        return self._advance(arrived)

    def _advance(self, sections: list[_Section]) -> list[_Section]:
        """Let sections go on, and give those that wish for another sync."""
        wishing = []
        for section in sections:
            if section.go_on():
                wishing.append(section)
            else:
                self._bells.ring(section.done)
        return wishing
