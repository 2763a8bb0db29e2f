"""`tokenstore verify [ROLLOUT...]`: how everything in a directory is, without changing it."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import attrs

from tokenstore import StoreConfig, TokenCaptureStore
from tokenstore.cli.common import EXIT_FAILED, EXIT_OK, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, printable
from tokenstore.codec import to_plain
from tokenstore.ids import validate_rollout_ids
from tokenstore.inspection import Finding, Health, count, verify

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Tool = Callable[[TokenCaptureStore, Sequence[str]], AsyncIterator[Finding]]

LOCK_PATIENCE = 5.0
"""Seconds for a rollout's lock: live writers leave it free many times a second, a stopped one is to be told soon."""
STATUS = "The exit status is 0 if all is well, 1 if something needs attention."
_COLUMNS = (
    Column("rollout or file"),
    Column("health"),
    Column("calls", right=True),
    Column("what"),
)


@attrs.define
class Totals:
    """What was found, counted; only what has to be shown is kept."""

    healths: Counter[str] = attrs.field(factory=Counter)
    calls: int = 0
    mended: int = 0
    ill: list[Finding] = attrs.field(factory=list)
    shown: list[Finding] = attrs.field(factory=list)

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        self.healths[finding.health] += 1
        self.calls += finding.calls
        self.mended += finding.mended
        if not finding.is_well:
            self.ill.append(finding)
        if not finding.is_well or finding.mended:
            self.shown.append(finding)

    def words(self) -> str:
        """Say the counts in a line."""
        counts = [f"{self.healths[health]} {health}" for health in get_args(Health) if self.healths[health]]
        return f"{', '.join(counts) or 'nothing'}; {self.calls} calls"


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Read everything and say what is whole, masked, damaged, retired, stale or unreadable, with reason codes and "
        "offsets. Changes nothing; safe beside live writers, whose unfinished removals it may see. A row for each "
        f"rollout or file that needs attention: masked for a lost call does not. {STATUS}"
    )
    parser = commands.add_parser("verify", help="check a directory, changing nothing", description=about)
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give `verify` and `repair` what both take."""
    parser.add_argument("rollouts", metavar="ROLLOUT", nargs="*", help="only these rollouts, and no stale files")
    parser.add_argument(
        "--prompt-storage",
        choices=("shared", "full"),
        default="shared",
        help="that of the stores in use; with 'full' lock files without a rollout are left alone (default: shared)",
    )
    add_root(parser)
    add_output(parser)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Verify; with `--json` one object a line for each rollout and stale file, well or not."""
    root, totals = inspect(verify, "verifying", arguments, output)
    if not output.json:
        show(totals, output, f"{totals.words()} in {root}: {_verdict(totals)}")
    return EXIT_FAILED if totals.ill else EXIT_OK


def inspect(tool: Tool, what: str, arguments: argparse.Namespace, output: Output) -> tuple[Path, Totals]:
    """Run `verify` or `repair` and count what it finds."""
    arguments.rollouts = validate_rollout_ids(arguments.rollouts)
    root = existing_root(arguments.root)
    return root, run_async(_inspect, tool, what, arguments, output, backend=arguments.backend)


async def _inspect(tool: Tool, what: str, arguments: argparse.Namespace, output: Output) -> Totals:
    totals = Totals()
    config = StoreConfig(prompt_storage=arguments.prompt_storage, lock_timeout=LOCK_PATIENCE)
    async with TokenCaptureStore(arguments.root, config=config) as store:
        total = len(arguments.rollouts) if arguments.rollouts or output.json else await count(store)
        with output.progress(what, total) as advance:
            async for finding in tool(store, arguments.rollouts):
                totals.add(finding)
                advance(1)
                if output.json:
                    output.document({**to_plain(finding), "is_well": finding.is_well})
    return totals


def show(totals: Totals, output: Output, footer: str) -> None:
    """Show a row for each finding that needs attention or was mended, and the totals."""
    if totals.shown:
        rows = sorted(map(_row, totals.shown))
        output.table("", _COLUMNS, rows, footer)
    else:
        output.text(footer)


def _row(finding: Finding) -> tuple[str, ...]:
    said = ", ".join((*finding.reasons, *(f"left over: {leftover}" for leftover in finding.leftovers)))
    mended = "mended" if finding.mended else ""
    name = finding.rollout_id or finding.file or ""
    what = "; ".join(filter(None, (mended, said or (finding.file if finding.rollout_id else ""))))
    return printable(name), finding.health, str(finding.calls), printable(what)


def _verdict(totals: Totals) -> str:
    return f"{len(totals.ill)} need attention" if totals.ill else "all well"
