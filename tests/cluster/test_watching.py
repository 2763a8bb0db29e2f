"""A manifest knows how its shards are."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tokenstore import StoreConfig
from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.values import ShardState, ShardStatus
from tokenstore.cluster.watching import LOOK_SECONDS, Watch

SHARDS = tuple(
    ShardPlan(
        store="runs", index=index, count=2, directory=f"{index}", placement="pinned", node="", config=StoreConfig()
    )
    for index in range(2)
)


@attrs.define
class SlowNodes:
    """Shards that answer when they are told to; an answer says how the shard was when it answered."""

    states: dict[int, ShardState | OSError] = attrs.field(factory=dict)
    """Shards that answer at once, and what."""
    away: bool = False
    """Whether nobody can be asked, nor answers be fetched."""
    gone: set[int] = attrs.field(factory=set)
    """Shards that are not there."""
    asked: list[int] = attrs.field(factory=list)
    """Every shard asked, in order."""
    answered: dict[int, ShardStatus | OSError] = attrs.field(factory=dict)
    """Answers that nobody has fetched yet, by the number of the request."""

    def ask(self, shard: ShardPlan) -> int | None:
        """Ask a shard, and give the number of the request."""
        if self.away:
            raise ConnectionError("no head")
        if shard.index in self.gone:
            return None
        self.asked.append(shard.index)
        self.answer()
        return len(self.asked)

    def answer(self) -> None:
        """Let the shards that can answer what they were asked."""
        for number, index in enumerate(self.asked, start=1):
            if (state := self.states.get(index)) is not None:
                self.answered.setdefault(number, told(index, state))

    def answers(self, references: Mapping[int, int], seconds: float) -> Mapping[int, ShardStatus | OSError]:
        """Give the answers that are there; time passes for nobody here."""
        assert seconds in (0, LOOK_SECONDS)
        if self.away:
            raise ConnectionError("no head")
        return {key: self.answered[number] for key, number in references.items() if number in self.answered}


def told(index: int, state: ShardState | OSError) -> ShardStatus | OSError:
    """Make the answer of a shard."""
    return state if isinstance(state, OSError) else ShardStatus(index=index, directory=f"{index}", state=state)


def seen(watch: Watch) -> list[ShardState]:
    """Look, and give the states of the shards."""
    watch.look()
    return [shard.state for shard in watch.known()]


def test_a_look_tells_how_the_shards_are() -> None:
    """Before the first look every shard is unavailable, after it each is what it says."""
    nodes = SlowNodes(states={0: "up", 1: "waiting for the lock"})
    watch = Watch(SHARDS, nodes.ask, nodes.answers)

    assert [(shard.state, shard.directory) for shard in watch.known()] == [("unavailable", "0"), ("unavailable", "1")]
    assert seen(watch) == ["up", "waiting for the lock"]
    assert [shard.unavailable_since for shard in watch.known()] == [None, None]


def test_an_answer_to_an_earlier_look_is_not_taken_for_the_state_of_now() -> None:
    """A shard that answered late that it opens, and is up since, is up at the next look."""
    nodes = SlowNodes(states={0: "up"})
    watch = Watch(SHARDS, nodes.ask, nodes.answers)
    assert seen(watch) == ["up", "unavailable"]
    nodes.states[1] = "opening"
    nodes.answer()
    nodes.states[1] = "up"

    assert seen(watch) == ["up", "up"]


def test_a_shard_that_answers_late_each_time_is_there() -> None:
    """A shard that is slower than a look is what it last said, and calls to it do not pile up."""
    nodes = SlowNodes(states={0: "up"})
    watch = Watch(SHARDS, nodes.ask, nodes.answers)
    for _ in range(3):
        watch.look()
    assert nodes.asked.count(1) == 1
    nodes.states[1] = "up"
    nodes.answer()
    del nodes.states[1]

    assert seen(watch) == ["up", "up"]
    assert nodes.asked.count(1) == 2


def test_a_shard_that_goes_is_unavailable_since_then() -> None:
    """A shard that ends, or whose call fails, keeps what was known of it, and the time it was first missed."""
    nodes = SlowNodes(states={0: "up", 1: "up"})
    watch = Watch(SHARDS, nodes.ask, nodes.answers)
    watch.look()
    nodes.states[0] = OSError("the actor died")
    nodes.gone.add(1)

    assert seen(watch) == ["unavailable", "unavailable"]
    first = [shard.unavailable_since for shard in watch.known()]
    assert None not in first
    watch.look()
    assert [shard.unavailable_since for shard in watch.known()] == first
    nodes.gone.clear()
    nodes.states[0] = "up"
    assert seen(watch) == ["up", "up"]


def test_who_cannot_be_asked_is_unavailable() -> None:
    """Where asking itself fails, because Ray's head is away, shards are unavailable and the next look goes on."""
    nodes = SlowNodes(states={0: "up", 1: "up"}, away=True)
    watch = Watch(SHARDS, nodes.ask, nodes.answers)

    assert seen(watch) == ["unavailable", "unavailable"]
    nodes.away = False
    assert seen(watch) == ["up", "up"]
