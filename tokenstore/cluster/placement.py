"""Which shard a rollout belongs to: pure functions, the same in every process and for ever.

The hash is blake2b of the id's UTF-8 bytes with a digest of 8 bytes, read as a big-endian number, modulo the number of
shards. It is part of the format: another one would look for rollouts where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from typing import Any

from tokenstore.ids import validate_rollout_id

Place = Callable[[str, int], int]
"""Gives the index of a rollout's shard, of the rollout id and the number of shards."""


def shard_of(rollout_id: str, shards: int) -> int:
    """Give the index of a rollout's shard, by its hash."""
    return int.from_bytes(blake2b(rollout_id.encode(), digest_size=8).digest(), "big") % shards


def placing(place: str, shards: int) -> Callable[[str], int]:
    """Give the function that finds a rollout's shard.

    Args:
        place: `module:name` of a function of the user, or empty for the hash.
        shards: How many there are.

    Raises:
        ValueError: There is no such function; the message names what is missing.
    """
    function = _imported(place) if place else shard_of

    def find(rollout_id: str) -> int:
        index: Any = function(validate_rollout_id(rollout_id), shards)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < shards:
            raise ValueError(f"{place} gave {index!r} for rollout {rollout_id}, an int in 0 .. {shards - 1} is allowed")
        return index

    return find


def _imported(place: str) -> Place:
    module, _, name = place.partition(":")
    if "" in (module, name):
        raise ValueError(f"ClusterConfig.place is {place!r}, 'module:function' is allowed")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"ClusterConfig.place is {place!r}, which cannot be imported: {error}") from error
    if not callable(function):
        raise TypeError(f"ClusterConfig.place is {place!r}, which is no function")
    return function  # type: ignore[no-any-return]  # what it gives is checked at each call
