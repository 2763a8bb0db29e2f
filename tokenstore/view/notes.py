"""What is odd about a call without being wrong: worth a look before it is trained on."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from tokenstore.records import TokenEntry

Note = Literal["empty_prompt", "empty_generation", "all_padding"]
"""`empty_prompt`: the engine was given nothing; `empty_generation`: it generated nothing; `all_padding`: what it
generated is nearly one id throughout, as padding is."""

PADDING_TOKENS = 64
"""Shorter generations may repeat one id for good reasons."""
PADDING_SHARE = 0.9
"""Part of a generation that is one id. Recorded padding has 98 %, the most repetitive real text 30 %."""


def notes(entry: TokenEntry) -> tuple[Note, ...]:
    """Name what is odd about a call."""
    found: dict[Note, bool] = {
        "empty_prompt": not entry.prompt_token_ids,
        "empty_generation": not entry.generation_token_ids,
        "all_padding": _is_padding(entry.generation_token_ids),
    }
    return tuple(note for note, holds in found.items() if holds)


def _is_padding(ids: list[int]) -> bool:
    if len(ids) < PADDING_TOKENS:
        return False
    ((_, count),) = Counter(ids).most_common(1)
    return count >= len(ids) * PADDING_SHARE
