"""A builder that compares every call with every other, straight from the rules: slow, and easy to believe.

It shares nothing with `tokenstore.trajectories` but the words.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokenstore import TokenCaptureSnapshot, TokenEntry
from tokenstore.trajectories import Break, Built, Trajectory


class Naive(NamedTuple):
    """What must come out: fates and breaks in file order, trajectories as plain lists, and which is the main one."""

    fates: list[str]
    breaks: list[tuple[Any, ...]]
    trajectories: list[tuple[list[int], list[int], list[float], list[str]]]
    main: int | None


def snapshot_of(entries: Sequence[TokenEntry], *, incomplete: bool = False) -> TokenCaptureSnapshot:
    """Make a frozen snapshot of calls."""
    return TokenCaptureSnapshot(
        rollout_id=entries[0].rollout_id if entries else "r",
        entries=tuple(entries),
        incomplete=incomplete,
        snapshot_id="snapshot",
        version=len(entries) + 1,
    )


def whole(entry: TokenEntry) -> list[int]:
    """Give prompt and generation."""
    return entry.prompt_token_ids + entry.generation_token_ids


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Count the equal ids at the start of both, one by one."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def parents(entries: Sequence[TokenEntry], call: int) -> list[int]:
    """Find the calls whose whole is the longest one that a call's prompt begins with."""
    prompt = entries[call].prompt_token_ids
    fitting = [
        other
        for other, entry in enumerate(entries)
        if entry.generation_token_ids and prompt[: len(whole(entry))] == whole(entry)
    ]
    longest = max((len(whole(entries[other])) for other in fitting), default=0)
    return [other for other in fitting if len(whole(entries[other])) == longest]


def naive(entries: Sequence[TokenEntry], *, duplicates: str = "supersede") -> Naive:
    """Build from the rules."""
    above = [parents(entries, call) for call in range(len(entries))]
    below = [[child for child in range(len(entries)) if call in above[child]] for call in range(len(entries))]
    fates = [_fate(entries, above, below, call, duplicates) for call in range(len(entries))]
    kept = [call for call, fate in enumerate(fates) if fate == "trained"]
    taken: set[int] = set()
    trajectories, roots = [], []
    for leaf in kept:
        if not any(child in kept for child in below[leaf]):
            path = [leaf]
            while above[path[0]]:
                path.insert(0, above[path[0]][0])
            trajectories.append(_trajectory(entries, path, taken))
            roots.append(path[0])
            taken.update(path)
    main = roots.index(min(roots)) if roots else None
    return Naive(fates, _breaks(entries, above), trajectories, main)


def _fate(
    entries: Sequence[TokenEntry], above: list[list[int]], below: list[list[int]], call: int, duplicates: str
) -> str:
    if not entries[call].generation_token_ids:
        return "empty"
    if any(len(above[child]) > 1 for child in below[call]):
        return "ambiguous"
    ancestor = call
    while above[ancestor]:
        if len(above[ancestor]) > 1:
            return "ambiguous"
        ancestor = above[ancestor][0]
        if any(len(above[child]) > 1 for child in below[ancestor]):
            return "ambiguous"
    siblings = [
        other
        for other, entry in enumerate(entries)
        if other != call and entry.generation_token_ids and entry.prompt_token_ids == entries[call].prompt_token_ids
    ]
    if duplicates == "keep" or not siblings or below[call]:
        return "trained"
    return "superseded" if any(below[other] for other in siblings) else "unresolved"


def _trajectory(
    entries: Sequence[TokenEntry], path: list[int], taken: set[int]
) -> tuple[list[int], list[int], list[float], list[str]]:
    ids: list[int] = []
    mask: list[int] = []
    log_probs: list[float] = []
    for call in path:
        entry = entries[call]
        fresh = entry.prompt_token_ids[len(ids) :]
        ids += fresh + entry.generation_token_ids
        mask += [0] * len(fresh) + [int(call not in taken)] * len(entry.generation_token_ids)
        log_probs += [0.0] * len(fresh)
        log_probs += [0.0 if call in taken else value for value in entry.generation_log_probs]
    return ids, mask, array("f", log_probs).tolist(), [entries[call].model_call_id for call in path]


def _breaks(entries: Sequence[TokenEntry], above: list[list[int]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for call, entry in enumerate(entries):
        earlier = [other for other in range(call) if entries[other].generation_token_ids]
        prompt = entry.prompt_token_ids
        if not earlier or any(before.prompt_token_ids == prompt for before in entries[:call]):
            continue
        agrees, nearest = max((common(prompt, whole(entries[other])), -other) for other in earlier)
        other = entries[-nearest]
        if not above[call] or agrees > len(whole(entries[above[call][0]])):
            inside = "prompt" if agrees < len(other.prompt_token_ids) else "generation"
            differs = whole(other)[agrees], prompt[agrees] if agrees < len(prompt) else None
            found.append((entry.model_call_id, agrees, other.model_call_id, inside, *differs))
    return found


def plain(built: Built) -> Naive:
    """Give what was built in the form of the naive builder."""
    return Naive(
        [call.fate for call in built.report.fates],
        [_plain_break(found) for found in built.report.breaks],
        [_plain_trajectory(trajectory) for trajectory in built],
        None if built.main is None else [trajectory is built.main for trajectory in built].index(True),
    )


def _plain_break(found: Break) -> tuple[Any, ...]:
    return found.model_call_id, found.agrees, found.against, found.inside, found.expected, found.found


def _plain_trajectory(trajectory: Trajectory) -> tuple[list[int], list[int], list[float], list[str]]:
    return (
        trajectory.token_ids.tolist(),
        trajectory.loss_mask.tolist(),
        trajectory.log_probs.tolist(),
        [span.model_call_id for span in trajectory.spans],
    )
