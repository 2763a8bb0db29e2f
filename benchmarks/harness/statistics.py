"""Pure statistics: no clock, no machine."""

from __future__ import annotations

import math
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle.

    Raises:
        ValueError: There are no values.
    """
    if not values:
        raise ValueError("there is no median of nothing")
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed (nearest rank).

    Args:
        values: At least one.
        share: Above 0, at most 1; 0.99 is the 99th percentile.

    Raises:
        ValueError: There are no values, or the share is no share.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"there is no percentile {share} of {len(values)} values")
    rank = math.ceil(round(share * len(values), 9))  # 0.07 * 100 is above 7 by the last bit
    return sorted(values)[rank - 1]


def spread(values: Sequence[float]) -> float:
    """How far the values lie apart, as a share of their median: (largest - smallest) / median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0
