"""Getting rid of a rollout in durable steps, behind a fence.

1. The fence is durable before the first record goes, and what is removed is durable before the answer.
2. A batch of removals does one step of all its rollouts, then one sync of the directory, then the next step. Each step
   looks again under the lock: only what is still fenced is removed.
3. What has to wait for the disk is a generator, so that one thread can do the same step of many rollouts and wait once.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from tokenstore.journal.lifecycle import Event, Ruling, State, rule
from tokenstore.journal.sections import Sections
from tokenstore.journal.syncs import Wish


class Removing(Sections):
    """The operations on one rollout that remove it, or a part of it."""

    def dropping(self, snapshot_id: str, version: int) -> Generator[Wish, None, bool]:
        """Remove the records of a frozen rollout behind a fence; false if it is not the one that was frozen."""
        with self._section(for_removal=True) as index:
            state = index.state
            match = state.frozen and (state.snapshot_id, state.version) == (snapshot_id, version)
            ruling = rule(Event.DROP_MATCH if match else Event.DROP_OTHER, state.status)
            if ruling is Ruling.RECORD:
                yield from self._putting_up_fence(state)
            yield from self._files.statefile.settling()
            if self._files.index.state.retired:
                yield from self._files.removing_records()
            return ruling is not Ruling.NO

    def fencing(self) -> Generator[Wish, None, bool]:
        """First step of a removal: put the fence up, durable with the next directory sync; tell if records exist."""
        with self._section(for_removal=True) as index:
            existed = self._files.has_records()
            if not index.state.retired:
                yield from self._putting_up_fence(index.current())
            yield from self._files.statefile.settling(sync_directory=False)
            return existed

    def _putting_up_fence(self, state: State) -> Iterator[Wish]:
        """Replace the state; the lines that it covered go anyway, so nothing is synced for them."""
        yield from self._files.statefile.writing(state.fence())
        self._files.index.written(self._files.statefile.state)

    def remove_records(self) -> None:
        """Second step: take the records away, if the rollout is still fenced; durable with the next directory sync."""
        with self._entered(self._files.fenced()) as state:
            if state.retired:
                self._files.unlink_records()

    def remove_fence(self) -> None:
        """Third step, of a delete: take the fence away, if it is still one and hides nothing."""
        with self._entered(self._files.fenced()) as state:
            if state.retired and not self._files.has_records():
                self._files.unlink_fence()

    def remove_lock(self) -> None:
        """Last step, of a delete: take the lock file away, if the rollout is gone."""
        with self._entered(self._files.fenced()):
            if not self._files.statefile.exists and not self._files.has_records():
                self._files.lock.unlink()
