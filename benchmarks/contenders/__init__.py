"""Who is measured: the store, and what a user would pick instead, one small file each with the same names inside.

Each file has `CONTENDERS`. A contender opens a sink in a folder, and afterwards says how many entries are really there.
Every one of them has the entry on the disk when `put` returns: that is what makes them comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import attrs

from tokenstore import TokenEntry


class Sink(Protocol):
    """Where entries go."""

    async def put(self, entry: Any) -> None:
        """Store an entry; when this returns, it is on the disk."""


def as_it_is(entry: TokenEntry) -> Any:
    """Put the entry itself."""
    return entry


@attrs.frozen(kw_only=True)
class Contender:
    """Somebody who can store entries."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Sink]]
    """Opens a sink in a folder that is not there yet, inside a running event loop."""
    stored: Callable[[Path], int]
    """Counts the entries in such a folder, after the sink was closed."""
    convert: Callable[[TokenEntry], Any] = as_it_is
    """Makes of an entry what `put` wants, before the clock starts."""
    read: Callable[[Path, str], int] | None = None
    """Reads a rollout back as Python objects and says how many entries it has; None if that is not compared."""
    remove: Callable[[Path, Sequence[str]], object] | None = None
    """Removes rollouts durably."""
    needs: tuple[str, ...] = ()
    """Modules that must be installed."""
