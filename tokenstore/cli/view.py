"""`tokenstore view ROLLOUT` and `tokenstore view --all`: a picture, as one HTML file for a browser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from anyio import to_thread

from tokenstore import TokenCaptureRetiredError, TokenCaptureStore
from tokenstore.cli.acting import require
from tokenstore.cli.common import (
    EXIT_OK,
    CommandError,
    UsageError,
    add_output,
    add_root,
    complete_rollouts,
    existing_root,
    run_async,
)
from tokenstore.cli.output import Output, human_bytes, printable
from tokenstore.errors import TokenStoreError
from tokenstore.ids import validate_rollout_id
from tokenstore.records import RolloutStatus
from tokenstore.view import Overview, load_vocabulary, overview_page, rollout_page

if TYPE_CHECKING:
    from argparse import _SubParsersAction

OVERVIEW_FILE = "tokenstore.html"
SMALL_BYTES = 100_000
"""Rollouts that are added up sooner than a thread is asked."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Write a page that shows a rollout: the tree of its calls, where prompts break, what is masked and why, and "
        "every token by its log probability; or with --all what is in the directory. One file, nothing is loaded, no "
        "text of a rollout can run in it. Readable by its owner alone. Changes nothing in the directory."
    )
    parser = commands.add_parser("view", help="show a rollout or a directory in a browser", description=about)
    complete_rollouts(parser.add_argument("rollout", metavar="ROLLOUT", nargs="?", help="id of the rollout"))
    parser.add_argument("--all", action="store_true", help="the whole directory instead of a rollout")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="a tokenizer.json, or a name on the Hugging Face hub; without it the ids are shown",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        help=f"the page, outside DIR; - for stdout (default: ROLLOUT.html, {OVERVIEW_FILE})",
    )
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Write the page; with `--json` one document says where."""
    if arguments.all == (arguments.rollout is not None):
        raise UsageError("give a rollout, or --all")
    if arguments.all and arguments.tokenizer:
        raise UsageError("--tokenizer is for the page of a rollout")
    if output.json and arguments.out == "-":
        raise UsageError("--json and -o - both want stdout")
    root = str(existing_root(arguments.root))
    rollout_id = None if arguments.all else validate_rollout_id(arguments.rollout)
    target = arguments.out or (f"{rollout_id}.html" if rollout_id else OVERVIEW_FILE)
    _see_outside(root, target)
    if rollout_id is None:
        made = run_async(_overview, root, output, backend=arguments.backend)
    else:
        made = run_async(_rollout, root, rollout_id, arguments.tokenizer, backend=arguments.backend)
    _deliver(made.encode("utf-8", "backslashreplace"), target, output)
    return EXIT_OK


async def _rollout(root: str, rollout_id: str, tokenizer: str | None) -> str:
    vocabulary = None if tokenizer is None else await to_thread.run_sync(load_vocabulary, tokenizer)
    async with TokenCaptureStore(root) as store:
        await require(store, rollout_id)
        try:
            snapshot = await store.peek(rollout_id)
        except TokenCaptureRetiredError:
            raise CommandError(f"rollout {rollout_id} is retired: only its fence is left") from None
    return await to_thread.run_sync(rollout_page, snapshot, vocabulary)


async def _overview(root: str, output: Output) -> str:
    overview = Overview()
    async with TokenCaptureStore(root) as store:
        statuses = [status async for status in store.rollouts()]
        with output.progress("reading", len(statuses)) as advance:
            for status in statuses:
                await _add(store, status, overview, advance)
    return overview_page(overview, printable(str(root)))


async def _add(
    store: TokenCaptureStore, status: RolloutStatus, overview: Overview, advance: Callable[[float], None]
) -> None:
    snapshot = None
    try:
        with suppress(TokenCaptureRetiredError):
            snapshot = await store.peek(status.rollout_id)
    except (TokenStoreError, OSError) as error:
        overview.add_unreadable(status, printable(str(error)))
    else:
        if status.bytes < SMALL_BYTES:
            overview.add(status, snapshot)
        else:
            await to_thread.run_sync(overview.add, status, snapshot)
    advance(1)


def _see_outside(root: str, target: str) -> None:
    """See that the page is not put among the store's files, one of which it could replace."""
    if target != "-" and Path(target).parent.resolve() == Path(root).resolve():
        raise CommandError(f"{printable(target)} would be in the store's directory; give -o a path outside it")


def _deliver(made: bytes, target: str, output: Output) -> None:
    """Write the page to stdout, or to a file."""
    if target == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(made)
        return
    path = Path(target)
    try:
        _write(made, path)
    except BrokenPipeError:
        raise
    except OSError as error:  # which may name the temporary file
        raise CommandError(f"{printable(target)} cannot be written: {error.strerror}") from error
    if output.json:
        output.document({"path": printable(str(path)), "bytes": len(made)})
    else:
        output.text(f"{printable(str(path))}, {human_bytes(len(made))}")


def _write(made: bytes, path: Path) -> None:
    """Make a file that appears whole; what is there and is no file, as a pipe or a device, is written to."""
    if path.exists() and not path.is_file():
        path.write_bytes(made)
        return
    with NamedTemporaryFile(dir=path.parent, prefix=".tokenstore-view-", delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(made)
            file.flush()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
