"""What can break while a script runs: one thing at a time, once or for ever.

`troubles_of` lists every single one for a script whose calls and steps were counted. A trouble is a value; its `repr`
is enough to have it again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs

from tokenstore.testing import Fault, PersistencePolicy
from tokenstore.testing.failing_disk import Call

SEEDS = 3
"""How often a power cut that leaves things to chance is tried."""


@attrs.frozen
class Calls:
    """Calls of one process fail. Several faults are one trouble, such as a short write into the last free byte."""

    process: int
    faults: tuple[Fault, ...]


@attrs.frozen
class Kill:
    """The process that is about to do a step is killed; another takes its place, what was written is there."""

    step: int


@attrs.frozen
class Cut:
    """The power is cut before a step; all processes are new ones on what is left."""

    step: int
    policy: PersistencePolicy
    seed: int = 0


@attrs.frozen
class Dead:
    """From a step on nothing can be changed any more: the disk is read-only or gone."""

    step: int
    errno: int = errno.EROFS


Trouble: TypeAlias = Calls | Kill | Cut | Dead | None

_ERRORS: Mapping[Call, tuple[int, ...]] = {
    "open": (errno.EMFILE, errno.ENOSPC),
    "create_temporary": (errno.EMFILE, errno.ENOSPC),
    "stat": (errno.EIO,),
    "replace": (errno.EIO, errno.ENOSPC),
    "unlink": (errno.EIO,),
    "directory_sync": (errno.EIO, errno.ENOSPC),
    "filesystem_sync": (errno.EIO, errno.ENOSPC),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO),
    "truncate": (errno.EIO,),
    "datasync": (errno.EIO, errno.ENOSPC),
    "sync": (errno.EIO,),
    "file_stat": (errno.EIO,),
    "lock": (errno.ENOLCK,),
    "unlock": (errno.EIO,),
    "close": (errno.EIO,),
}
"""With what each call can fail."""
_LOGS = (".jsonl", ".intents", ".incomplete")
_UNDO: tuple[tuple[Fault, ...], ...] = (
    (Fault(call="truncate", repeat=True),),
    tuple(Fault(call="sync", repeat=True, name_suffix=suffix) for suffix in _LOGS),
)
"""Ways in which cutting back fails too."""


def policies() -> Iterator[tuple[PersistencePolicy, int]]:
    """Give every policy, with each of the seeds if it leaves something to chance."""
    for policy in PersistencePolicy:
        yield from ((policy, seed) for seed in range(SEEDS if policy.by_chance else 1))


def troubles_of(calls: Mapping[int, Mapping[str, int]], steps: int) -> Iterator[Trouble]:
    """Give every trouble of a script.

    Args:
        calls: How many calls of each kind each process makes.
        steps: How many steps all make together.
    """
    for process, counts in calls.items():
        for call, errors in _ERRORS.items():
            for at in range(1, counts.get(call, 0) + 1):
                yield from (Calls(process, faults) for faults in _faults(call, at, errors))
    for step in range(1, steps + 1):
        yield Kill(step)
        yield Dead(step)
        yield from (Cut(step, policy, seed) for policy, seed in policies())


def _faults(call: Call, at: int, errors: tuple[int, ...]) -> Iterator[tuple[Fault, ...]]:
    """Give the ways in which one call can fail."""
    for code in errors:
        for repeat in (False, True):
            yield (Fault(call=call, at=at, errno=code, repeat=repeat),)
    if call == "write":
        short = Fault(call=call, at=at, short=7)
        full = Fault(call=call, at=at + 1, errno=errno.ENOSPC)
        yield from ((Fault(call=call, at=at, short=1),), (short,), (short, full))
        yield from ((short, full, *undo) for undo in _UNDO)
    if call in ("datasync", "filesystem_sync"):
        once = Fault(call=call, at=at)
        yield from ((once, *undo) for undo in _UNDO)
