"""Killing the head of a real Ray cluster under writers: the cluster is gone, and nothing that was acknowledged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.ledger import problems, read, writing
from tests.cluster.nodes import HEAD, SECOND, need_ray, ray_nodes
from tests.cluster.test_ray_kills import KILLS
from tokenstore import TokenCaptureStore
from tokenstore.cluster import ClusterConfig, deploy
from tokenstore.cluster.placement import shard_of

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]


def test_a_killed_head(tmp_path: Path) -> None:
    """Without external storage the head takes the Ray cluster with it, and no file: a new cluster goes on with them."""
    need_ray()
    config = ClusterConfig(name="head", root=tmp_path, shards=2)
    away, files = [], []
    for number in range(KILLS + 1):
        with ray_nodes(SECOND) as there:
            began = time.monotonic()
            deploy(config)
            if number:
                away.append(time.monotonic() - began)
            with writing(there.address, config.name, tmp_path, f"w{number}") as writers:
                writers.more(40)
                there.kill(HEAD)
                before = writers.acked()
            files += writers.files
    assert before > 0
    ledger = read(files)
    stores = [TokenCaptureStore(tmp_path / f"shard-0000{index}") for index in range(2)]
    wrong = problems(ledger, lambda rollout: stores[shard_of(rollout, 2)].freeze_now(rollout))
    print(  # noqa: T201 - a measurement
        f"head: {KILLS + 1} kills, up again after {', '.join(f'{one:.1f}' for one in away)} s; {ledger.puts} puts "
        f"acknowledged in {len(ledger.acked)} rollouts, {len(wrong)} wrong"
    )
    assert wrong == []
