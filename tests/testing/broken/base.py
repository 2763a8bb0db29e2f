"""How a broken store says which check must catch it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tokenstore.testing import InMemoryTokenStore
from tokenstore.testing.lifecycle import Rollout

BROKEN_STORES: dict[type[BrokenStore], str] = {}
"""Every broken store, with the name of the check that must catch it."""

S = TypeVar("S", bound="type[BrokenStore]")


class BrokenStore(InMemoryTokenStore):
    """Breaks one promise."""

    def at(self, rollout_id: str) -> Rollout:
        """Find or make a rollout's facts."""
        return self.backend.writable(rollout_id)


def caught_by(check: str) -> Callable[[S], S]:
    """Enter a broken store into the table."""

    def enter(store: S) -> S:
        BROKEN_STORES[store] = check
        return store

    return enter
