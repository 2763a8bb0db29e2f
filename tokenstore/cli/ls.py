"""`tokenstore ls`: the rollouts in a directory, filtered and sorted."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tokenstore import TokenCaptureStore
from tokenstore.cli.common import EXIT_OK, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds, printable
from tokenstore.cli.units import seconds, size
from tokenstore.codec import to_plain
from tokenstore.records import RolloutState, RolloutStatus

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_COLUMNS = (
    Column("rollout"),
    Column("state"),
    Column("incomplete"),
    Column("calls", right=True),
    Column("size", right=True),
    Column("age", right=True),
)
_FILTERS: dict[str, Callable[[RolloutStatus, Any], bool]] = {
    "state": lambda status, wanted: status.state in wanted,
    "incomplete": lambda status, wanted: status.incomplete == wanted,
    "older_than": lambda status, wanted: status.age > wanted,
    "newer_than": lambda status, wanted: status.age <= wanted,
    "larger_than": lambda status, wanted: status.bytes > wanted,
    "smaller_than": lambda status, wanted: status.bytes < wanted,
}
"""What each option lets through; one that was not given is `None`, and lets all."""
_ORDERS: dict[str, Callable[[RolloutStatus], Any]] = {
    "id": lambda status: status.rollout_id,
    "state": lambda status: get_args(RolloutState).index(status.state),
    "age": lambda status: status.age,
    "size": lambda status: status.bytes,
    "calls": lambda status: status.calls,
}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = "List the rollouts of a directory: state, calls, size, and how long ago they changed."
    parser = commands.add_parser("ls", help="list the rollouts of a directory", description=about)
    parser.add_argument("--state", choices=get_args(RolloutState), action="append", help="only these; may be repeated")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--incomplete", action="store_const", const=True, help="only those that lost something")
    which.add_argument("--complete", dest="incomplete", action="store_const", const=False, help="only the others")
    parser.add_argument("--older-than", metavar="AGE", type=seconds, help="last change before that, as 90s, 10m, 2d")
    parser.add_argument("--newer-than", metavar="AGE", type=seconds, help="last change since")
    parser.add_argument("--larger-than", metavar="SIZE", type=size, help="more bytes than that, as 10MB, 1GiB")
    parser.add_argument("--smaller-than", metavar="SIZE", type=size, help="fewer bytes than that")
    parser.add_argument("--sort", choices=tuple(_ORDERS), help="order (default: id; with --json that of the directory)")
    parser.add_argument("-r", "--reverse", action="store_true", help="the other way round: the largest first")
    parser.add_argument("-q", "--ids", action="store_true", help="only the ids, one a line, for xargs")
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """List the rollouts; with `--json` one object a line, as they come unless sorted."""
    root = existing_root(arguments.root)
    run_async(_list, root, arguments, output, backend=arguments.backend)
    return EXIT_OK


async def _list(root: Path, arguments: argparse.Namespace, output: Output) -> None:
    async with TokenCaptureStore(root) as store:
        if output.json and not (arguments.sort or arguments.reverse):
            async for status in store.rollouts():
                if _wanted(status, arguments):
                    output.document(to_plain(status))
            return
        chosen = [status async for status in store.rollouts() if _wanted(status, arguments)]
    chosen.sort(key=_ORDERS["id"])
    chosen.sort(key=_ORDERS[arguments.sort or "id"], reverse=arguments.reverse)
    if output.json:
        for status in chosen:
            output.document(to_plain(status))
    elif arguments.ids:
        for status in chosen:
            output.text(status.rollout_id)
    else:
        _show(chosen, root, output)


def _wanted(status: RolloutStatus, arguments: argparse.Namespace) -> bool:
    given = {name: getattr(arguments, name) for name in _FILTERS}
    return all(_FILTERS[name](status, wanted) for name, wanted in given.items() if wanted is not None)


def _show(statuses: list[RolloutStatus], root: Path, output: Output) -> None:
    states = Counter(status.state for status in statuses)
    total = human_bytes(sum(status.bytes for status in statuses))
    counts = ", ".join(f"{states[state]} {state}" for state in get_args(RolloutState))
    footer = f"{len(statuses)} rollouts in {printable(str(root))}: {counts}, {total}"
    if statuses:
        output.table("", _COLUMNS, [_row(status) for status in statuses], footer)
    else:
        output.text(footer)


def _row(status: RolloutStatus) -> tuple[str, ...]:
    return (
        status.rollout_id,
        status.state,
        "yes" if status.incomplete else "no",
        str(status.calls),
        human_bytes(status.bytes),
        human_seconds(max(status.age, 0.0)),
    )
