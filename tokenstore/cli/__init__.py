"""The command line: `tokenstore demo | ingest | ls | show | export | verify | repair`.

Each sub-command is one file with `add_parser` and `run`. Exit statuses: 0 all done, 1 something was refused, failed or
needs attention, 2 wrong usage, 130 interrupted, 141 the reader of the output has gone. Expected errors are one line on
stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from tokenstore.cli import demo, export, ingest, ls, repair, show, verify
from tokenstore.cli.common import CommandError, explain
from tokenstore.cli.output import Output
from tokenstore.errors import TokenStoreError

_STATUSES = """\
exit status: 0 all done, 1 something was refused or failed, or needs attention,
2 wrong usage, 130 interrupted, 141 the reader of the output has gone"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        argv: The arguments without the program's name; those of the process if not given.
    """
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:  # argparse has said what there is to say
        return stop.code if isinstance(stop.code, int) else 1
    try:
        output = Output(json=arguments.json)
        status: int = arguments.run(arguments, output)
        output.flush()
    except (KeyboardInterrupt, BaseExceptionGroup, CommandError, TokenStoreError, OSError) as error:
        return explain(error)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenstore",
        description="Look into and fill a durable store of the token ids and log probabilities of rollouts.",
        epilog=_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tokenstore {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (demo, ingest, ls, show, export, verify, repair):
        command.add_parser(commands)
    return parser


def _version() -> str:
    try:
        return version("tokenstore")
    except PackageNotFoundError:
        return "(not installed)"
