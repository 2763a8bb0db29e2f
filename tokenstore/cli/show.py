"""`tokenstore show ROLLOUT`: what is in one rollout, call by call, without changing it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from tokenstore import TokenCaptureRetiredError, TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.cli.acting import require
from tokenstore.cli.common import (
    EXIT_OK,
    add_output,
    add_root,
    complete_rollouts,
    existing_root,
    run_async,
)
from tokenstore.cli.output import Column, Output, printable
from tokenstore.codec import to_plain
from tokenstore.ids import validate_rollout_id
from tokenstore.view import AnalysedCall, analyse

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_COLUMNS = (
    Column("", right=True),
    Column("call"),
    Column("prompt", right=True),
    Column("generation", right=True),
    Column("against the call before"),
    Column("in training"),
    Column("note"),
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
    extends: str | None
    """The call whose whole prompt and generation the prompt begins with: the one before, or an earlier one."""
    fate: str | None
    """What becomes of it in training: `trained`, or why not; `None` where ids are beyond what trainers take."""
    notes: tuple[str, ...]
    """`empty_prompt`, `empty_generation`, `all_padding`: what is odd about it."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Show one rollout: state, calls with their lengths, whether each prompt extends the call before it or where "
        "it breaks, what becomes of it in training, what is odd (empty_prompt, empty_generation, all_padding), "
        "refusals, open calls, and why it is incomplete. Changes nothing."
    )
    parser = commands.add_parser("show", help="show one rollout", description=about)
    complete_rollouts(parser.add_argument("rollout", metavar="ROLLOUT", help="id of the rollout"))
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
        await require(store, rollout_id)
        try:
            snapshot = await store.peek(rollout_id)
        except TokenCaptureRetiredError:
            return {"rollout_id": rollout_id, "state": "retired"}
    return _describe(snapshot)


def _describe(snapshot: TokenCaptureSnapshot) -> dict[str, Any]:
    analysis = analyse(snapshot)
    return {
        "rollout_id": snapshot.rollout_id,
        "state": "frozen" if snapshot.frozen else "open",
        "version": snapshot.version,
        "snapshot_id": snapshot.snapshot_id,
        "incomplete": snapshot.incomplete,
        "incomplete_reasons": list(snapshot.incomplete_reasons),
        "trainable": analysis.report is not None and analysis.report.trainable,
        "not_trainable_because": ["beyond_int32"] if analysis.report is None else list(analysis.report.reasons),
        "open_calls": list(snapshot.open_calls),
        "refusals": [to_plain(refusal) for refusal in snapshot.refusals],
        "calls": [attrs.asdict(call) for call in _calls(analysis.calls)],
    }


def _calls(calls: Sequence[AnalysedCall]) -> Iterator[Call]:
    if calls:
        yield _call(calls[0], None, calls)
    for before, call in pairwise(calls):
        yield _call(call, before.entry, calls)


def _call(call: AnalysedCall, before: TokenEntry | None, calls: Sequence[AnalysedCall]) -> Call:
    entry = call.entry
    seen = None if before is None else before.prompt_token_ids + before.generation_token_ids
    return Call(
        model_call_id=entry.model_call_id,
        model=entry.model,
        prompt_tokens=len(entry.prompt_token_ids),
        generation_tokens=len(entry.generation_token_ids),
        output_items=len(entry.output_items),
        agrees=None if seen is None else _common_prefix(seen, entry.prompt_token_ids),
        previous_tokens=None if seen is None else len(seen),
        extends=None if call.extends is None else calls[call.extends].entry.model_call_id,
        fate=call.fate,
        notes=call.notes,
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
        places = {call["model_call_id"]: number for number, call in enumerate(report["calls"], 1)}
        rows = [_row(number, call, places) for number, call in enumerate(report["calls"], 1)]
        output.table("", _COLUMNS, rows)
    if report["not_trainable_because"]:
        output.text(f"not to be trained on: {', '.join(report['not_trainable_because'])}")
    for reason in report["incomplete_reasons"]:
        output.text(f"incomplete: {printable(reason)}")
    for call_id in report["open_calls"]:
        output.text(f"open call: {printable(call_id)}")
    for refusal in report["refusals"]:
        output.text(f"refused call: {printable(refusal['model_call_id'])} ({printable(refusal['code'] or 'no code')})")


def _headline(report: dict[str, Any]) -> str:
    if report["state"] == "retired":
        return "retired, only its fence is left"
    complete = "incomplete" if report["incomplete"] else "complete"
    snapshot = f", snapshot {report['snapshot_id']}" if report["snapshot_id"] else ""
    models = ", ".join(sorted({call["model"] for call in report["calls"] if call["model"]}))
    named = f", model {printable(models)}" if models else ""
    return f"{report['state']}, {complete}, version {report['version']}{snapshot}, {len(report['calls'])} calls{named}"


def _row(number: int, call: dict[str, Any], places: dict[str, int]) -> tuple[str, ...]:
    against = _against(call["agrees"], call["previous_tokens"])
    if call["extends"] is not None and places[call["extends"]] != number - 1:
        against += f"; extends {places[call['extends']]}"
    return (
        str(number),
        printable(call["model_call_id"]),
        f"{call['prompt_tokens']:,}",
        f"{call['generation_tokens']:,}",
        against,
        call["fate"] or "unknown",
        " ".join(call["notes"]),
    )


def _against(agrees: int | None, previous: int | None) -> str:
    if agrees is None or previous is None:
        return "first"
    if agrees == previous:
        return f"extends, {agrees:,} agree"
    return f"breaks, {agrees:,} of {previous:,} agree"
