"""`tokenstore show ROLLOUT`: what is in one rollout, call by call, without changing it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from tokenstore import TokenCaptureRetiredError, TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.cli.common import EXIT_OK, CommandError, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, printable
from tokenstore.codec import to_plain
from tokenstore.ids import validate_rollout_id

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_COLUMNS = (
    Column("", right=True),
    Column("call"),
    Column("prompt", right=True),
    Column("generation", right=True),
    Column("against the call before"),
)


@attrs.frozen
class Call:
    """One call, by its lengths in tokens, and how its prompt stands to the call before it."""

    model_call_id: str
    model: str
    prompt_tokens: int
    generation_tokens: int
    output_items: int
    agrees: int | None
    """Tokens at the start of the prompt that are the previous prompt and generation; `None` for the first call."""
    previous_tokens: int | None
    """Length of the previous prompt and generation; the prompt extends the call before if all of it agrees."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Show one rollout: state, calls with their lengths, whether each prompt extends the call before it or where "
        "it breaks, refusals, open calls, and why it is incomplete. Changes nothing."
    )
    parser = commands.add_parser("show", help="show one rollout", description=about)
    parser.add_argument("rollout", metavar="ROLLOUT", help="id of the rollout")
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Show the rollout; with `--json` one document."""
    rollout_id = validate_rollout_id(arguments.rollout)
    root = existing_root(arguments.root)
    report = run_async(_report, str(root), rollout_id, backend=arguments.backend)
    if output.json:
        output.document(report)
    else:
        _show(report, output)
    return EXIT_OK


async def _report(root: str, rollout_id: str) -> dict[str, Any]:
    async with TokenCaptureStore(root) as store:
        try:
            snapshot = await store.peek(rollout_id)
        except TokenCaptureRetiredError:
            return {"rollout_id": rollout_id, "state": "retired"}
    if not (snapshot.frozen or snapshot.version or snapshot.open_calls or snapshot.incomplete_reasons):
        raise CommandError(f"there is no rollout {rollout_id} in {root}")
    return _describe(snapshot)


def _describe(snapshot: TokenCaptureSnapshot) -> dict[str, Any]:
    return {
        "rollout_id": snapshot.rollout_id,
        "state": "frozen" if snapshot.frozen else "open",
        "version": snapshot.version,
        "snapshot_id": snapshot.snapshot_id,
        "incomplete": snapshot.incomplete,
        "incomplete_reasons": list(snapshot.incomplete_reasons),
        "open_calls": list(snapshot.open_calls),
        "refusals": [to_plain(refusal) for refusal in snapshot.refusals],
        "calls": [attrs.asdict(call) for call in _calls(snapshot.entries)],
    }


def _calls(entries: Sequence[TokenEntry]) -> Iterator[Call]:
    if entries:
        yield _call(entries[0], None)
    for before, entry in pairwise(entries):
        yield _call(entry, before)


def _call(entry: TokenEntry, before: TokenEntry | None) -> Call:
    seen = None if before is None else before.prompt_token_ids + before.generation_token_ids
    return Call(
        model_call_id=entry.model_call_id,
        model=entry.model,
        prompt_tokens=len(entry.prompt_token_ids),
        generation_tokens=len(entry.generation_token_ids),
        output_items=len(entry.output_items),
        agrees=None if seen is None else _common_prefix(seen, entry.prompt_token_ids),
        previous_tokens=None if seen is None else len(seen),
    )


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Count the equal tokens at the start of both, by halves, since comparing slices is fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _show(report: dict[str, Any], output: Output) -> None:
    output.text(f"rollout {report['rollout_id']}: {_headline(report)}")
    if report["state"] == "retired":
        return
    if report["calls"]:
        output.table("", _COLUMNS, [_row(number, call) for number, call in enumerate(report["calls"], 1)])
    for reason in report["incomplete_reasons"]:
        output.text(f"incomplete: {printable(reason)}")
    for call_id in report["open_calls"]:
        output.text(f"open call: {printable(call_id)}")
    for refusal in report["refusals"]:
        output.text(f"refused call: {refusal['model_call_id']} ({printable(refusal['code'] or 'no code')})")


def _headline(report: dict[str, Any]) -> str:
    if report["state"] == "retired":
        return "retired, only its fence is left"
    complete = "incomplete" if report["incomplete"] else "complete"
    snapshot = f", snapshot {report['snapshot_id']}" if report["snapshot_id"] else ""
    models = ", ".join(sorted({call["model"] for call in report["calls"] if call["model"]}))
    named = f", model {printable(models)}" if models else ""
    return f"{report['state']}, {complete}, version {report['version']}{snapshot}, {len(report['calls'])} calls{named}"


def _row(number: int, call: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(number),
        call["model_call_id"],
        f"{call['prompt_tokens']:,}",
        f"{call['generation_tokens']:,}",
        _against(call["agrees"], call["previous_tokens"]),
    )


def _against(agrees: int | None, previous: int | None) -> str:
    if agrees is None or previous is None:
        return "first"
    if agrees == previous:
        return f"extends, {agrees:,} agree"
    return f"breaks, {agrees:,} of {previous:,} agree"
