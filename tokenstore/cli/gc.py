"""`tokenstore gc --retired-older-than 2d`: delete the fences that nobody needs any more.

Ages are against the file system's clock, read from a file made now: a clock that jumps sweeps no fence early.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenstore import RolloutRemovalPayload, TokenCaptureStore
from tokenstore.cli.acting import add_yes, ask, is_retired, remove_all, report_failures
from tokenstore.cli.common import EXIT_OK, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Output, human_seconds, printable
from tokenstore.cli.units import seconds

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Delete the fences of rollouts that were retired or dropped long ago, so that the directory does not grow "
        "without end. A late write to an id whose fence is gone begins that rollout anew: choose an age beyond which "
        "no server still writes. Ages are against the file system's clock. Asks unless --yes."
    )
    parser = commands.add_parser("gc", help="delete old fences", description=about)
    parser.add_argument(
        "--retired-older-than", metavar="AGE", type=seconds, required=True, help="age of a fence, for example 2d"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="say what would go, and change nothing")
    add_yes(parser)
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Collect; with `--json` one document."""
    root = existing_root(arguments.root)
    old = run_async(_old, str(root), arguments.retired_older_than, backend=arguments.backend)
    what = f"{len(old):,} fences older than {human_seconds(arguments.retired_older_than)} in {printable(str(root))}"
    if arguments.dry_run:
        return _tell(old, f"would delete {what}", output)
    if old:
        ask(f"delete {what}?", arguments)
    removed, causes = run_async(_delete, str(root), old, backend=arguments.backend)
    if output.json:
        output.document({"dry_run": False, "deleted": removed, "failed": causes})
    else:
        output.text(f"deleted {len(removed):,} of {what}")
    return report_failures(causes, output)


def _tell(old: Sequence[str], line: str, output: Output) -> int:
    if output.json:
        output.document({"dry_run": True, "deleted": old, "failed": {}})
    else:
        for rollout_id in old:
            output.text(rollout_id)
        output.note(line)
    return EXIT_OK


async def _old(root: str, age: float) -> list[str]:
    async with TokenCaptureStore(root) as store:
        return sorted(
            [status.rollout_id async for status in store.rollouts() if status.state == "retired" and status.age > age]
        )


async def _delete(root: str, rollout_ids: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    async with TokenCaptureStore(root) as store:
        payload, causes = await remove_all(store, rollout_ids, _delete_fences)
    return [*payload["removed"], *payload["absent"]], causes


async def _delete_fences(store: TokenCaptureStore, rollout_ids: Sequence[str]) -> RolloutRemovalPayload:
    """Delete those that are still retired: another process may have deleted one and begun it anew meanwhile."""
    return await store.delete([rollout_id for rollout_id in rollout_ids if await is_retired(store, rollout_id)])
