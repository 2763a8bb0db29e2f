"""`tokenstore ls`: every rollout in a directory."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from tokenstore import TokenCaptureStore
from tokenstore.cli.common import EXIT_OK, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds
from tokenstore.codec import to_plain
from tokenstore.records import RolloutStatus

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


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = "List the rollouts of a directory: state, calls, size, and how long ago they changed."
    parser = commands.add_parser("ls", help="list the rollouts of a directory", description=about)
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """List the rollouts; with `--json` one object a line, in the order in which the directory gives them."""
    root = existing_root(arguments.root)
    run_async(_list, root, output, backend=arguments.backend)
    return EXIT_OK


async def _list(root: Path, output: Output) -> None:
    async with TokenCaptureStore(root) as store:
        if output.json:
            async for status in store.rollouts():
                output.document(to_plain(status))
        else:
            _show([status async for status in store.rollouts()], root, output)


def _show(statuses: list[RolloutStatus], root: Path, output: Output) -> None:
    states = Counter(status.state for status in statuses)
    total = human_bytes(sum(status.bytes for status in statuses))
    counts = ", ".join(f"{states[state]} {state}" for state in ("open", "frozen", "retired"))
    footer = f"{len(statuses)} rollouts in {root}: {counts}, {total}"
    if statuses:
        rows = [_row(status) for status in sorted(statuses, key=lambda status: status.rollout_id)]
        output.table("", _COLUMNS, rows, footer)
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
