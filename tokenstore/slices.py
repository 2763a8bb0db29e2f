"""Reading one by one what is fetched in slices.

An object and no generator: left half-way it needs no closing, which an event loop would have to do when it is collected
(trio warns then). And after a slice that was broken off it raises: a generator would end, and whoever had caught a
timeout around one step would take a part of the rollout for the whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Self, TypeVar

T = TypeVar("T")


class Slices(AsyncIterator[T]):
    """Gives the items of slices, until a slice is empty.

    Args:
        read: Fetches the next slice.
    """

    def __init__(self, read: Callable[[], Awaitable[Sequence[T]]]) -> None:
        self._read = read
        self._part: Iterator[T] = iter(())
        self._reading = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        for item in self._part:
            return item
        if not self._over:
            await self._read_on()
            for item in self._part:
                return item
        raise StopAsyncIteration

    async def _read_on(self) -> None:
        if self._reading:
            raise RuntimeError("the reading was broken off, or another task is reading; begin a new one")
        self._reading = True
        part = await self._read()
        self._reading = False
        self._part, self._over = iter(part), not part

    async def aclose(self) -> None:
        """End the reading, for those who close what they iterate; not needed."""
        self._part, self._over = iter(()), True
