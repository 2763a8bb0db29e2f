"""Token ids and log probabilities as packed arrays of the kinds that trainers take."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenEntry

ID_BYTES = 4
"""Bytes of a packed id: trainers index embeddings with int32, which holds every vocabulary there is."""
_LARGEST = 2**31 - 1
_HIGHEST_BYTE = 3 if sys.byteorder == "little" else 0


def packed_ids(entry: TokenEntry) -> bytes:
    """Pack a call's prompt and generation as int32, 4 bytes an id.

    Raises:
        InvalidEntryError: An id is beyond int32; the rollout cannot be trained on.
    """
    return _pack(entry, "prompt_token_ids") + _pack(entry, "generation_token_ids")


def packed_log_probs(entry: TokenEntry) -> array[float]:
    """Pack a call's log probabilities as float32.

    Raises:
        InvalidEntryError: One is beyond the range of float32, which would make the loss infinite.
    """
    packed = array("f", entry.generation_log_probs)
    if not all(map(math.isfinite, packed)):
        at = next(at for at, value in enumerate(packed) if not math.isfinite(value))
        problem = f"position {at} is beyond the range of float32, in which it cannot be trained on"
        raise InvalidEntryError("generation_log_probs", problem, model_call_id=entry.model_call_id)
    return packed


def as_array(packed: array[Any]) -> Any:
    """Give a packed array as numpy's, sharing its memory; as it is where numpy is not installed."""
    try:
        import numpy as np  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        return packed
    return np.asarray(packed)


def _pack(entry: TokenEntry, field: str) -> bytes:
    """Pack ids as uint32, which `array` does three times as fast as int32, and look at the highest byte of each."""
    ids: Sequence[int] = getattr(entry, field)
    packed = array("I", ids).tobytes()
    if not packed[_HIGHEST_BYTE::ID_BYTES].isascii():
        at = next(at for at, value in enumerate(ids) if value > _LARGEST)
        problem = f"position {at} is beyond int32, in which trainers take ids"
        raise InvalidEntryError(field, problem, model_call_id=entry.model_call_id)
    return packed
