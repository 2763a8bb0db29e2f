"""Reasons why a file is not whole, as they are kept and counted: pure.

1. Damaged lines that touch are one range, however many they are.
2. A range is news only as far as no known one covers it, so a whole reading and one that went on where another stopped
   come to the same count.
3. Of one rollout at most `MAX_REASONS` are kept. What is beyond is left out all the same and neither named nor counted:
   a hostile file must not grow the state until nobody can read it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

MAX_REASONS = 10_000
"""Reasons of one rollout; each takes some thirty bytes in its state."""
_RANGE = re.compile(r"damaged:([0-9]{1,19})\+([0-9]{1,19})")
Range = tuple[int, int]
"""Where damage begins and ends, in bytes of the file."""


def damaged(offset: int, length: int) -> str:
    """The reason code of a damaged range."""
    return f"damaged:{offset}+{length}"


def note(reasons: list[str], found: Iterable[str]) -> None:
    """Append what the next bytes of a file have shown; a range that begins where the last one ends is one with it."""
    for reason in found:
        last, following = _range_of(reasons[-1]) if reasons else None, _range_of(reason)
        if last and following and last[1] == following[0]:
            reasons[-1] = damaged(last[0], following[1] - last[0])
        elif len(reasons) < MAX_REASONS:
            reasons.append(reason)


def news(known: Iterable[str], found: Iterable[str]) -> list[str]:
    """Those of the reasons found that the known ones do not say; of a range, the parts that they do not cover."""
    said = dict.fromkeys(known)
    fresh = [reason for reason in dict.fromkeys(found) if reason not in said]
    if not fresh or not said:
        return fresh[:MAX_REASONS]
    ranges = _joined(filter(None, map(_range_of, said)))
    parts = [part for reason in fresh for part in _uncovered(reason, ranges)]
    return parts[: max(0, MAX_REASONS - len(said))]


def _range_of(reason: str) -> Range | None:
    """The range that a reason names, if it is one that can have been written here."""
    numbers = _RANGE.fullmatch(reason)
    return (int(numbers[1]), int(numbers[1]) + int(numbers[2])) if numbers else None


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges, and make one of those that touch."""
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _uncovered(reason: str, ranges: list[Range]) -> Iterator[str]:
    """Cut what is covered out of a reason's range; a reason of another kind stays as it is."""
    wanted = _range_of(reason)
    if wanted is None:
        yield reason
        return
    begin, end = wanted
    for start, stop in ranges[max(0, bisect_right(ranges, (begin, begin)) - 1) :]:
        if start >= end:
            break
        if start > begin:
            yield damaged(begin, start - begin)
        begin = max(begin, stop)
    if begin < end:
        yield damaged(begin, end - begin)
