"""`tokenstore drop ROLLOUT`: remove a frozen rollout that was consumed, unless somebody has marked it since."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tokenstore import TokenCaptureStore
from tokenstore.cli.acting import add_yes, ask, require
from tokenstore.cli.common import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    UsageError,
    add_output,
    add_root,
    complete_rollouts,
    existing_root,
    run_async,
)
from tokenstore.cli.output import Output, printable
from tokenstore.ids import validate_rollout_id

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Remove a frozen rollout, leaving a fence, if snapshot and version are still its own. Without them those are "
        "taken that it has now, and shown in the question. The exit status is 1 if nothing was dropped. Asks unless "
        "--yes."
    )
    parser = commands.add_parser("drop", help="remove a frozen rollout", description=about)
    complete_rollouts(parser.add_argument("rollout", metavar="ROLLOUT", help="id of the rollout"))
    parser.add_argument("--snapshot-id", metavar="ID", help="the snapshot that was consumed; needs --version")
    parser.add_argument("--version", metavar="N", type=int, help="its version; needs --snapshot-id")
    add_yes(parser)
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Drop; with `--json` one document."""
    rollout_id = validate_rollout_id(arguments.rollout)
    root = existing_root(arguments.root)
    pair = arguments.snapshot_id, arguments.version
    if (pair[0] is None) != (pair[1] is None):
        raise UsageError("--snapshot-id and --version belong together; give both or none")
    if pair[0] is None:
        pair = run_async(_pair, str(root), rollout_id, backend=arguments.backend)
    named = f"{rollout_id} (snapshot {printable(pair[0])}, version {pair[1]})"
    ask(f"drop {named} in {printable(str(root))}?", arguments)
    dropped = run_async(_drop, str(root), rollout_id, *pair, backend=arguments.backend)
    if output.json:
        output.document({"rollout_id": rollout_id, "snapshot_id": pair[0], "version": pair[1], "dropped": dropped})
    elif dropped:
        output.text(f"{rollout_id}: dropped, its fence stays")
    else:
        output.note(f"tokenstore: nothing was dropped: {named} is not what the rollout is now; see 'tokenstore show'")
    return EXIT_OK if dropped else EXIT_FAILED


async def _pair(root: str, rollout_id: str) -> tuple[str, int]:
    async with TokenCaptureStore(root) as store:
        await require(store, rollout_id)
        snapshot = await store.peek(rollout_id)
    if not snapshot.frozen:
        raise CommandError(f"rollout {rollout_id} is open; freeze it first, or use retire")
    return snapshot.snapshot_id, snapshot.version


async def _drop(root: str, rollout_id: str, snapshot_id: str, version: int) -> bool:
    async with TokenCaptureStore(root) as store:
        await require(store, rollout_id)
        return await store.drop(rollout_id, snapshot_id=snapshot_id, version=version)
