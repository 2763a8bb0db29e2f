"""A cluster store on a real Ray cluster: every promise, both event loops, from this process as a driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.running import Run, Runner
from tests.cluster.nodes import HEAD, SECOND, THIRD, Nodes, need_ray, ray_nodes, until
from tests.samples import entry
from tests.test_readme import examples_of, run_example
from tokenstore import TokenCaptureStore
from tokenstore.cli import main
from tokenstore.cluster import ClusterConfig, ClusterStore, connect, deploy, down, status
from tokenstore.cluster.nemo_gym import ClusterTokenSink, ClusterTokenSource
from tokenstore.cluster.placement import shard_of
from tokenstore.cluster.remote import RemoteShard
from tokenstore.errors import ClusterMismatchError, ShardUnavailableError
from tokenstore.testing import CHECKS, agent_rollout, first_difference, run_check

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("nodes"),
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster of three nodes."""
    need_ray()
    with ray_nodes(SECOND, THIRD) as there:
        yield there


@pytest.fixture(scope="module")
def store(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterConfig]:
    """A store of two shards on the other nodes, in memory if there is some."""
    config = ClusterConfig(name="promises", root=tmp_path_factory.mktemp("promises"), shards=2, nodes=[SECOND, THIRD])
    deploy(config)
    assert nodes.by_address.keys() == {HEAD, SECOND, THIRD}
    yield config
    down("promises")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run a command line in this process."""

    def run(*arguments: object) -> Run:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Run(code, captured.out, captured.err)

    return run


@pytest.mark.anyio
async def test_every_promise_is_kept_through_ray(store: ClusterConfig) -> None:
    """The conformance suite passes through real actors, each client with channels of its own."""
    for check in CHECKS:
        await run_check(check, lambda: connect(store.name), lambda: connect(store.name))


@pytest.mark.anyio
async def test_a_large_snapshot_comes_in_parts(store: ClusterConfig) -> None:
    """A rollout of 12 MB on the wire comes back value for value, and so do its entries one by one."""
    calls = [
        entry(f"c{number}", rollout_id="large", prompt_token_ids=list(range(number, 300_000))) for number in range(8)
    ]
    async with connect(store.name) as there:
        for call in calls:
            await there.put(call)
        snapshot = await there.freeze("large")
        again = await there.freeze("large")
        single = [call async for call in there.entries("large")]
        await there.delete(["large"])

    assert snapshot == again
    assert [first_difference(one, two) for one, two in zip(calls, snapshot.entries, strict=True)] == [None] * 8
    assert single == list(snapshot.entries)


@pytest.mark.anyio
async def test_the_shards_of_this_node_are_written_directly(tmp_path: Path) -> None:
    """The shard whose directory is on the driver's node is a store of this process, also while its actor is gone."""
    config = ClusterConfig(name=f"direct-{tmp_path.name[-20:]}", root=tmp_path, shards=3, nodes=[HEAD, SECOND, THIRD])
    await anyio.to_thread.run_sync(deploy, config)
    async with connect(config.name) as there:
        kinds = [type(shard) for shard in there._shards or ()]
        rollout = next(f"r{number}" for number in range(99) if shard_of(f"r{number}", 3) == 0)
        await anyio.to_thread.run_sync(down, config.name)
        await there.put(entry("c0", rollout_id=rollout))
        snapshot = await there.freeze(rollout)

    assert kinds == [TokenCaptureStore, RemoteShard, RemoteShard]
    assert len(snapshot.entries) == 1


def test_deploying_again_is_a_no_op(tmp_path: Path) -> None:
    """A second deployment finds what is up; another configuration of the name is refused; taken down the files stay."""
    config = ClusterConfig(name="again", root=tmp_path, shards=2)
    first = deploy(config)
    pids = [shard.pid for shard in status("again").shards]
    assert deploy(config) == first
    assert [shard.pid for shard in status("again").shards] == pids
    with pytest.raises(ClusterMismatchError, match="shards is 2, expected 3"):
        deploy(ClusterConfig(name="again", root=tmp_path, shards=3))

    client = connect("again")
    anyio.run(client.put, entry("c0"))
    assert down("again") == 2
    with pytest.raises(ShardUnavailableError, match="there is no such store"):
        status("again")

    plain = TokenCaptureStore(tmp_path / f"shard-0000{shard_of('r', 2)}")
    assert [call.model_call_id for call in plain.read_entries("r")] == ["c0"]
    assert deploy(config) == first
    assert len(anyio.run(client.freeze, "r").entries) == 1
    down("again")


