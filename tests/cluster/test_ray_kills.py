"""Killing shards and nodes of a real Ray cluster under writers: nothing acknowledged is ever lost.

Two programs write all the while, one on asyncio and one on trio. What they were told is in their ledgers; afterwards
every rollout is frozen twice and compared. `TOKENSTORE_CLUSTER_KILLS` sets how often each thing is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.cluster.ledger import Ledger, Writers, problems, read, writing
from tests.cluster.nodes import SECOND, THIRD, Nodes, need_ray, ray_nodes, until
from tokenstore import TokenCaptureSnapshot
from tokenstore.cluster import ClusterConfig, ShardStatus, connect, deploy, down, status

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]
KILLS = int(os.environ.get("TOKENSTORE_CLUSTER_KILLS", "1"))
"""How often each thing is killed."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster of three nodes."""
    need_ray()
    with ray_nodes(SECOND, THIRD) as there:
        yield there


def shards(name: str) -> tuple[ShardStatus, ...]:
    """Give the shards of a store when all are up."""

    def found() -> tuple[ShardStatus, ...] | None:
        there = status(name).shards
        return there if all(shard.state == "up" for shard in there) else None

    up: tuple[ShardStatus, ...] = until(found, 120)
    return up


def account(name: str, writers: Writers, what: str, away: list[float]) -> Ledger:
    """See that nothing is wrong, and say what was seen."""
    ledger = read(writers.files)
    wrong = problems(ledger, lambda rollout: frozen(name, rollout))
    took = ", ".join(f"{seconds:.1f}" for seconds in away)
    print(  # noqa: T201 - a measurement
        f"{what}: {len(away)} kills, back after {took} s; {ledger.puts} puts acknowledged in {len(ledger.acked)} "
        f"rollouts, {ledger.counts['unavailable']} answers that it was away, {len(wrong)} wrong"
    )
    assert wrong == []
    assert ledger.puts > 40
    return ledger


def frozen(name: str, rollout: str) -> TokenCaptureSnapshot:
    """Freeze a rollout."""

    async def freeze() -> TokenCaptureSnapshot:
        return await connect(name).freeze(rollout)

    return anyio.run(freeze)


def back(name: str, index: int, pid: int | None, began: float) -> float:
    """Wait until a shard runs in another process, and give the seconds that it took."""
    until(lambda: (shard := status(name).shards[index]).state == "up" and shard.pid != pid, 120)
    return time.monotonic() - began


def test_killed_shards(nodes: Nodes, tmp_path: Path) -> None:
    """SIGKILL of shards, one after the other: they come back within seconds, and nothing is lost."""
    config = ClusterConfig(name="shards", root=tmp_path, shards=2, nodes=[SECOND, THIRD])
    deploy(config)
    away = []
    with writing(nodes.address, config.name, tmp_path, "w") as writers:
        for number in range(2 * KILLS):
            shard = shards(config.name)[number % 2]
            assert shard.pid is not None
            os.kill(shard.pid, signal.SIGKILL)
            away.append(back(config.name, shard.index, shard.pid, time.monotonic()))
            writers.more(40)

    account(config.name, writers, "shards", away)
    down(config.name)


def test_a_killed_node_of_a_pinned_shard(nodes: Nodes, tmp_path: Path) -> None:
    """A pinned shard waits for its node, and goes on from its own disk when the node is back."""
    config = ClusterConfig(name="pinned", root=tmp_path, shards=2, nodes=[SECOND, THIRD])
    deploy(config)
    away = []
    with writing(nodes.address, config.name, tmp_path, "w") as writers:
        for _ in range(KILLS):
            pid = shards(config.name)[1].pid
            began = time.monotonic()
            nodes.kill(THIRD)
            until(lambda: status(config.name).shards[1].unavailable_since, 60)
            nodes.add(THIRD)
            away.append(back(config.name, 1, pid, began))
            writers.more(40)

    account(config.name, writers, "pinned node", away)
    down(config.name)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_node_of_a_floating_shard(number: int, nodes: Nodes, tmp_path: Path) -> None:
    """A floating shard starts on another node, with the next claim, and goes on from the shared files."""
    config = ClusterConfig(name=f"floating-{number}", root=tmp_path, shards=3, placement="floating")
    deploy(config)
    with writing(nodes.address, config.name, tmp_path, "w") as writers:
        shard = next(one for one in shards(config.name) if one.node in (SECOND, THIRD))
        began = time.monotonic()
        nodes.kill(shard.node)
        away = [back(config.name, shard.index, shard.pid, began)]
        again = status(config.name).shards[shard.index]
        writers.more(40)
        nodes.add(shard.node)

    assert again.holder is not None
    assert shard.holder is not None
    assert again.holder.epoch > shard.holder.epoch
    account(config.name, writers, "floating node", away)
    down(config.name)


def test_a_stopped_shard_that_revives_cannot_write(nodes: Nodes, tmp_path: Path) -> None:
    """A shard of a node that hung until Ray gave it up ends when it runs again, and nothing is lost or doubled."""
    config = ClusterConfig(name="stopped", root=tmp_path, shards=3, placement="floating")
    deploy(config)
    with writing(nodes.address, config.name, tmp_path, "w") as writers:
        shard = next(one for one in shards(config.name) if one.node in (SECOND, THIRD))
        assert shard.pid is not None
        began = time.monotonic()
        stopped = nodes.stop(shard.node)
        until(lambda: status(config.name).shards[shard.index].state == "waiting for the lock", 90)
        waiting = status(config.name).shards[shard.index]
        nodes.signal(stopped, signal.SIGCONT)
        until(lambda: not is_running(shard.pid or 0), 30)
        away = [back(config.name, shard.index, shard.pid, began)]
        writers.more(40)
        nodes.signal(stopped, signal.SIGKILL)
        nodes.add(shard.node)

    assert shard.pid in stopped
    assert waiting.node != shard.node
    account(config.name, writers, "stopped and revived", away)
    down(config.name)


def is_running(pid: int) -> bool:
    """Whether there is a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
