"""The page of one rollout: its data, from an analysed snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenstore.codec import dumps, to_plain
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.view.analysis import AnalysedCall, Analysis, analyse
from tokenstore.view.page import asset, page
from tokenstore.view.vocabulary import Vocabulary


def rollout_page(snapshot: TokenCaptureSnapshot, vocabulary: Vocabulary | None = None) -> str:
    """Show a rollout as one HTML page. Blocks while it works: in an event loop, call it in a thread.

    Args:
        snapshot: The rollout, as `peek` or `freeze` gave it; it is not changed.
        vocabulary: What turns ids into text; without one the ids are shown.

    Returns:
        The whole file.
    """
    return page(
        f"rollout {snapshot.rollout_id}",
        asset("rollout.html"),
        style=asset("common.css") + asset("rollout.css"),
        script=asset("rollout.js"),
        data=document(snapshot, vocabulary),
    )


def document(snapshot: TokenCaptureSnapshot, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """Give what the page's script shows, as JSON; each token that calls share is there once."""
    analysis = analyse(snapshot)
    calls = [_call(call) for call in analysis.calls]
    ids = {token for call in calls for token in (*call["prompt"], *call["generation"])}
    pieces: Mapping[int, str] = {} if vocabulary is None else vocabulary.pieces(ids)
    return {
        "rollout": snapshot.rollout_id,
        "state": "frozen" if snapshot.frozen else "open",
        "snapshot": snapshot.snapshot_id,
        "version": snapshot.version,
        "incomplete": snapshot.incomplete,
        "reasons": list(snapshot.incomplete_reasons),
        "verdict": _verdict(analysis),
        "open_calls": list(snapshot.open_calls),
        "refusals": [to_plain(refusal) for refusal in snapshot.refusals],
        "pieces": {str(token): text for token, text in pieces.items()},
        "with_pieces": vocabulary is not None,
        "calls": calls,
    }


def _verdict(analysis: Analysis) -> dict[str, Any]:
    report = analysis.report
    if report is None:
        return {"trainable": False, "reasons": [analysis.problem], "tokens": {}, "chains": 0}
    return {
        "trainable": report.trainable,
        "reasons": list(report.reasons),
        "tokens": {fate: count for fate, count in report.tokens.items() if count},
        "chains": report.chains,
    }


def _call(call: AnalysedCall) -> dict[str, Any]:
    entry, broken = call.entry, call.broken
    return {
        "id": entry.model_call_id,
        "model": entry.model,
        "created_at": entry.created_at,
        "extends": call.extends,
        "base": call.base,
        "shared": call.shared,
        "prompt": entry.prompt_token_ids[call.shared :],
        "generation": entry.generation_token_ids,
        "log_probs": entry.generation_log_probs,
        "fate": call.fate,
        "break": None if broken is None else {"against": broken.against, "at": broken.agrees, "inside": broken.inside},
        "notes": list(call.notes),
        "items": [{"kind": _kind(item), "text": _text(item)} for item in entry.output_items],
    }


def _kind(item: Mapping[str, Any]) -> str:
    words = (item.get("type"), item.get("role"), item.get("name"))
    return " ".join(word for word in words if isinstance(word, str)) or "item"


def _text(item: Mapping[str, Any]) -> str:
    """The words of an item, or all of it as JSON where it has none of a known form."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, str):
            return parts
        if isinstance(parts, list):
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            if texts:
                return "\n".join(texts)
    for key in ("arguments", "output"):
        if isinstance(item.get(key), str):
            return str(item[key])
    return dumps(dict(item)).decode()
