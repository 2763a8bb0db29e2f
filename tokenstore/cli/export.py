"""`tokenstore export [ROLLOUT...]`: rollouts of a directory as one file that training tools read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_args

from tokenstore import TokenCaptureStore
from tokenstore.cli.common import EXIT_FAILED, EXIT_OK, CommandError, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Output, human_bytes, printable
from tokenstore.codec import to_plain
from tokenstore.export import ExportReport, Format, Records, export
from tokenstore.ids import validate_rollout_ids
from tokenstore.trajectories import Duplicates, Strategy

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Write rollouts to one file: each call as it was recorded, or the trajectories to train on, with loss mask, "
        "log probabilities and the verdict. The file appears under its name when it is whole. A run that was killed, "
        "or ended by a file that cannot be read or a lock that stays held, is gone on with by running it again. "
        "Changes nothing in the directory. A rollout that cannot be exported is named, the others are kept, and the "
        "exit status is then 1."
    )
    parser = commands.add_parser("export", help="write rollouts as JSONL, Parquet or npz", description=about)
    parser.add_argument("rollouts", metavar="ROLLOUT", nargs="*", help="only these (default: all that are not retired)")
    parser.add_argument("--format", choices=get_args(Format), required=True, help="format of the file")
    parser.add_argument(
        "--out", metavar="PATH", required=True, help="the file, outside the directory; one that is there is replaced"
    )
    parser.add_argument(
        "--records", choices=get_args(Records), default="entries", help="what a row is (default: entries)"
    )
    parser.add_argument(
        "--strategy",
        choices=get_args(Strategy),
        default="prefix",
        help="of trajectories: join calls that extend each other, or not (default: prefix)",
    )
    parser.add_argument(
        "--duplicates",
        choices=get_args(Duplicates),
        default="supersede",
        help="of trajectories: of calls with the same prompt the extended ones count, or all (default: supersede)",
    )
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Export; with `--json` one document."""
    arguments.rollouts = validate_rollout_ids(arguments.rollouts)
    existing_root(arguments.root)
    try:
        report = run_async(_export, arguments, output, backend=arguments.backend)
    except ModuleNotFoundError as error:
        raise CommandError(str(error)) from error
    if output.json:
        output.document({**to_plain(report), "path": printable(str(report.path))})
    else:
        _show(report, arguments.records, output)
    return EXIT_FAILED if report.failed else EXIT_OK


async def _export(arguments: argparse.Namespace, output: Output) -> ExportReport:
    with output.progress("export", 1) as advance:
        seen = 0.0

        def progress(done: int, total: int) -> None:
            nonlocal seen
            share = done / total if total else 1.0
            advance(share - seen)
            seen = share

        async with TokenCaptureStore(arguments.root) as store:
            return await export(
                store,
                arguments.out,
                format=arguments.format,
                records=arguments.records,
                rollouts=arguments.rollouts,
                strategy=arguments.strategy,
                duplicates=arguments.duplicates,
                progress=progress,
            )


def _show(report: ExportReport, records: str, output: Output) -> None:
    for rollout_id, problem in report.failed.items():
        output.note(f"{rollout_id}: {problem}")
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    failed = f", {len(report.failed)} rollouts failed" if report.failed else ""
    output.text(
        f"{report.rows} {records} of {report.rollouts} rollouts{resumed} "
        f"in {printable(str(report.path))}, {human_bytes(report.bytes)}{failed}"
    )
