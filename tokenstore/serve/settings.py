"""What an operator may set, each default a named constant with its reason."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from tokenstore.config import MIB

EngineKind = Literal["vllm", "sglang", "llama_cpp", "responses"]
"""Whose options are added to requests, and whose answers are read."""

MAX_BODY_BYTES = 64 * MIB
"""A prompt of 131,072 tokens is a few megabytes; this leaves room for images."""
MAX_ANSWER_BYTES = 256 * MIB
"""As large as the store's largest entry; of a stream, the bound on one event."""
MAX_CALLS = 4096
"""More than the thousands of rollouts that one node holds open; each costs some tens of kilobytes."""
ENGINE_TIMEOUT = 600.0
"""An engine under load queues a long prompt for minutes; what is silent for longer has lost the call."""


def _positive(_: object, field: attrs.Attribute[Any], value: float) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"ProxySettings.{field.name} is {value!r}, a positive number is allowed")


def _engine(_: object, __: object, value: str) -> None:
    scheme, found, rest = value.partition("://")
    if scheme not in ("http", "https") or not found or not rest or any(mark in rest for mark in "?#@"):
        raise ValueError("ProxySettings.engine is no URL of the form http://host:port")


def _base(value: str) -> str:
    """Take the URL as people write it for clients too, with `/v1` at its end."""
    return value.rstrip("/").removesuffix("/v1")


def _token(_: object, __: object, value: str | None) -> None:
    if value is not None and (len(value) < 16 or not value.isascii() or not value.isprintable() or " " in value):
        raise ValueError("ProxySettings.control_token needs 16 ASCII characters or more, without spaces")


@attrs.frozen(kw_only=True)
class ProxySettings:
    """How a capture proxy behaves.

    Raises:
        ValueError: A value is not allowed; the message names the field and what is.
    """

    engine: str = attrs.field(converter=_base, validator=_engine)
    """URL of the engine, with or without `/v1` at its end."""
    engine_kind: EngineKind = attrs.field(
        default="vllm", validator=attrs.validators.in_(("vllm", "sglang", "llama_cpp", "responses"))
    )
    """Which engine it is."""
    max_body_bytes: int = attrs.field(default=MAX_BODY_BYTES, validator=_positive)
    """Largest body of a request."""
    max_calls: int = attrs.field(default=MAX_CALLS, validator=_positive)
    """Calls in flight; a further one is turned away with 503 before anything is recorded."""
    engine_timeout: float = attrs.field(default=ENGINE_TIMEOUT, validator=_positive)
    """Seconds without a byte of the engine after which a call is lost."""
    control_token: str | None = attrs.field(default=None, repr=False, validator=_token)
    """Bearer token of the control routes, which are off without one."""
