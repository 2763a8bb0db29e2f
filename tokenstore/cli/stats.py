"""`tokenstore stats`: what is in a directory, added up, and why what is masked is masked."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

import attrs

from tokenstore import TokenCaptureStore
from tokenstore.cli.common import EXIT_OK, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds, printable
from tokenstore.errors import TokenCaptureRetiredError, TokenStoreError
from tokenstore.records import RolloutState, RolloutStatus

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_COLUMNS = (
    Column("state"),
    Column("rollouts", right=True),
    Column("incomplete", right=True),
    Column("calls", right=True),
    Column("size", right=True),
    Column("largest", right=True),
    Column("latest change", right=True),
    Column("oldest", right=True),
)


@attrs.define
class Group:
    """The rollouts of one state, added up."""

    rollouts: int = 0
    incomplete: int = 0
    calls: int = 0
    bytes: int = 0
    largest_bytes: int = 0
    newest_seconds: float | None = None
    oldest_seconds: float | None = None

    def add(self, status: RolloutStatus) -> None:
        """Count a rollout."""
        self.rollouts += 1
        self.incomplete += status.incomplete
        self.calls += status.calls
        self.bytes += status.bytes
        self.largest_bytes = max(self.largest_bytes, status.bytes)
        self.newest_seconds = min(status.age, status.age if self.newest_seconds is None else self.newest_seconds)
        self.oldest_seconds = max(status.age, self.oldest_seconds or 0.0)


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Add up a directory: rollouts, calls, bytes and ages by state, and the reasons of the rollouts that are "
        "marked incomplete. Damage that nobody has come across yet is found by 'verify' alone. Changes nothing."
    )
    parser = commands.add_parser("stats", help="add up a directory", description=about)
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Add up; with `--json` one document."""
    root = existing_root(arguments.root)
    groups, reasons = run_async(_count, str(root), backend=arguments.backend)
    if output.json:
        states = {state: attrs.asdict(group) for state, group in groups.items()}
        output.document({"root": printable(str(root)), "states": states, "incomplete_reasons": dict(reasons)})
        return EXIT_OK
    rows = [_row(state, group) for state, group in groups.items()]
    output.table("", _COLUMNS, rows, _footer(groups, str(root)))
    if reasons:
        counted = [(reason, f"{count:,}") for reason, count in reasons.most_common()]
        output.table("", (Column("masked because"), Column("times", right=True)), counted)
    return EXIT_OK


async def _count(root: str) -> tuple[dict[str, Group], Counter[str]]:
    groups = {state: Group() for state in get_args(RolloutState)}
    reasons: Counter[str] = Counter()
    async with TokenCaptureStore(root) as store:
        async for status in store.rollouts():
            groups[status.state].add(status)
            if status.incomplete and status.state != "retired":
                reasons.update(await _reasons(store, status.rollout_id))
    return groups, reasons


async def _reasons(store: TokenCaptureStore, rollout_id: str) -> Sequence[str]:
    """Name the reasons of one rollout, without the calls and offsets."""
    try:
        snapshot = await store.peek(rollout_id)
    except TokenCaptureRetiredError:
        return ()  # since it was listed
    except TokenStoreError:
        return ("unreadable",)
    return [reason.partition(":")[0] for reason in snapshot.incomplete_reasons]


def _row(state: str, group: Group) -> tuple[str, ...]:
    ages: list[Any] = [group.newest_seconds, group.oldest_seconds]
    return (
        state,
        f"{group.rollouts:,}",
        f"{group.incomplete:,}",
        f"{group.calls:,}",
        human_bytes(group.bytes),
        human_bytes(group.largest_bytes),
        *("" if age is None else human_seconds(age) for age in ages),
    )


def _footer(groups: dict[str, Group], root: str) -> str:
    rollouts, calls = (sum(getattr(group, name) for group in groups.values()) for name in ("rollouts", "calls"))
    total = human_bytes(sum(group.bytes for group in groups.values()))
    return f"{rollouts:,} rollouts, {calls:,} calls, {total} in {printable(root)}"
