"""Looking at a whole directory, and mending it: what `tokenstore verify` and `tokenstore repair` do.

Both are safe beside live writers: they go through the same actors and locks as everybody else. `verify` changes
nothing; `repair` does what the next writer of each rollout would do first, and removes what is surely stale.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Literal

import attrs

from tokenstore.errors import TokenCaptureRetiredError, TokenStoreError
from tokenstore.ids import validate_rollout_ids
from tokenstore.journal.disk import Directory
from tokenstore.journal.layout import Names
from tokenstore.journal.stale import StaleFile, find_stale, remove_temporary
from tokenstore.store import TokenCaptureStore

Health = Literal["whole", "masked", "damaged", "retired", "stale", "unreadable", "absent"]
"""`masked`: incomplete, every line good; `damaged`: lines are lost or changed; `stale`: nobody needs the file."""

_DAMAGE = ("damaged:", "unacceptable:", "lost_base:", "state_lost")


@attrs.frozen(kw_only=True)
class Finding:
    """What is known of one rollout, or of one stale file."""

    health: Health
    """How it is."""
    rollout_id: str | None = None
    """The rollout; None for a file that belongs to none."""
    file: str | None = None
    """The stale file."""
    calls: int = 0
    """Entries that can be delivered."""
    reasons: tuple[str, ...] = ()
    """Reason codes, with offsets in bytes where they are about lines; an error's text where it cannot be read."""
    mended: bool = False
    """Whether `repair` has done something about it."""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention: whole, masked for a known reason, or retired without leftovers."""
        return self.health in ("whole", "masked", "retired") and not self.reasons_of_disk

    @property
    def reasons_of_disk(self) -> tuple[str, ...]:
        """The reasons that are about the disk, not about lost calls."""
        return tuple(reason for reason in self.reasons if reason.startswith(_DAMAGE) or reason == "leftovers")


async def verify(store: TokenCaptureStore, rollout_ids: Sequence[str] = ()) -> AsyncIterator[Finding]:
    """Read everything and say how each rollout is; changes nothing.

    Args:
        store: The store.
        rollout_ids: The rollouts to look at; none means all, and stale files too.
    """
    async for rollout_id in _chosen(store, rollout_ids):
        yield await _look(store, rollout_id)
    if not rollout_ids:
        for stale in await store.on_disk(_stale_files):
            yield Finding(health="stale", rollout_id=stale.rollout_id, file=stale.name)


async def repair(store: TokenCaptureStore, rollout_ids: Sequence[str] = ()) -> AsyncIterator[Finding]:
    """Recover each rollout as its next writer would, and remove what is surely stale; say how each is then.

    What is damaged stays as it is, left out of snapshots; the reasons are written down.

    Args:
        store: The store.
        rollout_ids: The rollouts to recover; none means all, and stale files too.
    """
    async for rollout_id in _chosen(store, rollout_ids):
        before = await _look(store, rollout_id)
        try:
            await store.recover(rollout_id)
        except TokenStoreError as error:
            yield attrs.evolve(before, health="unreadable", reasons=(str(error),))
        else:
            after = await _look(store, rollout_id)
            yield attrs.evolve(after, mended=before != after)
    if not rollout_ids:
        for stale in await store.on_disk(_stale_files):
            yield await _remove(store, stale)


async def _chosen(store: TokenCaptureStore, rollout_ids: Sequence[str]) -> AsyncIterator[str]:
    if rollout_ids:
        for rollout_id in validate_rollout_ids(rollout_ids):
            yield rollout_id
    else:
        async for status in store.rollouts():
            yield status.rollout_id


async def _look(store: TokenCaptureStore, rollout_id: str) -> Finding:
    names = Names.of(rollout_id)
    if not await store.on_disk(partial(_any_there, names=names.evidence)):
        return Finding(health="absent", rollout_id=rollout_id)
    try:
        snapshot = await store.peek(rollout_id)
    except TokenCaptureRetiredError:
        leftovers = await store.on_disk(partial(_any_there, names=names.records))
        return Finding(health="retired", rollout_id=rollout_id, reasons=("leftovers",) if leftovers else ())
    except TokenStoreError as error:
        return Finding(health="unreadable", rollout_id=rollout_id, reasons=(str(error),))
    damaged = any(reason.startswith(_DAMAGE) for reason in snapshot.incomplete_reasons)
    return Finding(
        health="damaged" if damaged else "masked" if snapshot.incomplete else "whole",
        rollout_id=rollout_id,
        calls=len(snapshot.entries),
        reasons=snapshot.incomplete_reasons,
    )


async def _remove(store: TokenCaptureStore, stale: StaleFile) -> Finding:
    if stale.rollout_id is None:
        removed = await store.on_disk(partial(remove_temporary, name=stale.name))
    else:
        await store.recover(stale.rollout_id, remove_lock=True)
        removed = not await store.on_disk(partial(_any_there, names=(stale.name,)))
    return Finding(health="stale", rollout_id=stale.rollout_id, file=stale.name, mended=removed)


def _any_there(directory: Directory, names: Sequence[str]) -> bool:
    return any(directory.stat(name) is not None for name in names)


def _stale_files(directory: Directory) -> list[StaleFile]:
    return list(find_stale(directory))
