"""Snapshots and errors as JSON, both ways: what a proxy tells trainers on other hosts, and how they read it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tokenstore import errors
from tokenstore.codec import to_plain
from tokenstore.errors import (
    DurabilityError,
    InvalidEntryError,
    InvalidRolloutIdError,
    LockTimeoutError,
    RemovalError,
    StoreClosedError,
    TokenCaptureFrozenError,
    TokenStoreError,
)
from tokenstore.records import RefusalRecord, TokenCaptureSnapshot, TokenEntry

_FACTS = (
    "rollout_id",
    "model_call_id",
    "problem",
    "field",
    "path",
    "seconds",
    "file",
    "operation",
    "errno",
    "strerror",
)
"""Attributes of errors that are numbers and words."""

_MAKERS: dict[str, Callable[[Mapping[str, Any]], TokenStoreError]] = {
    "InvalidRolloutIdError": lambda facts: InvalidRolloutIdError(facts["rollout_id"], facts["problem"]),
    "InvalidEntryError": lambda facts: InvalidEntryError(facts["field"], facts["problem"]),
    "StoreClosedError": lambda facts: StoreClosedError(facts["problem"]),
    "TokenCaptureFrozenError": lambda facts: errors.TokenCaptureFrozenError(facts["rollout_id"]),
    "TokenCaptureRetiredError": lambda facts: errors.TokenCaptureRetiredError(facts["rollout_id"]),
    "LockTimeoutError": lambda facts: LockTimeoutError(facts["path"], facts["seconds"]),
    "CorruptRolloutError": lambda facts: errors.CorruptRolloutError(facts["file"], facts["problem"]),
    "DurabilityError": lambda facts: DurabilityError(
        facts["operation"], facts["file"], OSError(facts["errno"], os.strerror(facts["errno"]))
    ),
    "RemovalError": lambda facts: RemovalError(
        facts["payload"], {key: error_from_plain(cause) for key, cause in facts["causes"].items()}
    ),
}
"""How each error that a source raises is made again."""

_STATUSES: tuple[tuple[type[TokenStoreError], int], ...] = (
    (InvalidRolloutIdError, 400),
    (TokenCaptureFrozenError, 409),
    (LockTimeoutError, 503),
    (DurabilityError, 503),
    (StoreClosedError, 503),
)


def status_of(error: TokenStoreError) -> int:
    """Give the HTTP status of an error of the store."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def error_to_plain(error: Exception) -> dict[str, Any]:
    """Make JSON of an error: its kind, its message, and its facts."""
    facts: dict[str, Any] = {name: _fact(getattr(error, name)) for name in _FACTS if hasattr(error, name)}
    if isinstance(error, RemovalError):
        facts |= {"payload": error.payload, "causes": {key: error_to_plain(one) for key, one in error.causes.items()}}
    return {**facts, "kind": type(error).__name__, "message": str(error)}


def _fact(value: Any) -> Any:
    """Give a fact that can be written: what was refused as an id may be text that is none, half of a surrogate pair."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def error_from_plain(plain: Mapping[str, Any]) -> Exception:
    """Make the error again; one of an unknown kind becomes the root of all, with its message."""
    try:
        make = _MAKERS.get(plain["kind"])
        return TokenStoreError(plain.get("message", "")) if make is None else make(plain)
    except (KeyError, TypeError, AttributeError):
        return TokenStoreError(plain.get("message", ""))


def snapshot_head(snapshot: TokenCaptureSnapshot) -> dict[str, Any]:
    """Make JSON of a snapshot without its entries, of which it has the number."""
    fields = {field.name: getattr(snapshot, field.name) for field in attrs.fields(TokenCaptureSnapshot)}
    fields["refusals"] = [to_plain(refusal) for refusal in snapshot.refusals]
    return {**fields, "entries": len(snapshot.entries)}


def snapshot_from(head: Mapping[str, Any], entries: list[TokenEntry]) -> TokenCaptureSnapshot:
    """Put a snapshot together again."""
    fields = {field.name: head[field.name] for field in attrs.fields(TokenCaptureSnapshot) if field.name in head}
    refusals = tuple(RefusalRecord(**refusal) for refusal in head["refusals"])
    lists = {name: tuple(head[name]) for name in ("incomplete_reasons", "open_calls")}
    return TokenCaptureSnapshot(**{**fields, **lists, "refusals": refusals, "entries": tuple(entries)})
