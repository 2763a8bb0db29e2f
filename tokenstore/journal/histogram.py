"""Counts of measured values by size, for statistics; safe to use from several threads."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence

from tokenstore.distribution import Distribution


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
        with self._guard:
            self._counts[place] += 1
            self._total += value

    def read(self) -> Distribution:
        """Give what was counted until now."""
        with self._guard:
            return Distribution(bounds=self._bounds, counts=tuple(self._counts), total=self._total)
