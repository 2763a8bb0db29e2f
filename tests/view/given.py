"""Rollouts for the pages."""

from __future__ import annotations

from typing import Any

from tokenstore import RefusalRecord, TokenCaptureSnapshot, TokenEntry
from tokenstore.testing import agent_rollout, shaped_rollout

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u2028&lt;"
"""Text that would run if it were let."""


def snapshot(entries: list[TokenEntry], **fields: Any) -> TokenCaptureSnapshot:
    """Make a snapshot, frozen and complete unless said otherwise."""
    facts: dict[str, Any] = {"incomplete": False, "snapshot_id": "s", "version": len(entries) + 1, **fields}
    return TokenCaptureSnapshot(rollout_id=entries[0].rollout_id, entries=tuple(entries), **facts)


def shaped(shape: str, **fields: Any) -> TokenCaptureSnapshot:
    """Make a snapshot of one of the generator's kinds."""
    return snapshot(shaped_rollout(shape, "r"), **fields)


def hostile() -> TokenCaptureSnapshot:
    """Make a rollout whose every text is hostile."""
    entry = TokenEntry(
        rollout_id="r",
        model_call_id=HOSTILE[:80],
        prompt_token_ids=[1, 2],
        generation_token_ids=[3],
        generation_log_probs=[-0.5],
        model=HOSTILE,
        output_items=[{"type": HOSTILE, "content": [{"text": HOSTILE}]}, {HOSTILE: HOSTILE}],
    )
    refusals = (RefusalRecord(model_call_id="refused", code=HOSTILE),)
    reasons = (f"marked:{HOSTILE}",)
    return snapshot([entry], incomplete=True, incomplete_reasons=reasons, open_calls=(HOSTILE,), refusals=refusals)


def large() -> TokenCaptureSnapshot:
    """Make a rollout of 200 turns with 202,000 tokens in its last call."""
    return snapshot(agent_rollout("large", turns=200, first_prompt=2000, generated=500, added=500))
