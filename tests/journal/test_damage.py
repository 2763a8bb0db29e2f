"""Damaged ranges are joined, counted once and bounded, however a file was read."""

from __future__ import annotations

import pytest

from tokenstore.journal.damage import MAX_REASONS, damaged, news, note

LONG = f"damaged:{'9' * 5000}+1"
"""More digits than Python makes a number of."""


@pytest.mark.parametrize(
    ("found", "noted"),
    [
        (["damaged:5+2", "damaged:7+3"], ["damaged:5+5"]),
        (["damaged:5+2", "damaged:8+3"], ["damaged:5+2", "damaged:8+3"]),
        (["damaged:5+2", "unacceptable:7", "damaged:9+1"], ["damaged:5+2", "unacceptable:7", "damaged:9+1"]),
        (["lost_base:c1", "damaged:0+4", "damaged:4+4", "damaged:8+1"], ["lost_base:c1", "damaged:0+9"]),
        (["damaged:x+2", "damaged:2+", LONG], ["damaged:x+2", "damaged:2+", LONG]),
    ],
)
def test_ranges_that_touch_are_one(found: list[str], noted: list[str]) -> None:
    """A range that begins where the last one ends makes that longer; everything else is a reason of its own."""
    reasons: list[str] = []

    for reason in found:
        note(reasons, [reason])

    assert reasons == noted


@pytest.mark.parametrize(
    ("known", "found", "fresh"),
    [
        ([], ["damaged:5+5"], ["damaged:5+5"]),
        (["damaged:5+5"], ["damaged:5+5"], []),
        (["damaged:5+2", "damaged:7+3"], ["damaged:5+5"], []),
        (["damaged:5+2"], ["damaged:5+5"], ["damaged:7+3"]),
        (["damaged:7+1"], ["damaged:5+5"], ["damaged:5+2", "damaged:8+2"]),
        (["damaged:0+9", "damaged:20+5"], ["damaged:5+10", "damaged:22+1"], ["damaged:9+6"]),
        (["damaged:5+2", "lost_base:a"], ["lost_base:a", "lost_base:b"], ["lost_base:b"]),
        (["damaged:much", "x"], ["damaged:0+1", "damaged:0+1"], ["damaged:0+1"]),
    ],
)
def test_only_what_is_not_covered_is_news(known: list[str], found: list[str], fresh: list[str]) -> None:
    """Of what was found only the parts that no known reason says are new, each once."""
    assert news(known, found) == fresh


def test_reasons_are_bounded() -> None:
    """However much is damaged, only so many reasons are kept; the last range still grows."""
    noted: list[str] = []

    note(noted, [damaged(2 * number, 1) for number in range(MAX_REASONS + 50)])
    note(noted, [damaged(2 * MAX_REASONS - 1, 7)])

    assert len(noted) == MAX_REASONS
    assert noted[-1] == damaged(2 * MAX_REASONS - 2, 8)
    assert news(noted, ["lost_base:c"]) == []
    assert news(noted[:-1], ["lost_base:c", "lost_base:d"]) == ["lost_base:c"]
