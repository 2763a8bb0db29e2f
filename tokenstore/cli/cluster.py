"""`tokenstore cluster up|status|check-fs|down`: a store over the nodes of a Ray cluster."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tokenstore.cli.acting import add_yes, ask
from tokenstore.cli.common import EXIT_FAILED, EXIT_OK, CommandError, add_root
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds
from tokenstore.codec import to_plain

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from tokenstore.cluster import ShardStatus

    Commands = _SubParsersAction[argparse.ArgumentParser]

DEPLOY_SECONDS = 120.0
"""For all shards to open: processes start one after the other on a busy node."""
STATUS_COLUMNS = (
    Column("shard", right=True),
    Column("state"),
    Column("node"),
    Column("directory"),
    Column("claim"),
    Column("puts", right=True),
    Column("bytes", right=True),
    Column("put p99", right=True),
    Column("unavailable since"),
)


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Run one store over the nodes of a Ray cluster: bring it up, look at it, take it down. Every file stays when "
        "it is taken down, and each shard's directory opens with the other commands."
    )
    parser = commands.add_parser("cluster", help="run one store over the nodes of a Ray cluster", description=about)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_up(actions)
    _add_status(actions)
    _add_check(actions)
    _add_down(actions)


def _add_up(actions: Commands) -> None:
    about = (
        "Bring a store up, or see that it is up. A shard goes where its directory already is; one whose directory is "
        "lost is refused unless --accept-empty."
    )
    parser = _add(actions, "up", "bring a store up", about, _up)
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="how many, fixed for the store's life")
    parser.add_argument(
        "--placement",
        choices=("pinned", "floating"),
        default="pinned",
        help="pinned: each shard belongs to a node and its disk; floating: it may start elsewhere, on a shared file "
        "system (default: pinned)",
    )
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        dest="nodes",
        metavar="NODE",
        help="a node for shards to be pinned to, by address or as label=value; may be repeated (default: all nodes)",
    )
    parser.add_argument("--place", default="", metavar="MODULE:FUNCTION", help="places rollouts in place of the hash")
    parser.add_argument("--prompt-storage", choices=("shared", "full"), default="shared", help="as for a plain store")
    parser.add_argument("--sync", choices=("file", "filesystem"), default="file", help="as for a plain store")
    parser.add_argument("--accept-empty", action="store_true", help="start shards empty whose directory is lost")
    parser.add_argument(
        "--timeout",
        type=float,
        default=DEPLOY_SECONDS,
        metavar="SECONDS",
        help=f"for all shards to open (default: {DEPLOY_SECONDS:g})",
    )
    add_root(parser)


def _add_status(actions: Commands) -> None:
    about = "Show each shard: its node, directory, claim and counters, and since when it does not answer."
    _add(actions, "status", "show how each shard is", about, _status)


def _add_check(actions: Commands) -> None:
    about = (
        "Try whether a directory's file system can carry floating shards: locks, renames and syncs, from one node to "
        "each other one. What a sync is worth in a power cut cannot be tried."
    )
    parser = _add(actions, "check-fs", "try a shared file system between nodes", about, _check_fs, named=False)
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="addresses of the nodes (default: all)")
    add_root(parser)


def _add_down(actions: Commands) -> None:
    about = (
        "End the processes of a store, after what they have accepted is finished. Every file stays. Asks unless --yes."
    )
    add_yes(_add(actions, "down", "end the processes of a store", about, _down))


def _add(
    actions: Commands,
    name: str,
    brief: str,
    about: str,
    run: Callable[[argparse.Namespace, Output], int],
    *,
    named: bool = True,
) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=brief, description=about)
    if named:
        parser.add_argument("name", metavar="NAME", help="name of the store")
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="of the Ray cluster (default: $RAY_ADDRESS, or this one)"
    )
    parser.add_argument("--json", action="store_true", help="write JSON to stdout and nothing else")
    parser.set_defaults(run=lambda arguments, output: _explained(run, arguments, output))
    return parser


def _explained(run: Callable[[argparse.Namespace, Output], int], arguments: argparse.Namespace, output: Output) -> int:
    """Run an action, and say what is missing or wrong in one line."""
    try:
        return run(arguments, output)
    except (ModuleNotFoundError, ValueError, TypeError, ConnectionError) as error:
        raise CommandError(str(error)) from error


def _up(arguments: argparse.Namespace, output: Output) -> int:
    from tokenstore import StoreConfig
    from tokenstore.cluster import ClusterConfig, deploy

    config = ClusterConfig(
        name=arguments.name,
        root=arguments.root,
        shards=arguments.shards,
        placement=arguments.placement,
        nodes=arguments.nodes,
        place=arguments.place,
        store=StoreConfig(prompt_storage=arguments.prompt_storage, sync=arguments.sync),
    )
    plan = deploy(config, address=arguments.address, timeout=arguments.timeout, accept_empty=arguments.accept_empty)
    if output.json:
        output.document(to_plain(plan))
        return EXIT_OK
    rows = [[str(shard.index), shard.node or "any", shard.directory] for shard in plan.shards]
    title = f"{arguments.name}: {len(rows)} shards are up"
    output.table(title, (Column("shard", right=True), Column("node"), Column("directory")), rows)
    return EXIT_OK


def _status(arguments: argparse.Namespace, output: Output) -> int:
    from tokenstore.cluster import status

    found = status(arguments.name, address=arguments.address)
    up = sum(shard.state == "up" for shard in found.shards)
    if output.json:
        output.document(to_plain(found))
    else:
        title = f"{arguments.name}: {up} of {len(found.shards)} shards are up, {found.config.placement}"
        output.table(title, STATUS_COLUMNS, [row_of(shard) for shard in found.shards])
        for shard in found.shards:
            if shard.problem:
                output.note(f"shard {shard.index}: {shard.problem}")
    return EXIT_OK if up == len(found.shards) else EXIT_FAILED


def row_of(shard: ShardStatus) -> list[str]:
    """Give a shard's cells of the table."""
    counted = shard.statistics
    claim = "-" if shard.holder is None else f"{shard.holder.epoch}, pid {shard.holder.pid}"
    since = shard.unavailable_since
    away = "" if since is None else f"{time.strftime('%H:%M:%S', time.localtime(since))}, {_ago(since)}"
    numbers = ["", "", ""]
    if counted is not None:
        numbers = [str(counted.puts), human_bytes(counted.written), human_seconds(counted.put_p99)]
    return [str(shard.index), shard.state, shard.node or shard.pinned_to or "?", shard.directory, claim, *numbers, away]


