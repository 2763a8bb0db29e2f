"""Entries to store, made before the clock starts: real shapes, and independent of each other.

Prompts of different calls have nothing in common here, so that every contender writes the same bytes; what shared
prompts save is measured by the benchmarks of agents' rollouts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import attrs

from tokenstore import TokenEntry
from tokenstore.codec import decode_entry, dumps, encode_entry, loads
from tokenstore.testing.rollouts import agent_rollout

DISTINCT = 48
"""Different calls of one shape; more are made of these with other names."""


@attrs.frozen
class Shape:
    """The size of an entry."""

    prompt: int
    """Ids of its prompt."""
    generated: int
    """Ids that were generated, each with its log probability."""

    def __str__(self) -> str:
        return f"{self.prompt}/{self.generated}"


SMALL = Shape(512, 128)
"""A short question and its answer."""
MIDDLE = Shape(4096, 512)
"""A few turns of an agent."""
LARGE = Shape(131072, 4096)
"""A full context."""


@lru_cache(maxsize=4)
def _calls(shape: Shape) -> list[TokenEntry]:
    count = DISTINCT if shape.prompt < LARGE.prompt else 8
    made = [
        agent_rollout(f"shape-{number}", turns=1, first_prompt=shape.prompt, generated=shape.generated)
        for number in range(count)
    ]
    return [call for (call,) in made]


def rollout_of(shape: Shape, rollout_id: str, calls: int, *, first: int = 0) -> list[TokenEntry]:
    """Make the calls of one rollout.

    Args:
        shape: The size of each.
        rollout_id: The rollout.
        calls: How many.
        first: Number of the first call, in a rollout that has earlier ones.
    """
    start = sum(rollout_id.encode())
    return [named_call(shape, start + number, rollout_id, number) for number in range(first, first + calls)]


def named_call(shape: Shape, content: int, rollout_id: str, number: int) -> TokenEntry:
    """Make one call of a rollout; calls with the same content have lines of the same length."""
    known = _calls(shape)
    return attrs.evolve(known[content % len(known)], rollout_id=rollout_id, model_call_id=f"call-{number:06d}")


def rollouts_of(shape: Shape, count: int, calls: int) -> list[list[TokenEntry]]:
    """Make rollouts with as many calls each."""
    return [rollout_of(shape, f"rollout-{number:05d}", calls) for number in range(count)]


def as_received(entry: TokenEntry) -> TokenEntry:
    """Make the entry anew from JSON, as it comes off the wire: no id is the same object as an earlier call's."""
    return decode_entry(loads(dumps(encode_entry(entry))))


@contextmanager
def work_out_of_sight() -> Iterator[None]:
    """Keep what was made for the clock out of garbage collections: a server does not hold thousands of entries."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
