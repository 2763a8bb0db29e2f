"""The arithmetic of the benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.harness.statistics import median, percentile


@pytest.mark.parametrize(
    ("values", "middle"), [([3.0], 3.0), ([9.0, 1.0, 2.0], 2.0), ([4.0, 1.0, 2.0, 8.0], 3.0), ([0.0, 0.0], 0.0)]
)
def test_median(values: list[float], middle: float) -> None:
    """The median is the middle value, or the mean of the two in the middle, in whatever order they come."""
    assert median(values) == middle


@pytest.mark.parametrize(
    ("share", "value"), [(0.001, 1.0), (0.01, 1.0), (0.07, 7.0), (0.5, 50.0), (0.99, 99.0), (0.999, 100.0), (1, 100.0)]
)
def test_percentile_is_the_nearest_rank(share: float, value: float) -> None:
    """A percentile is the smallest value that this share of all does not exceed."""
    assert percentile([float(number) for number in range(100, 0, -1)], share) == value


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.1), ([1.0], -0.5)])
def test_no_percentile_of_nothing(values: list[float], share: float) -> None:
    """Without values, or for a share that is none, there is no percentile."""
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, share)


def test_no_median_of_nothing() -> None:
    """Without values there is no median."""
    with pytest.raises(ValueError, match="no median"):
        median([])
