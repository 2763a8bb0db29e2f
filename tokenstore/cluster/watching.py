"""What a manifest knows of its shards: each is asked how it is, again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.values import ShardStatus

logger = logging.getLogger("tokenstore")

LOOK_SECONDS = 2.0
"""Between two looks at the shards, and how long each may take to answer."""

Ask = Callable[[ShardPlan], Any]
"""Asks a shard how it is, and gives a reference of its answer; None if there is no such shard now."""
Answers = Callable[[Mapping[int, Any], float], Mapping[int, Any]]
"""Waits some seconds for answers, and gives those that came, by the keys of their references."""


class Watch:
    """Looks at the shards of a store.

    A shard that has not answered is not asked again before it does: calls to one that is away would pile up. What it
    answers then says how it was when it was asked, so it is asked once more.

    Args:
        shards: All of them, in their order.
        ask: How to ask one.
        answers: How to wait for answers.
    """

    def __init__(self, shards: tuple[ShardPlan, ...], ask: Ask, answers: Answers) -> None:
        self._shards = shards
        self._ask = ask
        self._answers = answers
        self._known = {shard.index: _unknown(shard) for shard in shards}
        self._asked: dict[int, Any] = {}

    def known(self) -> tuple[ShardStatus, ...]:
        """Give how each shard was at the last look."""
        return tuple(self._known[shard.index] for shard in self._shards)

    def look(self) -> None:
        """Ask every shard, and wait for the answers. Blocks."""
        late = self._answered(0)
        for shard in self._shards:
            if shard.index not in self._asked and (reference := self._reference(shard)) is not None:
                self._asked[shard.index] = reference
        answered = {**late, **self._answered(LOOK_SECONDS)}
        for index, before in self._known.items():
            self._known[index] = answered.get(index) or _away(before)

    def _reference(self, shard: ShardPlan) -> Any:
        """Ask a shard; whom nobody can ask, because Ray's head is away, does not answer."""
        try:
            return self._ask(shard)
        except Exception:  # the looks must go on
            logger.warning("shard %d cannot be asked how it is", shard.index, exc_info=True)
            return None

    def _answered(self, seconds: float) -> dict[int, ShardStatus]:
        """Wait for answers; what is none of ours is an error of a shard that has just gone."""
        try:
            came = self._answers(self._asked, seconds)
        except Exception:
            logger.warning("the shards' answers cannot be fetched", exc_info=True)
            return {}
        for index in came:
            del self._asked[index]
        return {index: answer for index, answer in came.items() if isinstance(answer, ShardStatus)}


def _unknown(shard: ShardPlan) -> ShardStatus:
    return ShardStatus(index=shard.index, directory=shard.directory, pinned_to=shard.node)


def _away(before: ShardStatus) -> ShardStatus:
    """A shard that does not answer, with what was known of it."""
    return attrs.evolve(before, state="unavailable", unavailable_since=before.unavailable_since or time.time())
