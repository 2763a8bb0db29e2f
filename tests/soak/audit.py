"""Recovering and reading back after a round, in a process of its own, so that the parent never runs a thread."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs

from tests.faults.entries import variant_of
from tests.soak.ledger import Facts
from tokenstore import TokenCaptureRetiredError, TokenCaptureStore
from tokenstore.inspection import Finding, repair, verify


@attrs.define
class Report:
    """What was found."""

    facts: dict[str, Facts] = attrs.field(factory=dict)
    """Of each rollout, after recovery."""
    problems: list[str] = attrs.field(factory=list)
    """What must not be, whatever was asked."""
    leftovers: int = 0
    """Rollouts whose tails or removals recovery had to finish."""

    def as_json(self) -> bytes:
        """For the way to the parent."""
        return json.dumps(attrs.asdict(self)).encode()

    @classmethod
    def of_json(cls, data: bytes) -> Report:
        """At the end of the way."""
        value = json.loads(data)
        facts = {name: _facts(each) for name, each in value["facts"].items()}
        return cls(facts, value["problems"], value["leftovers"])


def _facts(value: dict[str, Any]) -> Facts:
    return Facts(**{**value, "reasons": tuple(value["reasons"]), "open_calls": tuple(value["open_calls"])})


def audit(root: Path, rollouts: Sequence[str]) -> Report:
    """Recover twice, and say what is there then. No rollouts means all, and stale files too."""
    logging.getLogger("tokenstore").setLevel(logging.CRITICAL)
    return anyio.run(_audit, root, rollouts)


async def _audit(root: Path, rollouts: Sequence[str]) -> Report:
    report = Report()
    before = await _all(verify, root, rollouts)
    await _all(repair, root, rollouts)
    image = image_of(root, rollouts)
    again = await _all(repair, root, rollouts)
    report.leftovers = sum(bool(finding.leftovers) for finding in before)
    report.problems.extend(
        f"{each.rollout_id or each.file}: a second repair mended it" for each in again if each.mended
    )
    changed = {name for name, _ in image.items() ^ image_of(root, rollouts).items()}
    report.problems.extend(f"{name}: a second repair changed it" for name in sorted(changed))
    async with TokenCaptureStore(root) as store:
        async for finding in verify(store, rollouts):
            await _read_back(store, finding, report)
    return report


async def _all(tool: Any, root: Path, rollouts: Sequence[str]) -> list[Finding]:
    """Each in a store of its own, as a process of its own would."""
    async with TokenCaptureStore(root) as store:
        return [finding async for finding in tool(store, rollouts)]


def image_of(root: Path, rollouts: Sequence[str]) -> dict[str, str]:
    """Names and contents of the files of some rollouts; of none, all files."""
    paths = [path for rollout in rollouts for path in root.glob(f"{rollout}.tokens.*")] if rollouts else root.iterdir()
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}


async def _read_back(store: TokenCaptureStore, finding: Finding, report: Report) -> None:
    """Read a rollout, and hold what verifying says against it."""
    name = finding.rollout_id or finding.file or ""
    if finding.leftovers or finding.health in ("stale", "unreadable"):
        report.problems.append(f"{name}: after repair it is {finding.health}, {finding.reasons}, {finding.leftovers}")
    if finding.rollout_id is None:
        return
    facts = await _facts_of(store, name) if finding.health != "absent" else Facts("absent")
    report.facts[name] = facts
    said = finding.health if finding.health in ("retired", "absent") else finding.calls, finding.reasons
    read = facts.state if facts.state in ("retired", "absent") else len(facts.entries), facts.reasons
    if said != read:
        report.problems.append(f"{name}: verify says {said}, and reading {read}")


async def _facts_of(store: TokenCaptureStore, rollout: str) -> Facts:
    try:
        snapshot = await store.peek(rollout)
    except TokenCaptureRetiredError:
        return Facts("retired")
    return Facts(
        "frozen" if snapshot.frozen else "open",
        snapshot.version,
        snapshot.snapshot_id,
        {each.model_call_id: variant_of(each) for each in snapshot.entries},
        {each.model_call_id: each.code for each in snapshot.refusals},
        snapshot.incomplete_reasons,
        snapshot.open_calls,
    )
