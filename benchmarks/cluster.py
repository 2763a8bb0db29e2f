"""A cluster store on Ray: through a shard's actor beside an empty actor call, and directly beside the plain store.

Two Ray nodes on loopback addresses of this machine; the clients are tasks of one process on the first. The empty call
goes to an actor on the second node whose method gets the same bytes, in the same pieces, made before the clock starts,
and returns nothing: what Ray itself costs for a call that does nothing. A put through a shard is on the disk when it
returns.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio

from benchmarks.contenders.ours import PER_FILE
from benchmarks.harness.children import in_child
from benchmarks.harness.load import check_stored
from benchmarks.harness.shapes import Shape, rollouts_of, work_out_of_sight
from benchmarks.harness.statistics import percentile
from benchmarks.harness.suite import OURS, Key, Run, Target, Values, installed
from tokenstore import TokenCaptureStore, TokenEntry

TITLE = "Cluster on Ray: a remote shard beside an empty actor call, a direct one beside the plain store"
PLOTS = ("puts/s", "p50 ms")
SIZES = {"18 KB": Shape(1536, 512), "175 KB": Shape(24_576, 1152)}
"""Entries by the bytes of their lines."""
CLIENTS = {1: 60, 16: 20, 128: 6}
"""Clients at once, and the puts that each waits for."""
REMOTE, DIRECT, EMPTY = "remote shard", "direct shard", "empty actor call"
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
"""Addresses of the nodes; 127.0.0.1 would be replaced by an outer one."""
ENVIRONMENT = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0", "no_proxy": "*", "NO_PROXY": "*"}
STORE_BYTES = 256 * 1024 * 1024
"""Memory of a node's object store."""

Put = Callable[[Any], Awaitable[object]]
"""Puts an entry; the empty call is given its bytes."""


def case_of(size: str, clients: int) -> str:
    """Name the work."""
    return f"{size}, {clients} clients"


def targets() -> list[Target]:
    """A remote put costs not much more than Ray itself, and a direct one hardly more than the plain store."""
    cases = [case_of(size, clients) for size in SIZES for clients in CLIENTS]
    pairs = [(REMOTE, EMPTY, 0.6), (DIRECT, OURS, 0.9)]
    return [
        Target(
            text=f"{case}: puts/s, {who} over {other}",
            value=Key(case, who, "puts/s"),
            over=Key(case, other, "puts/s"),
            at_least=limit,
        )
        for who, other, limit in pairs
        for case in cases
    ]


def measure(run: Run) -> Values:
    """Measure everything once, in a process of its own: it becomes part of a Ray cluster."""
    if not installed("ray"):
        return {}
    order = run.turn([EMPTY, REMOTE, DIRECT, OURS])
    share = run.size(1.0, 0.1)
    return dict(in_child(_measure, str(run.place().absolute()), order, share))


def _measure(folder: str, order: Sequence[str], share: float) -> list[tuple[Key, float]]:
    from tokenstore.cluster import ClusterConfig, deploy, down  # noqa: PLC0415 - only this process needs it
    from tokenstore.cluster.config import plan_of  # noqa: PLC0415

    with _nodes():
        remote = ClusterConfig(name="remote", root=f"{folder}/remote", shards=1, nodes=[OTHER])
        direct = ClusterConfig(name="direct", root=f"{folder}/direct", shards=1, nodes=[HEAD])
        for config in (remote, direct):
            deploy(config)
        found = anyio.run(_all_cases, folder, order, share)
        for config in (remote, direct):
            down(config.name)
    puts = len(SIZES) * sum(clients * _puts_of(each, share) for clients, each in CLIENTS.items())
    for directory in (*[plan_of(config, ()).shards[0].directory for config in (remote, direct)], f"{folder}/plain"):
        check_stored(PER_FILE, Path(directory), puts)
    return found


def _puts_of(each: int, share: float) -> int:
    """Tell how many puts a client makes: a first one, and those that are measured."""
    return 1 + max(2, int(each * share))


