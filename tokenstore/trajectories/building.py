"""`build`: the calls of a snapshot, linked and judged, as arrays."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import Any, get_args

import attrs

from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.trajectories.fates import judge
from tokenstore.trajectories.packing import as_array, packed_ids, packed_log_probs
from tokenstore.trajectories.prefixes import Agreement, Links, link
from tokenstore.trajectories.values import (
    Break,
    BuildReport,
    Built,
    CallFate,
    Duplicates,
    Fate,
    Reason,
    Span,
    Strategy,
    Trajectory,
)


def build(
    snapshot: TokenCaptureSnapshot,
    strategy: Strategy = "prefix",
    *,
    duplicates: Duplicates = "supersede",
    allow: Collection[Reason] = (),
) -> Built:
    """Turn a rollout into sequences to train on. Blocks while it works: in an event loop, call it in a thread.

    Every branch is delivered: where branches share a call, the one whose last call comes first in the file trains it.
    Train on the result only if `report.trainable`.

    Args:
        snapshot: The rollout, as `freeze` or `peek` gave it; it is not changed.
        strategy: `"prefix"` joins calls whose prompts extend each other; `"per_call"` gives the same calls, each as a
            trajectory of its own.
        duplicates: `"supersede"`: of calls with the same prompt the ones that a later call extends are trained, and
            none if there is no such call. `"keep"`: all are trained (best of n).
        allow: Reasons that shall not stand against training: `"incomplete"`, `"unresolved"`, `"ambiguous"`,
            `"nothing_trained"`. What they name is not trained all the same; the rest is.

    Returns:
        The trajectories, a sequence, with `main` and `report`.

    Raises:
        InvalidEntryError: An id is beyond int32 or a log probability beyond float32; give the rollout up.
        ValueError: An argument is not one of those above.
        TypeError: `allow` is a bare string; pass a tuple.
    """
    _check_choices(strategy, duplicates, allow)
    entries = snapshot.entries
    links = link(entries)
    fates = judge(links, [len(entry.generation_token_ids) for entry in entries], duplicates)
    branches = _branches(links, fates, strategy)
    spans: dict[tuple[int, bool], Span] = {}
    trajectories = tuple(_trajectory(entries, branch, spans) for branch in branches)
    roots = [call for call in links.order if fates[call] == "trained" and not links.candidates[call]]
    root = min(roots, default=None)
    main = next((at for at, branch in enumerate(branches) if branch.calls[0] == root), None)
    return Built(
        trajectories=trajectories,
        main=None if main is None else trajectories[main],
        report=_report(snapshot, links, fates, allow, roots=len(roots), chains=len(branches)),
    )


def _check_choices(strategy: str, duplicates: str, allow: Collection[str]) -> None:
    if isinstance(allow, str):
        raise TypeError(f"allow is a collection of reasons, not one string; pass ({allow!r},)")
    for name, given, known in (
        ("strategy", [strategy], get_args(Strategy)),
        ("duplicates", [duplicates], get_args(Duplicates)),
        ("allow", allow, get_args(Reason)),
    ):
        for value in given:
            if value not in known:
                raise ValueError(f"{name}: {value!r} is not known, there are {', '.join(known)}")


@attrs.frozen
class _Branch:
    """The calls of a trajectory, the root first; those before `owned` are trained by an earlier branch."""

    calls: tuple[int, ...]
    owned: int


def _branches(links: Links, fates: Sequence[Fate], strategy: Strategy) -> list[_Branch]:
    trained = [call for call, fate in enumerate(fates) if fate == "trained"]
    if strategy == "per_call":
        return [_Branch((call,), 0) for call in trained]
    inner = {links.candidates[call][0] for call in trained if links.candidates[call]}
    taken: set[int] = set()
    branches = []
    for leaf in trained:
        if leaf not in inner:
            calls = _path(links, leaf)
            owned = next(at for at, call in enumerate(calls) if call not in taken)
            taken.update(calls[owned:])
            branches.append(_Branch(calls, owned))
    return branches


def _path(links: Links, leaf: int) -> tuple[int, ...]:
    calls = [leaf]
    while above := links.candidates[calls[-1]]:
        calls.append(above[0])
    return tuple(reversed(calls))


def _trajectory(entries: Sequence[TokenEntry], branch: _Branch, known: dict[tuple[int, bool], Span]) -> Trajectory:
    chain = [entries[call] for call in branch.calls]
    ids = array("i", packed_ids(chain[-1]))
    mask = array("B", bytes(len(ids)))
    log_probs = array("f", bytes(len(ids) * 4))
    spans = _spans(entries, branch, known)
    for entry, span in zip(chain[branch.owned :], spans[branch.owned :], strict=True):
        mask[span.start : span.stop] = array("B", b"\1" * (span.stop - span.start))
        log_probs[span.start : span.stop] = packed_log_probs(entry)
    experts = [entry.routed_experts for entry in chain]
    return Trajectory(
        rollout_id=chain[-1].rollout_id,
        token_ids=as_array(ids),
        loss_mask=as_array(mask),
        log_probs=as_array(log_probs),
        spans=tuple(spans),
        routed_experts=None if None in experts else tuple(experts),
        group_id=_last(chain, "group_id"),
        reward=_last(chain, "reward"),
    )


def _spans(entries: Sequence[TokenEntry], branch: _Branch, known: dict[tuple[int, bool], Span]) -> list[Span]:
    """Give the spans of a branch. A call is at the same place in all its branches, so that they share what is known."""
    spans = []
    for at, call in enumerate(branch.calls):
        key = call, at >= branch.owned
        if key not in known:
            known[key] = _span(entries[call], trained=key[1])
        spans.append(known[key])
    return spans


def _span(entry: TokenEntry, *, trained: bool) -> Span:
    start = len(entry.prompt_token_ids)
    return Span(
        model_call_id=entry.model_call_id,
        start=start,
        stop=start + len(entry.generation_token_ids),
        trained=trained,
        weight_version=entry.extra.get("weight_version"),
    )


def _last(chain: Sequence[TokenEntry], key: str) -> Any:
    """What the last call that says anything says of the sample: the reward is known at its end."""
    return next((entry.extra[key] for entry in reversed(chain) if entry.extra.get(key) is not None), None)


def _report(
    snapshot: TokenCaptureSnapshot,
    links: Links,
    fates: Sequence[Fate],
    allow: Collection[Reason],
    *,
    roots: int,
    chains: int,
) -> BuildReport:
    entries = snapshot.entries
    tokens: dict[Fate, int] = dict.fromkeys(get_args(Fate), 0)
    for entry, fate in zip(entries, fates, strict=True):
        tokens[fate] += len(entry.generation_token_ids)
    reasons = _reasons(snapshot, tokens)
    return BuildReport(
        calls=len(entries),
        roots=roots,
        chains=chains,
        fates=tuple(_fate(entries, links, call, fate) for call, fate in enumerate(fates)),
        tokens=tokens,
        breaks=tuple(_break(entries, agreement) for agreement in links.agreements),
        weight_versions=_weight_versions(entries, fates),
        reasons=reasons,
        trainable=set(reasons) <= set(allow),
    )


def _reasons(snapshot: TokenCaptureSnapshot, tokens: dict[Fate, int]) -> tuple[Reason, ...]:
    found: dict[Reason, bool] = {
        "incomplete": snapshot.incomplete or bool(snapshot.open_calls),  # only peeked at: in flight, or lost
        "unresolved": tokens["unresolved"] > 0,
        "ambiguous": tokens["ambiguous"] > 0,
        "nothing_trained": tokens["trained"] == 0,
    }
    return tuple(reason for reason, holds in found.items() if holds)


def _fate(entries: Sequence[TokenEntry], links: Links, call: int, fate: Fate) -> CallFate:
    above = links.candidates[call]
    return CallFate(
        model_call_id=entries[call].model_call_id,
        fate=fate,
        tokens=len(entries[call].generation_token_ids),
        parent=entries[above[0]].model_call_id if above else None,
    )


def _break(entries: Sequence[TokenEntry], agreement: Agreement) -> Break:
    entry, other, at = entries[agreement.call], entries[agreement.against], agreement.tokens
    behind = at - len(other.prompt_token_ids)
    return Break(
        model_call_id=entry.model_call_id,
        agrees=at,
        against=other.model_call_id,
        inside="prompt" if behind < 0 else "generation",
        expected=other.prompt_token_ids[at] if behind < 0 else other.generation_token_ids[behind],
        found=entry.prompt_token_ids[at] if at < len(entry.prompt_token_ids) else None,
    )


def _weight_versions(entries: Sequence[TokenEntry], fates: Sequence[Fate]) -> tuple[Any, ...]:
    known: list[Any] = []
    for entry, fate in zip(entries, fates, strict=True):
        version = entry.extra.get("weight_version")
        if fate == "trained" and version is not None and version not in known:
            known.append(version)
    return tuple(known)
