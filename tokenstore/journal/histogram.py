"""Counts of measured values by size, for statistics; safe to use from several threads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

from tokenstore.distribution import Distribution

PATIENCE_SECONDS = 0.1
"""How long a thread waits for another that counts. That one may be held up by a signal handler that waits for this one;
then going on costs one count at most."""


class Histogram:
    """Counts values by the first bound that is not below them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0
        self._guard = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        place = bisect_left(self._bounds, value)
        has = self._guard.acquire(timeout=PATIENCE_SECONDS)
        try:
            self._counts[place] += 1
            self._total += value
        finally:
            if has:
                self._guard.release()

    def read(self) -> Distribution:
        """Give what was counted until now."""
        has = self._guard.acquire(timeout=PATIENCE_SECONDS)
        try:
            return Distribution(bounds=self._bounds, counts=tuple(self._counts), total=self._total)
        finally:
            if has:
                self._guard.release()
