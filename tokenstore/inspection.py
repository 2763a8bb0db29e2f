"""Looking at a whole directory, and mending it: what `tokenstore verify` and `tokenstore repair` do.

Both are safe beside live writers: they go through the same actors and locks as everybody else, one rollout at a time.
`verify` changes nothing; `repair` does what the next writer of each rollout would do first, and removes what is surely
stale. What a live writer is in the middle of, such as a batch of removals, may be found half done.

Memory is bounded by the largest rollout, however many there are. What is given is an object and no generator, so that
it may be left half-way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import attrs

from tokenstore.errors import StoreClosedError, TokenStoreError
from tokenstore.ids import validate_rollout_ids
from tokenstore.journal.disk import Directory
from tokenstore.journal.health import Finding, Health
from tokenstore.journal.stale import Seen, remove_temporary, walk
from tokenstore.slices import Slices
from tokenstore.store import TokenCaptureStore

__all__ = ["Finding", "Health", "count", "repair", "verify"]

WALK_SLICE = 256
"""Names looked at in one way to a worker thread."""


def verify(store: TokenCaptureStore, rollout_ids: Sequence[str] = ()) -> AsyncIterator[Finding]:
    """Read everything and say how each rollout is; changes nothing.

    Args:
        store: The store. With `prompt_storage="full"` lock files without a rollout are no finding: a reference process
            may be waiting on them.
        rollout_ids: The rollouts to look at; none means all, and stale files too.

    Raises:
        OSError: The directory cannot be listed. What cannot be read of one rollout is a finding.
    """
    return _findings(store, rollout_ids, partial(_look, store))


def repair(store: TokenCaptureStore, rollout_ids: Sequence[str] = ()) -> AsyncIterator[Finding]:
    """Recover each rollout as its next writer would, and remove what is surely stale; say how each is then.

    What is damaged stays as it is, left out of snapshots; the reasons are written down. A second one changes nothing.

    Args:
        store: The store. With `prompt_storage="full"` lock files stay.
        rollout_ids: The rollouts to recover; none means all, and stale files too.

    Raises:
        OSError: The directory cannot be listed. What cannot be mended of one rollout is a finding.
    """
    return _findings(store, rollout_ids, partial(_mend, store))


async def count(store: TokenCaptureStore) -> int:
    """Tell how much there is to look at, for progress bars."""
    locks = store.config.prompt_storage == "shared"
    return await store.on_disk(lambda directory: sum(1 for _ in walk(directory, locks=locks)))


def _findings(
    store: TokenCaptureStore, rollout_ids: Sequence[str], judge: Callable[[Seen], Awaitable[Finding]]
) -> AsyncIterator[Finding]:
    """Judge one after the other; a rollout that is gone is a finding only if it was asked for by name."""
    named = [Seen(rollout_id, "") for rollout_id in validate_rollout_ids(rollout_ids)]
    seen = _given(named) if named else _walk(store)

    async def next_finding() -> list[Finding]:
        async for each in seen:
            finding = await judge(each)
            if named or finding.health != "absent":
                return [finding]
        return []

    return Slices(next_finding)


def _given(named: list[Seen]) -> AsyncIterator[Seen]:
    parts = iter((named, ()))

    async def next_part() -> Sequence[Seen]:
        return next(parts)

    return Slices(next_part)


def _walk(store: TokenCaptureStore) -> AsyncIterator[Seen]:
    walks: dict[Directory, Iterator[Seen]] = {}

    def next_part(directory: Directory) -> list[Seen]:
        if not walks:
            walks[directory] = walk(directory, locks=store.config.prompt_storage == "shared")
        if directory not in walks:
            raise StoreClosedError("the store was closed meanwhile; begin again")
        return list(islice(walks[directory], WALK_SLICE))

    return Slices(partial(store.on_disk, next_part))


async def _look(store: TokenCaptureStore, seen: Seen) -> Finding:
    if seen.rollout_id is None:
        return Finding(health="stale", file=seen.file)
    try:
        return await store.examine(seen.rollout_id)
    except TokenStoreError as error:
        return _unreadable(seen, error)


async def _mend(store: TokenCaptureStore, seen: Seen) -> Finding:
    before = await _look(store, seen)
    if before.health in ("absent", "unreadable"):
        return before
    try:
        if seen.rollout_id is None:
            return attrs.evolve(before, mended=await store.on_disk(partial(remove_temporary, name=seen.file)))
        await store.recover(seen.rollout_id)
    except (TokenStoreError, OSError) as error:
        return _unreadable(seen, error)
    after = await _look(store, seen)
    if before.health == "stale" and after.health == "absent":
        return attrs.evolve(before, mended=True)
    return attrs.evolve(after, mended=before != after)


def _unreadable(seen: Seen, error: Exception) -> Finding:
    file = seen.file if seen.rollout_id is None else None
    return Finding(health="unreadable", rollout_id=seen.rollout_id, file=file, reasons=(str(error),))
