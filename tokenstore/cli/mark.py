"""`tokenstore mark ROLLOUT`: mask a rollout."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.cli.acting import require
from tokenstore.cli.common import EXIT_OK, add_output, add_root, complete_rollouts, existing_root, run_async
from tokenstore.cli.output import Output, printable
from tokenstore.ids import validate_model_call_id, validate_rollout_id

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Mark a rollout incomplete, open or frozen, so that nobody trains on it. It cannot be undone. A rollout that "
        "is not there is an error."
    )
    parser = commands.add_parser("mark", help="mark a rollout incomplete", description=about)
    complete_rollouts(parser.add_argument("rollout", metavar="ROLLOUT", help="id of the rollout"))
    parser.add_argument("--call", metavar="CALL", default="", help="the call that was lost (default: none named)")
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Mark; with `--json` one document."""
    rollout_id = validate_rollout_id(arguments.rollout)
    if arguments.call:  # the store would record a wrong one as blank, for good
        validate_model_call_id(arguments.call)
    existing_root(arguments.root)
    snapshot = run_async(_mark, arguments.root, rollout_id, arguments.call, backend=arguments.backend)
    if output.json:
        reasons = list(snapshot.incomplete_reasons)
        output.document({"rollout_id": rollout_id, "version": snapshot.version, "incomplete_reasons": reasons})
    else:
        why = printable(", ".join(snapshot.incomplete_reasons))
        output.text(f"{rollout_id}: incomplete ({why}), version {snapshot.version}")
    return EXIT_OK


async def _mark(root: str, rollout_id: str, call_id: str) -> TokenCaptureSnapshot:
    async with TokenCaptureStore(root) as store:
        await require(store, rollout_id)
        await store.mark_incomplete(rollout_id, call_id)
        return await store.peek(rollout_id)
