"""Rollouts find their shard: the same one in every process and for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from tokenstore import InvalidRolloutIdError
from tokenstore.cluster.placement import placing, shard_of

GOLDEN = {
    "r": (1, 6),
    "rollout-1": (2, 0),
    "a" * 237: (9, 1),
    "x.y_z-0": (14, 3),
}
"""Shard of 16 and shard of 7: they are part of the format, and never change."""


def by_length(rollout_id: str, shards: int) -> int:
    """Place a rollout by the length of its id."""
    return len(rollout_id) % shards


def nowhere(_: str, shards: int) -> int:
    """Place a rollout where no shard is."""
    return shards


@pytest.mark.parametrize(("rollout_id", "shards"), GOLDEN.items())
def test_the_hash_never_changes(rollout_id: str, shards: tuple[int, int]) -> None:
    """The shard of an id is the one that was written down when the format was made."""
    assert (shard_of(rollout_id, 16), shard_of(rollout_id, 7)) == shards


@pytest.mark.kernel
def test_a_million_rollouts_spread_evenly() -> None:
    """Of a million ids, as trainers make them, each of 16 shards gets its share within 2 %."""
    counts = Counter(shard_of(f"step-{number // 512:05d}-sample-{number % 512}", 16) for number in range(1_000_000))

    worst = max(abs(count * 16 / 1_000_000 - 1) for count in counts.values())
    print(f"worst share: {worst:.2%} off")  # noqa: T201 - a measurement
    assert len(counts) == 16
    assert worst < 0.02


def test_a_function_of_the_user_places() -> None:
    """A function named in the configuration takes the place of the hash."""
    find = placing(f"{__name__}:by_length", 5)

    assert [find("x" * length) for length in (1, 4, 5, 6)] == [1, 4, 0, 1]


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("by_length", ValueError, "'module:function' is allowed"),
        (":f", ValueError, "'module:function' is allowed"),
        ("no_such_module:f", ValueError, "cannot be imported"),
        (f"{__name__}:no_such_function", ValueError, "cannot be imported"),
        (f"{__name__}:GOLDEN", TypeError, "no function"),
    ],
)
def test_a_function_that_is_not_there_is_named(place: str, error: type[Exception], said: str) -> None:
    """A function that cannot be found is an error that names it."""
    with pytest.raises(error, match=said):
        placing(place, 3)


def test_a_place_that_is_none_is_refused() -> None:
    """A function that names no shard is an error, and so is an id that cannot name files."""
    find = placing(f"{__name__}:nowhere", 3)

    with pytest.raises(ValueError, match=r"gave 3 for rollout r, an int in 0 \.\. 2 is allowed"):
        find("r")
    with pytest.raises(InvalidRolloutIdError):
        find("a/b")