async def _all_cases(folder: str, order: Sequence[str], share: float) -> list[tuple[Key, float]]:
    from tokenstore.cluster import connect  # noqa: PLC0415

    found: list[tuple[Key, float]] = []
    async with connect("remote") as remote, connect("direct") as direct, TokenCaptureStore(f"{folder}/plain") as plain:
        puts: dict[str, Put] = {REMOTE: remote.put, DIRECT: direct.put, OURS: plain.put, EMPTY: _empty_call()}
        number = 0
        for size, shape in SIZES.items():
            for clients, each in CLIENTS.items():
                number += 1
                rollouts = rollouts_of(shape, clients, _puts_of(each, share))
                for who in order:
                    named = [_renamed(entries, f"{number}-{place}") for place, entries in enumerate(rollouts)]
                    given = named if who != EMPTY else [[_pieces(entry) for entry in entries] for entries in named]
                    values = await _side_by_side(puts[who], given)
                    found += [(Key(case_of(size, clients), who, what), value) for what, value in values.items()]
    return found


async def _side_by_side(put: Put, rollouts: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Have every client put its entries one after the other, after a first one that opens files."""
    seconds: list[float] = []

    async def client(entries: Sequence[Any]) -> None:
        for entry in entries:
            started = perf_counter()
            await put(entry)
            seconds.append(perf_counter() - started)

    async def all_of(some: Sequence[Sequence[Any]]) -> None:
        async with anyio.create_task_group() as clients:
            for entries in some:
                clients.start_soon(client, entries)

    await all_of([entries[:1] for entries in rollouts])
    seconds.clear()
    with work_out_of_sight():
        started = perf_counter()
        await all_of([entries[1:] for entries in rollouts])
        took = perf_counter() - started
    return {
        "puts/s": len(seconds) / took,
        "p50 ms": percentile(seconds, 0.5) * 1e3,
        "p99 ms": percentile(seconds, 0.99) * 1e3,
    }


def _renamed(entries: Sequence[TokenEntry], rollout_id: str) -> list[TokenEntry]:
    import attrs  # noqa: PLC0415

    return [attrs.evolve(entry, rollout_id=rollout_id) for entry in entries]


def _empty_call() -> Put:
    """Give a function that sends pieces of bytes to an actor that does nothing with them."""
    import ray  # noqa: PLC0415

    class Empty:
        async def call(self, *pieces: bytes) -> bytes:
            return b"" if pieces else b"none"

    place: Any = {"num_cpus": 0, "resources": {f"node:{OTHER}": 0.001}}
    actor = ray.remote(Empty).options(**place).remote()

    async def put(pieces: Sequence[bytes]) -> object:
        return await actor.call.remote(*pieces)

    return put


def _pieces(entry: TokenEntry) -> list[bytes]:
    """What a remote put of an entry sends."""
    from tokenstore.cluster.wire import Operation, cut, encode_operation, pack  # noqa: PLC0415
    from tokenstore.codec import prepare  # noqa: PLC0415

    return cut(pack([encode_operation(Operation("put", (prepare(entry),)))]))


@contextmanager
def _nodes() -> Iterator[None]:
    """Run two Ray nodes, with this process as a driver on the first; they end by their process ids."""
    os.environ.update(ENVIRONMENT)
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    cluster = Cluster(shutdown_at_exit=False)
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    nodes = [cluster.add_node(node_ip_address=HEAD, include_dashboard=False, **options)]
    try:
        nodes.append(cluster.add_node(node_ip_address=OTHER, **options))
        quiet = {"log_to_driver": False, "logging_level": "error"}
        ray.init(address=cluster.address, _node_ip_address=HEAD, namespace="benchmark", **quiet)
        yield
    finally:
        ray.shutdown()
        kinds = chain.from_iterable(node.all_processes.values() for node in nodes)
        for process in chain.from_iterable(kinds):
            with suppress(ProcessLookupError):
                os.kill(process.process.pid, signal.SIGKILL)  # their workers end with them
