"""The few things a user may set, each default a named constant with its reason."""

from __future__ import annotations

import sys
from typing import Any, Literal

import attrs

MIB = 1024 * 1024
"""Bytes of a mebibyte."""

MAX_ENTRY_BYTES = 256 * MIB
"""Four thousand times an ordinary call: room for images in the items, and a bound on what one line can cost."""
MAX_INFLIGHT_BYTES = 256 * MIB
"""The largest entry fits, and a host holds no more than this many encoded bytes at once, whatever the load."""
LOCK_TIMEOUT = 30.0
"""Longer than any critical section of a live process, shorter than a person's patience."""
IDLE_SECONDS = 30.0
"""An agent's slow tool call should not cost its rollout the warm actor."""
MAX_OPEN_FILES = 160
"""With the descriptors of sixteen critical sections this stays under 256, a quarter of the usual soft limit. With
`sync="filesystem"` more sections run at once, as many as the limit of the process has room for."""

Sync = Literal["file", "filesystem"]
"""What a batch waits for before it is acknowledged."""
PromptStorage = Literal["shared", "full"]
"""Whether a line may name an earlier call's ids as the beginning of its prompt."""


def _positive(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise ValueError(f"StoreConfig.{field.name} is {value!r}, a positive number is allowed")


def _positive_int(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"StoreConfig.{field.name} is {value!r}, an int from 1 on is allowed")


def _prompt_storage(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if value not in ("shared", "full"):
        raise ValueError(f"StoreConfig.{field.name} is {value!r}, 'shared' and 'full' are allowed")


def _sync(_: object, field: attrs.Attribute[Any], value: object) -> None:
    if value not in ("file", "filesystem"):
        raise ValueError(f"StoreConfig.{field.name} is {value!r}, 'file' and 'filesystem' are allowed")


@attrs.frozen(kw_only=True)
class StoreConfig:
    """How a store behaves; the defaults are right for a rollout server on one node.

    Raises:
        ValueError: A value is not allowed; the message names the field and what is.
    """

    prompt_storage: PromptStorage = attrs.field(default="shared", validator=_prompt_storage)
    """`"shared"`: checksummed lines that name an earlier call's ids as the beginning of a prompt. `"full"`: the
    reference's lines, for directories that its library writes too."""
    sync: Sync = attrs.field(default="file", validator=_sync)
    """`"file"`: every batch waits for its own `fdatasync`. `"filesystem"`: batches of all rollouts share one `syncfs`,
    with the same guarantee. For a disk of the store's own: it also flushes what everybody else wrote to that file
    system, and waits for it. Linux 5.8 or newer."""
    max_entry_bytes: int = attrs.field(default=MAX_ENTRY_BYTES, validator=_positive_int)
    """Longest line, in bytes; a longer entry is refused. What other processes wrote is read up to the default, or up to
    this if it is more."""
    max_inflight_bytes: int = attrs.field(default=MAX_INFLIGHT_BYTES, validator=_positive_int)
    """Bytes of entries being written at once; more wait."""
    lock_timeout: float = attrs.field(default=LOCK_TIMEOUT, validator=_positive)
    """Seconds to wait for a rollout's lock that another process holds."""
    idle_seconds: float = attrs.field(default=IDLE_SECONDS, validator=_positive)
    """Seconds without a message after which a rollout's actor retires."""
    max_open_files: int = attrs.field(default=MAX_OPEN_FILES, validator=_positive_int)
    """Descriptors kept open between critical sections, over all rollouts: two for each that is being written. Where
    more than eighty are written all the time, more is faster, if the process may open three times as many."""
