"""What the commands that change rollouts share: asking, looking that they are there, and saying what was done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from anyio import to_thread

from tokenstore import RolloutRemovalPayload, TokenCaptureStore
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
from tokenstore.errors import RemovalError, TokenCaptureRetiredError
from tokenstore.ids import validate_rollout_ids

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Removal = Callable[[TokenCaptureStore, Sequence[str]], Awaitable[RolloutRemovalPayload]]

REMOVED_AT_ONCE = 512
"""Rollouts of one batch of removals, whose syncs they share."""


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Give a sub-command that removes data its `--yes`."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def ask(question: str, arguments: argparse.Namespace) -> None:
    """Ask on stderr unless `--yes` was given.

    Raises:
        CommandError: The answer is not yes, or there is nobody to ask.
    """
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(f"would ask: {question}; there is no terminal, give --yes")
    sys.stdout.flush()
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was changed")


async def require(store: TokenCaptureStore, rollout_id: str) -> None:
    """See that a rollout, or its fence, is there: a slip of the pen must not make one.

    Raises:
        CommandError: There is no such rollout.
    """
    if not await is_there(store, rollout_id):
        raise CommandError(f"there is no rollout {rollout_id} in {printable(str(store.root))}")


async def is_there(store: TokenCaptureStore, rollout_id: str) -> bool:
    """Tell whether a rollout, or its fence, is there, in whatever condition."""
    kinds = (store.path_for, store.state_path_for, store.incomplete_path_for, store.intents_path_for)
    paths = [path_of(rollout_id) for path_of in kinds]
    return await to_thread.run_sync(lambda: any(path.is_symlink() or path.exists() for path in paths))


async def is_retired(store: TokenCaptureStore, rollout_id: str) -> bool:
    """Tell whether of a rollout only its fence is left."""
    try:
        await store.peek(rollout_id)
    except TokenCaptureRetiredError:
        return True
    return False


def add_removal(
    commands: _SubParsersAction[argparse.ArgumentParser], name: str, about: str, *, brief: str, remove: Removal
) -> None:
    """Add `retire` or `delete` to the command line."""
    parser = commands.add_parser(name, help=brief, description=about)
    rollouts = parser.add_argument("rollouts", metavar="ROLLOUT", nargs="+", help="ids of the rollouts")
    complete_rollouts(rollouts)
    add_yes(parser)
    add_root(parser)
    add_output(parser)

    def run(arguments: argparse.Namespace, output: Output) -> int:
        rollout_ids = validate_rollout_ids(arguments.rollouts)
        existing_root(arguments.root)
        ask(f"{name} {_listed(rollout_ids)} in {printable(arguments.root)}?", arguments)
        return run_async(_remove_named, arguments.root, rollout_ids, remove, output, backend=arguments.backend)

    parser.set_defaults(run=run)


async def _remove_named(root: str, rollout_ids: Sequence[str], remove: Removal, output: Output) -> int:
    """Remove what is there; an id that is not there is told, and gets no fence."""
    async with TokenCaptureStore(root) as store:
        there = [rollout_id for rollout_id in rollout_ids if await is_there(store, rollout_id)]
        payload, causes = await remove_all(store, there, remove)
    payload["absent"] = [rollout_id for rollout_id in rollout_ids if rollout_id not in {*payload["removed"], *causes}]
    if output.json:
        output.document({**payload, "failed": causes})
    else:
        output.text(f"{len(payload['removed'])} removed, {len(payload['absent'])} had nothing to remove")
        for rollout_id in payload["absent"]:
            output.note(f"{rollout_id}: nothing to remove")
    return report_failures(causes, output)


async def remove_all(
    store: TokenCaptureStore, rollout_ids: Sequence[str], remove: Removal
) -> tuple[RolloutRemovalPayload, dict[str, str]]:
    """Remove in batches, going on after a failure; return what was done, and why what was not."""
    done: RolloutRemovalPayload = {"removed": [], "absent": []}
    causes: dict[str, str] = {}
    for start in range(0, len(rollout_ids), REMOVED_AT_ONCE):
        try:
            payload = await remove(store, rollout_ids[start : start + REMOVED_AT_ONCE])
        except RemovalError as error:
            payload = {"removed": error.payload["removed"], "absent": error.payload["absent"]}
            causes |= {rollout_id: str(cause) for rollout_id, cause in error.causes.items()}
        done["removed"] += payload["removed"]
        done["absent"] += payload["absent"]
    return done, causes


def report_failures(causes: dict[str, str], output: Output) -> int:
    """Say on stderr what could not be removed, and give the exit status."""
    if not output.json:
        for rollout_id, cause in causes.items():
            output.note(f"{rollout_id}: {printable(cause)}")
    return EXIT_FAILED if causes else EXIT_OK


def _listed(rollout_ids: Sequence[str]) -> str:
    more = f" and {len(rollout_ids) - 3:,} more" if len(rollout_ids) > 3 else ""
    return f"{', '.join(rollout_ids[:3])}{more}"
