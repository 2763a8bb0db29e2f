"""Measured values by size, as statistics give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs


def _bounds(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(values)


def _counts(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(values)


@attrs.frozen(kw_only=True)
class Distribution:
    """How many values were measured up to each bound."""

    bounds: tuple[float, ...] = attrs.field(default=(), converter=_bounds)
    """Upper bounds, each included, in order."""
    counts: tuple[int, ...] = attrs.field(default=(0,), converter=_counts)
    """Values beyond the bound before and up to this one; the last count has no bound. Shape (bounds + 1,)."""
    total: float = 0.0
    """Sum of all values."""

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


def distribution_from(value: Distribution | Mapping[str, Any]) -> Distribution:
    """Take a distribution, also one that has come as JSON."""
    return value if isinstance(value, Distribution) else Distribution(**value)
