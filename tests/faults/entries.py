"""The calls of the scripts, made from their names: `c` is a short one, `t` a turn of an agent, `b` a big one.

A turn's prompt begins with the whole prompt and generation of the turn before, so that prompts are shared. Big ones
take more than the index waits for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenstore.records import TokenEntry

FIRST_PROMPT = 260
"""Ids of a first turn: enough to be named as a base."""
_FIRST = 7
"""The last id of a first variant."""
BIG = 70_000
"""Characters of a big call: more than an actor leaves without an index."""


@cache
def entry(rollout: str, call: str, variant: int = 0) -> TokenEntry:
    """Make a call's entry; variants of one call differ in what was generated."""
    extra: dict[str, Any] = {"pad": "x" * BIG} if call.startswith("b") else {}
    return TokenEntry(
        rollout_id=rollout,
        model_call_id=call,
        prompt_token_ids=_prompt(rollout, call),
        generation_token_ids=_generation(call, variant),
        generation_log_probs=[-0.5, -1.25e-5 * (variant + 1)],
        model="m",
        created_at=1.5,
        extra=extra,
    )


def _prompt(rollout: str, call: str) -> list[int]:
    if not call.startswith("t"):
        return [len(rollout), _number(call), 3]
    turn = _number(call)
    if turn == 1:
        return list(range(FIRST_PROMPT))
    return [*_prompt(rollout, f"t{turn - 1}"), *_generation(f"t{turn - 1}", 0), 1000 + turn]


def _generation(call: str, variant: int) -> list[int]:
    return [_number(call), _FIRST + variant]


def _number(call: str) -> int:
    return int("".join(filter(str.isdigit, call)) or 0)


def variant_of(found: TokenEntry) -> int | None:
    """Tell which variant of its call an entry is, to the last bit; None if it is none."""
    variant = found.generation_token_ids[-1] - _FIRST if found.generation_token_ids else -1
    wanted = entry(found.rollout_id, found.model_call_id, variant)
    same = found == wanted and repr(found.generation_log_probs) == repr(wanted.generation_log_probs)
    return variant if same else None
