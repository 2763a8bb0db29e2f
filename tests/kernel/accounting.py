"""What a parent knows of a child that was killed: each acknowledged thing must be there, and nothing half."""

from __future__ import annotations

from pathlib import Path

from tests.children import entry, opened
from tokenstore import TokenCaptureRetiredError, TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.testing import first_difference


def problems(root: Path, said: list[str]) -> list[str]:
    """Recover what a child running `script` left, and name all that is wrong with it."""
    with opened(root) as store:
        return _problems(store, said)


def _problems(store: TokenCaptureStore, said: list[str]) -> list[str]:
    acked = {tuple(line.split()[:2]): line.split()[2:] for line in said if len(line.split()) > 1}
    puts = {tuple(line.split()[1:3]) for line in said if line.split()[0] in ("put", "reused")}
    found: list[str] = []
    for rollout_id in "rstu":
        snapshot = _frozen(store, rollout_id)
        if snapshot is None:
            if ("dropping", rollout_id) not in acked:
                found.append(f"{rollout_id} is retired")
            continue
        if ("retired", rollout_id) in acked:
            found.append(f"{rollout_id} is not retired")
        found += _wrong_entries(snapshot, {call for rollout, call in puts if rollout == rollout_id}, acked)
        wanted = acked.get(("freeze", rollout_id))
        if wanted and wanted != [snapshot.snapshot_id]:
            found.append(f"{rollout_id} has another snapshot id")
    found += _wrong_reasons(_frozen(store, "r"), {tuple(line.split()[:3]) for line in said})
    before = _content(store.root)
    for rollout_id in "rstu":
        _frozen(store, rollout_id)
    if _content(store.root) != before:
        found.append("a second recovery changed something")
    return found


def _frozen(store: TokenCaptureStore, rollout_id: str) -> TokenCaptureSnapshot | None:
    try:
        return store.freeze_now(rollout_id)
    except TokenCaptureRetiredError:
        return None


def _wrong_entries(snapshot: TokenCaptureSnapshot, acked: set[str], facts: object) -> list[str]:
    there = {each.model_call_id: each for each in snapshot.entries}
    dropping = isinstance(facts, dict) and ("dropping", snapshot.rollout_id) in facts
    lost = [] if dropping and snapshot.rollout_id != "u" else sorted(acked - there.keys())
    wrong = [
        call
        for call, each in there.items()
        if first_difference(entry(snapshot.rollout_id, call, number=int(call[1:])), each) is not None
    ]
    return [f"{snapshot.rollout_id} lost {call}" for call in lost] + [f"{call} is wrong" for call in wrong]


def _wrong_reasons(snapshot: TokenCaptureSnapshot | None, said: set[tuple[str, ...]]) -> list[str]:
    if snapshot is None:
        return ["r is retired"]
    there = {each.model_call_id for each in snapshot.entries}
    wanted = {f"lost_call:{call}" for call in ("c1", "c2") if ("begin", "r", call) in said and call not in there}
    wanted |= {"marked:c4"} if ("mark", "r", "c4") in said else set()
    refused = {each.model_call_id for each in snapshot.refusals}
    missing = sorted(wanted - set(snapshot.incomplete_reasons))
    return [f"r misses {reason}" for reason in missing] + (
        ["r lost a refusal"] if ("refuse", "r", "c3") in said and "c3" not in refused else []
    )


def _content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir()}