def _ago(since: float) -> str:
    return f"{human_seconds(max(0.0, time.time() - since))} ago"


def _check_fs(arguments: argparse.Namespace, output: Output) -> int:
    from tokenstore.cluster import check_fs

    proofs = check_fs(arguments.root, arguments.nodes, address=arguments.address)
    tried = [(pair, proof) for pair, found in proofs.items() for proof in found]
    failed = sum(bool(proof.problem) for _, proof in tried)
    if output.json:
        output.document([{"nodes": list(pair), **to_plain(proof)} for pair, proof in tried])
    else:
        rows = [[" and ".join(pair), proof.what, proof.problem or "holds"] for pair, proof in tried]
        verdict = "cannot carry floating shards" if failed else "can carry floating shards"
        columns = (Column("nodes"), Column("what should hold"), Column("what was seen"))
        output.table(f"{arguments.root} {verdict}", columns, rows)
    return EXIT_FAILED if failed else EXIT_OK


def _down(arguments: argparse.Namespace, output: Output) -> int:
    from tokenstore.cluster import down

    ask(f"take the store {arguments.name} down?", arguments)
    ended = down(arguments.name, address=arguments.address)
    facts: dict[str, Any] = {"name": arguments.name, "shards": ended}
    if output.json:
        output.document(facts)
    else:
        output.text(f"{arguments.name} is down: {ended} shards ended, every file stays")
    return EXIT_OK
