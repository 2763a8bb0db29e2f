"""Back-pressure: an amount that many share, such as the bytes that may be on their way to the disk at once."""

from __future__ import annotations

from collections import deque

import anyio


class Budget:
    """An amount to be taken and given back, first come, first served. Used inside one event loop.

    A wish above the whole bound is granted when nothing else is out, so that nobody waits for ever.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._waiting: deque[tuple[int, anyio.Event]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for their share."""
        return len(self._waiting)

    async def take(self, count: int) -> None:
        """Wait until so much is free, behind all who came before; if it is free now, there is no await."""
        if self.try_take(count):
            return
        granted = anyio.Event()
        place = (count, granted)
        self._waiting.append(place)
        try:
            await granted.wait()
        except BaseException:
            if granted.is_set():
                self.give(count)
            else:
                self._waiting.remove(place)
                self._grant()
            raise

    def try_take(self, count: int) -> bool:
        """Take it if it is free and nobody waits."""
        if self._waiting or not self._fits(count):
            return False
        self.taken += count
        return True

    def give(self, count: int) -> None:
        """Give it back."""
        self.taken -= count
        self._grant()

    def _fits(self, count: int) -> bool:
        return self.taken == 0 or self.taken + count <= self.limit

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, granted = self._waiting.popleft()
            self.taken += count
            granted.set()
