"""Whatever happens to calls on their way, a cluster store does what one store in memory would have done.

Hypothesis makes up a run of operations and what happens to each call: answered, done twice, its shard ended before or
after it, its answer lost. The same operations go to a store in memory; where the cluster gave an answer it must be the
same, and at the end both hold the same.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cluster.inprocess import Event, cluster
from tests.samples import entry
from tokenstore import TokenCaptureSnapshot, TokenStoreError
from tokenstore.cluster import ClusterStore
from tokenstore.testing import InMemoryTokenStore

ROLLOUTS = ("r0", "r1", "r2")
CALLS = ("a", "b")
Step = tuple[Any, ...]

STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(ROLLOUTS), st.sampled_from(CALLS), st.sampled_from((1, 2))),
    st.tuples(st.just("begin"), st.sampled_from(ROLLOUTS), st.sampled_from(CALLS)),
    st.tuples(st.just("refuse"), st.sampled_from(ROLLOUTS), st.sampled_from(CALLS), st.sampled_from(("x", None))),
    st.tuples(st.just("mark"), st.sampled_from(ROLLOUTS), st.sampled_from(CALLS)),
    st.tuples(st.just("freeze"), st.sampled_from(ROLLOUTS)),
    st.tuples(st.just("peek"), st.sampled_from(ROLLOUTS)),
    st.tuples(st.just("drop"), st.sampled_from(ROLLOUTS)),
    st.tuples(st.just("retire"), st.lists(st.sampled_from(ROLLOUTS), max_size=3)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(ROLLOUTS), max_size=3)),
)
WRITES: dict[str, Callable[..., Awaitable[None]]] = {
    "put": lambda store, rollout, call, one: store.put(entry(call, rollout_id=rollout, prompt_token_ids=[one])),
    "begin": lambda store, rollout, call: store.begin_call(rollout, call),
    "refuse": lambda store, rollout, call, code: store.refuse_call(rollout, model_call_id=call, code=code),
    "mark": lambda store, rollout, call: store.mark_incomplete(rollout, call),
}
EVENTS: Sequence[Event] = ("answer", "ends before", "ends after", "twice", "broken")


class Player:
    """Plays steps on a store, and remembers the snapshots that it was given.

    Args:
        store: The store.
    """

    def __init__(self, store: ClusterStore | InMemoryTokenStore) -> None:
        self._store = store
        self._frozen: dict[str, TokenCaptureSnapshot] = {}

    async def play(self, step: Step) -> object:
        """Play a step and give what can be compared of its answer."""
        try:
            return await self._played(*step)
        except TokenStoreError as error:
            return type(error).__name__

    async def _played(self, name: str, rollout: Any, *rest: Any) -> object:
        store = self._store
        if name in WRITES:
            await WRITES[name](store, rollout, *rest)
            return None
        if name == "freeze":
            self._frozen[rollout] = await store.freeze(rollout)
            return shown(self._frozen[rollout])
        if name == "peek":
            return shown(await store.peek(rollout))
        if name == "drop":
            known = self._frozen.get(rollout)
            pair = ("nobody's", 1) if known is None else (known.snapshot_id, known.version)
            return await store.drop(rollout, snapshot_id=pair[0], version=pair[1])
        remove = store.retire if name == "retire" else store.delete
        return await remove(rollout)


def shown(snapshot: TokenCaptureSnapshot) -> object:
    """Give what two stores must agree on."""
    calls = [(call.model_call_id, call.prompt_token_ids) for call in snapshot.entries]
    refused = sorted((one.model_call_id, str(one.code)) for one in snapshot.refusals)
    return calls, refused, snapshot.incomplete, snapshot.version, snapshot.frozen, sorted(snapshot.open_calls)


def repeated_tells(name: str, events: Sequence[Event]) -> bool:
    """Whether a removal that was done twice tells of the second time: what it removed is then absent."""
    return name in ("retire", "delete") and any(event != "answer" for event in events)


async def run(steps: Sequence[Step], events: Sequence[Event], root: Path) -> int:
    """Play everything on both, compare every answer, and give how many shards were started."""
    model = Player(InMemoryTokenStore())
    weather: Iterator[Event] = itertools.chain(events, itertools.repeat("answer"))
    async with cluster(root, weather=weather) as there:
        player = Player(there.client())
        for step in steps:
            expected = await model.play(step)
            before = [len(transport.events) for transport in there.transports] or [0] * len(there.hosted)
            while (found := await player.play(step)) == "RemovalError":
                assert step[0] == "delete"  # which is not repeated by itself; nothing else uses the store, so it is now
            happened = [event for one, at in zip(there.transports, before, strict=True) for event in one.events[at:]]
            if repeated_tells(step[0], happened):
                assert isinstance(found, str) == isinstance(expected, str)
            else:
                assert found == expected, (step, happened)
        for rollout in ROLLOUTS:
            assert await player.play(("freeze", rollout)) == await model.play(("freeze", rollout))
        return sum(hosted.starts for hosted in there.hosted)


def memory() -> str | None:
    """A directory in memory, if the machine has one: hundreds of syncs, and the disk is not the point."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of its own is made there


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, min_size=1, max_size=12), events=st.lists(st.sampled_from(EVENTS), max_size=16))
def test_a_cluster_is_like_one_store(backend: str, steps: list[Step], events: list[Event]) -> None:
    """Every answer and the end are those of one store in memory, whatever happens to calls."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        assert anyio.run(run, steps, events, Path(folder).resolve(), backend=backend) >= 1