def test_a_lost_disk_is_noticed(tmp_path: Path) -> None:
    """A shard whose directory is gone is not started empty unless that is accepted, and the others keep theirs."""
    config = ClusterConfig(name="lost", root=tmp_path, shards=2, nodes=[SECOND])
    deploy(config)
    down("lost")
    (tmp_path / "shard-00001").rename(tmp_path / "moved")

    with pytest.raises(ClusterMismatchError, match="accept_empty"):
        deploy(config)
    until(lambda: [shard.state for shard in status("lost").shards] == ["up", "failed"])
    deploy(config, accept_empty=True)
    assert (tmp_path / "shard-00001" / "shard.json").exists()
    down("lost")


def test_nemo_gym_writes_into_a_cluster(store: ClusterConfig) -> None:
    """The sink and the source of NeMo Gym work from loops that come and go, none of them entered."""
    sink, source = ClusterTokenSink(name=store.name), ClusterTokenSource(name=store.name)
    calls = agent_rollout("gym", turns=3, first_prompt=300)
    for number, call in enumerate(calls):
        anyio.run(sink.put, call, backend="trio" if number % 2 else "asyncio")

    snapshot = anyio.run(source.freeze, "gym")

    found: Any = snapshot.entries
    assert [call.model_dump()["prompt_token_ids"] for call in found] == [call.prompt_token_ids for call in calls]
    assert anyio.run(ask_to_drop, source, snapshot.snapshot_id, snapshot.version)
    anyio.run(source.delete, ["gym"])


async def ask_to_drop(source: ClusterTokenSource, snapshot_id: str, version: int) -> bool:
    """Drop the rollout."""
    return await source.drop("gym", snapshot_id=snapshot_id, version=version)


def test_the_command_line(run: Runner, tmp_path: Path) -> None:
    """`up`, `status`, `check-fs` and `down` do what they say, in tables and in JSON."""
    checked = run("cluster", "check-fs", HEAD, SECOND, "--root", tmp_path)
    checked_as_json = run("cluster", "check-fs", SECOND, "--root", tmp_path, "--json")
    words = ("cluster", "up", "line", "--root", tmp_path, "--placement", "floating")
    up, again = run(*words, "--shards", 2), run(*words, "--shards", 2, "--json")
    shown, shown_as_json = run("cluster", "status", "line"), run("cluster", "status", "line", "--json")
    refused, unasked = run(*words, "--shards", 3), run("cluster", "down", "line")
    gone = run("cluster", "down", "line", "--yes")
    nobody = run("cluster", "status", "line", "--json")

    done = (checked, checked_as_json, up, again, shown, shown_as_json, gone)
    assert [(result.out, result.err) for result in done if result.status] == []
    assert [(result.status, result.out, result.err.count("\n")) for result in (refused, unasked, nobody)] == [
        (1, "", 1)
    ] * 3
    assert "shards is 2, expected 3" in refused.err
    assert "tokenstore cluster up" in nobody.err
    assert "can carry floating shards" in checked.out
    assert [proof["problem"] for proof in json.loads(checked_as_json.out)] == [""] * 3
    assert "line: 2 shards are up" in up.out
    assert [shard["index"] for shard in json.loads(again.out)["shards"]] == [0, 1]
    assert "line: 2 of 2 shards are up, floating" in shown.out
    assert "1, pid " in shown.out
    assert [shard["holder"]["epoch"] for shard in json.loads(shown_as_json.out)["shards"]] == [1, 1]
    assert gone.out == "line is down: 2 shards ended, every file stays\n"


@pytest.mark.anyio
async def test_a_store_that_is_not_there_is_told() -> None:
    """Using a store that was never deployed says so, and that nothing was done."""
    with pytest.raises(ShardUnavailableError, match="there is no such store") as caught:
        await ClusterStore(connect("nobody")._link).put(entry())

    assert not caught.value.outcome_unknown


def test_the_example_of_the_readme_runs(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example deploys a store, writes, freezes and drops, as it stands, and finds the cluster by `RAY_ADDRESS`."""
    [example] = examples_of("Many machines, on Ray")
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)

    printed = run_example(example, tmp_path, warnings="ignore")

    assert printed == "1 calls to train on\n"
    assert status("runs").config.shards == 4
    down("runs")
