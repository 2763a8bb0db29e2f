"""A chain as an OpenAI Responses object, as NeMo Gym's trainers read it.

Those trainers walk over the output items and take the ones that have `generation_token_ids`; each one's
`prompt_token_ids` must begin with all tokens of those before it. A chain has that property, a whole rollout need not:
so a response holds one chain, the main one unless another is given, and the items of its calls in their order.
"""

from __future__ import annotations

from typing import Any

from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.trajectories.building import build
from tokenstore.trajectories.values import Span, Trajectory


def response(snapshot: TokenCaptureSnapshot, trajectory: Trajectory | None = None) -> dict[str, Any]:
    """Give a chain of a rollout as an OpenAI Responses object with token fields.

    The item that carried a call's tokens (`token_item_index`, else the last one, else an empty message) carries
    `prompt_token_ids`, `generation_token_ids`, `generation_log_probs`, and `routed_experts` where they were recorded.
    Calls that another branch trains have their items without tokens. An incomplete rollout has the status `incomplete`;
    whether to train on it is said by the report of `build` alone.

    Args:
        snapshot: The rollout; it is not changed.
        trajectory: One that `build` made of it; the main one of the strategy `"prefix"` if not given.

    Returns:
        A JSON object that shares the snapshot's lists.

    Raises:
        InvalidEntryError: An id is beyond int32 or a log probability beyond float32; give the rollout up.
        ValueError: The trajectory is of another rollout.
    """
    trajectory = trajectory or build(snapshot).main
    entries = {entry.model_call_id: entry for entry in snapshot.entries}
    spans = trajectory.spans if trajectory else ()
    if trajectory is not None and (
        trajectory.rollout_id != snapshot.rollout_id or any(span.model_call_id not in entries for span in spans)
    ):
        raise ValueError(f"the trajectory of {trajectory.rollout_id} is not one of rollout {snapshot.rollout_id}")
    calls = [(entries[span.model_call_id], span) for span in spans]
    last = calls[-1][0] if calls else None
    return {
        "id": (last.response_id if last else None) or f"resp_{snapshot.rollout_id}",
        "created_at": last.created_at if last else 0.0,
        "model": last.model if last else "",
        "object": "response",
        "status": "incomplete" if snapshot.incomplete else "completed",
        "output": [item for entry, span in calls for item in _items(entry, span)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _usage([entry for entry, _ in calls]),
        "metadata": {"rollout_id": snapshot.rollout_id, "snapshot_id": snapshot.snapshot_id},
    }


def _items(entry: TokenEntry, span: Span) -> list[dict[str, Any]]:
    items = list(entry.output_items) or [_message(entry)]
    if span.trained:
        place = len(items) - 1 if entry.token_item_index is None else entry.token_item_index
        items[place] = {**items[place], **_token_fields(entry)}
    return items


def _token_fields(entry: TokenEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "prompt_token_ids": entry.prompt_token_ids,
        "generation_token_ids": entry.generation_token_ids,
        "generation_log_probs": entry.generation_log_probs,
    }
    if entry.routed_experts is not None:
        fields["routed_experts"] = entry.routed_experts
    return fields


def _message(entry: TokenEntry) -> dict[str, Any]:
    """A message to carry the tokens of a call that was recorded without items."""
    return {
        "id": f"msg_{entry.model_call_id}",
        "content": [],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }


def _usage(entries: list[TokenEntry]) -> dict[str, Any]:
    """Add up the calls as the recorded responses do; what was cached or reasoning is not known."""
    read = sum(len(entry.prompt_token_ids) for entry in entries)
    made = sum(len(entry.generation_token_ids) for entry in entries)
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": read + made,
    }
