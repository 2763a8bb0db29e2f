"""`tokenstore freeze ROLLOUT...`: end writing to rollouts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.cli.acting import require
from tokenstore.cli.common import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    add_output,
    add_root,
    complete_rollouts,
    existing_root,
    run_async,
)
from tokenstore.cli.output import Output, printable
from tokenstore.errors import TokenStoreError
from tokenstore.ids import validate_rollout_ids

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "End writing to rollouts and say how each is. Calls in flight count as lost, and it cannot be undone. Again is "
        "a no-op. A rollout that is not there is an error."
    )
    parser = commands.add_parser("freeze", help="end writing to rollouts", description=about)
    complete_rollouts(parser.add_argument("rollouts", metavar="ROLLOUT", nargs="+", help="ids of the rollouts"))
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Freeze one after the other; with `--json` one object a line for each."""
    rollout_ids = validate_rollout_ids(arguments.rollouts)
    existing_root(arguments.root)
    return run_async(_freeze, arguments.root, rollout_ids, output, backend=arguments.backend)


async def _freeze(root: str, rollout_ids: Sequence[str], output: Output) -> int:
    status = EXIT_OK
    async with TokenCaptureStore(root) as store:
        for rollout_id in rollout_ids:
            try:
                await require(store, rollout_id)
                _tell(await store.freeze(rollout_id), output)
            except (CommandError, TokenStoreError) as error:
                output.note(f"tokenstore: {error}")
                status = EXIT_FAILED
    return status


def _tell(snapshot: TokenCaptureSnapshot, output: Output) -> None:
    if output.json:
        facts = ("rollout_id", "snapshot_id", "version", "incomplete", "incomplete_reasons")
        output.document({**{fact: getattr(snapshot, fact) for fact in facts}, "calls": len(snapshot.entries)})
        return
    why = printable(", ".join(snapshot.incomplete_reasons))
    complete = f"incomplete ({why})" if snapshot.incomplete else "complete"
    output.text(
        f"{snapshot.rollout_id}: frozen, {complete}, {len(snapshot.entries)} calls, "
        f"snapshot {snapshot.snapshot_id}, version {snapshot.version}"
    )
