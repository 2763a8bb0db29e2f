"""Statistics of many shards as those of one store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from tokenstore.distribution import Distribution
from tokenstore.records import StoreStatistics

WORST = frozenset({"put_p50", "put_p99"})
"""Fields of which the largest counts: percentiles do not add up."""


def added_up(shards: Sequence[StoreStatistics]) -> StoreStatistics:
    """Add counters and distributions up; of percentiles the worst shard's is given."""
    given = [StoreStatistics(), *shards]
    fields = (field.name for field in attrs.fields(StoreStatistics))
    return StoreStatistics(**{name: _together(name, [getattr(one, name) for one in given]) for name in fields})


def _together(name: str, values: Sequence[Any]) -> Any:
    if name in WORST:
        return max(values)
    if isinstance(values[0], Distribution):
        return _one_of(values)
    return sum(values) if isinstance(values[0], int | float) else dict(sum(map(Counter, values), Counter()))


def _one_of(values: Sequence[Distribution]) -> Distribution:
    """Add up what was measured with the same bounds; a store that has measured nothing yet has none."""
    bounds = max((value.bounds for value in values), key=len)
    same = [value for value in values if value.bounds == bounds]
    counts = tuple(map(sum, zip(*(value.counts for value in same), strict=True)))
    return Distribution(bounds=bounds, counts=counts, total=sum(value.total for value in same))
