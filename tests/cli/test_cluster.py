"""`tokenstore cluster` as far as it goes without Ray; with it, see tests/cluster."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import Runner
from tokenstore import StoreStatistics
from tokenstore.cli.cluster import STATUS_COLUMNS, row_of
from tokenstore.cluster.claim import Holder
from tokenstore.cluster.values import ShardStatus

ACTIONS = {
    "up": ["up", "runs", "--shards", "2"],
    "status": ["status", "runs"],
    "check-fs": ["check-fs"],
    "down": ["down", "runs", "--yes"],
}


@pytest.mark.parametrize("action", ACTIONS)
def test_without_ray_the_command_to_install_it_is_told(
    action: str, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every action says in one line what to install where Ray is not."""
    monkeypatch.setitem(sys.modules, "ray", None)
    root = ["--root", tmp_path] if action in ("up", "check-fs") else []

    result = run("cluster", *ACTIONS[action], *root)

    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert "pip install 'tokenstore[ray]'" in result.err


@pytest.mark.parametrize("words", [[], ["up", "runs"], ["up", "--shards", "2"], ["status"], ["fly"]])
def test_wrong_usage(words: list[str], run: Runner) -> None:
    """A wrong command line says how to use it."""
    result = run("cluster", *words)

    assert (result.status, result.out) == (2, "")
    assert "usage:" in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a/b", "--shards", "2"], "ClusterConfig.name"),
        (["runs", "--shards", "0"], "ClusterConfig.shards"),
    ],
)
def test_a_wrong_value_is_named(words: list[str], said: str, run: Runner, tmp_path: Path) -> None:
    """A value that is not allowed is an error of one line that names it."""
    result = run("cluster", "up", *words, "--root", tmp_path)

    assert (result.status, result.err.count("\n")) == (1, 1)
    assert said in result.err


def test_taking_down_asks_first(run: Runner) -> None:
    """Without a terminal and without `--yes` nothing is taken down."""
    result = run("cluster", "down", "runs")

    assert (result.status, result.err.count("\n")) == (1, 1)
    assert "give --yes" in result.err


def test_rows_tell_what_is_known() -> None:
    """A row has a cell for each column, whether the shard is up or was never seen."""
    up = ShardStatus(
        index=3,
        directory="/d/shard-00003",
        state="up",
        node="10.0.0.7",
        pid=12,
        holder=Holder(epoch=2, node="10.0.0.7", pid=12),
        statistics=StoreStatistics(puts=5, written=1600, put_p99=0.0031),
    )
    away = ShardStatus(index=4, directory="/d/shard-00004", pinned_to="rack=a", unavailable_since=time.time() - 60)

    rows = [row_of(up), row_of(away)]

    assert rows[0][:8] == ["3", "up", "10.0.0.7", "/d/shard-00003", "2, pid 12", "5", "1.6 kB", "3.1 ms"]
    assert rows[1][:8] == ["4", "unavailable", "rack=a", "/d/shard-00004", "-", "", "", ""]
    assert rows[0][8] == ""
    assert rows[1][8].endswith(", 60.0 s ago")
    assert {len(row) for row in rows} == {len(STATUS_COLUMNS)}
