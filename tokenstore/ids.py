"""The rules for rollout ids and model call ids.

A rollout id names files, so it is plain: 237 characters and the longest suffix make 255, the limit of a file name. A
model call id is a line of a file, so it holds no control characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError

MAX_ROLLOUT_ID = 237
"""Characters of a rollout id: 255 less the longest file suffix."""
MAX_MODEL_CALL_ID = 512
"""Characters of a model call id."""

_ROLLOUT_ID = re.compile(r"[A-Za-z0-9._-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def validate_rollout_id(rollout_id: str) -> str:
    """Return the rollout id if it can safely name files.

    Args:
        rollout_id: 1 to 237 characters of `A-Z a-z 0-9 . _ -`, not dots alone.

    Raises:
        InvalidRolloutIdError: It is none; mend the id.
    """
    problem = _rollout_id_problem(rollout_id)
    if problem:
        raise InvalidRolloutIdError(rollout_id, problem)
    return rollout_id


def validate_rollout_ids(rollout_ids: Sequence[str]) -> list[str]:
    """Return the ids of a batch, duplicates counted once, order kept; nothing is returned if one is invalid.

    Raises:
        TypeError: No batch was given, or a bare string, which would be taken as a sequence of one-character ids. Pass a
            list.
        InvalidRolloutIdError: An id cannot name files.
    """
    if isinstance(rollout_ids, str | bytes | bytearray):
        raise TypeError("a batch of rollout ids is a list of strings, not one string; pass [rollout_id]")
    if not isinstance(rollout_ids, Iterable):
        raise TypeError(f"a batch of rollout ids is a list of strings, not a {type(rollout_ids).__name__}")
    return list(dict.fromkeys([validate_rollout_id(rollout_id) for rollout_id in rollout_ids]))


def validate_model_call_id(model_call_id: str) -> str:
    """Return the model call id if it can be a line of a file.

    Args:
        model_call_id: 1 to 512 characters, no control characters, no white space at either end.

    Raises:
        InvalidEntryError: It is none; mend the id.
    """
    problem = _model_call_id_problem(model_call_id)
    if problem:
        raise InvalidEntryError("model_call_id", problem)
    return model_call_id


def recordable_call_id(model_call_id: object) -> str:
    """Return a model call id as it is, or blank if it is invalid: a mark is never refused because of its call id."""
    return "" if _model_call_id_problem(model_call_id) else str(model_call_id)


def _rollout_id_problem(rollout_id: object) -> str | None:
    if not isinstance(rollout_id, str):
        return "it is not a string"
    if not rollout_id:
        return "it is empty"
    if len(rollout_id) > MAX_ROLLOUT_ID:
        return f"it has {len(rollout_id)} characters"
    if not _ROLLOUT_ID.fullmatch(rollout_id):
        return "it holds other characters"
    if not rollout_id.strip("."):
        return "it is dots alone"
    return None


def _model_call_id_problem(model_call_id: object) -> str | None:
    if not isinstance(model_call_id, str):
        return f"it is of type {type(model_call_id).__name__}, a model call id is a string"
    if not model_call_id:
        return "it is empty, a model call id has 1 to 512 characters"
    if len(model_call_id) > MAX_MODEL_CALL_ID:
        return f"it has {len(model_call_id)} characters, 512 are allowed"
    if _CONTROL.search(model_call_id):
        return "it holds a control character or a lone surrogate"
    if model_call_id != model_call_id.strip():
        return "it begins or ends with white space"
    return None
