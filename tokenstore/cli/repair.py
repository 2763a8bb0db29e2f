"""`tokenstore repair [ROLLOUT...]`: do now what the next writer of each rollout would, and remove what is stale."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tokenstore.cli.common import EXIT_FAILED, EXIT_OK
from tokenstore.cli.output import Output
from tokenstore.cli.verify import STATUS, add_arguments, inspect, show
from tokenstore.inspection import repair

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Recover each rollout as its next writer would (end or cut unterminated tails, finish interrupted removals, "
        "write down what is damaged), and remove what is surely stale: old temporary files of this user, lock files of "
        "rollouts that are gone. Safe beside live writers. What is damaged stays, left out of snapshots, and needs "
        f"attention afterwards too. {STATUS}"
    )
    parser = commands.add_parser("repair", help="mend a directory as recovery would", description=about)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Repair; with `--json` one object a line for each rollout and stale file, as it is afterwards."""
    root, totals = inspect(repair, "repairing", arguments, output)
    if not output.json:
        left = f"{len(totals.ill)} still need attention" if totals.ill else "all well"
        show(totals, output, f"{totals.words()} in {root}: {totals.mended} mended, {left}")
    return EXIT_FAILED if totals.ill else EXIT_OK
