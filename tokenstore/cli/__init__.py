"""The command line: `tokenstore COMMAND`.

Each sub-command is one file with `add_parser` and `run`. Exit statuses: 0 all done, 1 something was refused, failed or
needs attention, 2 wrong usage, 70 a bug, 130 interrupted, 141 the reader of the output has gone. Errors are one line on
stderr. What a command needs beyond the standard library it imports when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from tokenstore.cli import (
    cluster,
    completion,
    delete,
    demo,
    drop,
    export,
    freeze,
    gc,
    ingest,
    ls,
    mark,
    repair,
    retire,
    serve,
    show,
    stats,
    top,
    verify,
    view,
)
from tokenstore.cli.common import explain, settle_streams
from tokenstore.cli.output import Output

_STATUSES = """\
exit status: 0 all done, 1 something was refused or failed, or needs attention,
2 wrong usage, 70 a bug of ours, 130 interrupted, 141 the reader of the output has gone"""

_COMMANDS: tuple[ModuleType, ...] = (demo, ingest, ls, show, stats, top, view, export, serve, cluster, verify, repair)
_COMMANDS += (freeze, mark, drop, retire, delete, gc, completion)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        argv: The arguments without the program's name; those of the process if not given.
    """
    parser = _parser()
    completion.answer_the_shell(parser)
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has said what there is to say
        return stop.code if isinstance(stop.code, int) else 1
    try:
        settle_streams()
        output = Output(json=arguments.json)
        status: int = arguments.run(arguments, output)
        output.flush()
    except (KeyboardInterrupt, BaseExceptionGroup, Exception) as error:  # noqa: BLE001 - a user is shown no traceback
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
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


def _version() -> str:
    try:
        return version("tokenstore")
    except PackageNotFoundError:
        return "(not installed)"
