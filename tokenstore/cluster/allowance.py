"""Back-pressure over event loops: bytes on their way to a shard, from wherever in this process they come."""

from __future__ import annotations

import threading
from collections import deque

from tokenstore.loop import Bell, Loop


class Allowance:
    """Bytes that all loops and threads share, first come, first served.

    Args:
        limit: How many; a wish beyond it is granted when nothing else is out.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, Loop, Bell]] = deque()

    async def take(self, size: int, loop: Loop) -> None:
        """Wait until so much is free."""
        with self._guard:
            if not self._waiting and self._fits(size):
                self.taken += size
                return
            place = (size, loop, Bell())
            self._waiting.append(place)
        try:
            await place[2].wait()
        except BaseException:
            self._leave(place)
            raise

    def give(self, size: int) -> None:
        """Give back, from any thread."""
        with self._guard:
            self.taken -= size
            granted = []
            while self._waiting and self._fits(self._waiting[0][0]):
                granted.append(self._waiting.popleft())
                self.taken += granted[-1][0]
        for _, loop, bell in granted:
            loop.call_soon(bell.ring)

    def _fits(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self.limit

    def _leave(self, place: tuple[int, Loop, Bell]) -> None:
        with self._guard:
            waiting = place in self._waiting
            if waiting:
                self._waiting.remove(place)
        # Granted meanwhile it goes back; and in any case the next one may fit now.
        self.give(0 if waiting else place[0])
