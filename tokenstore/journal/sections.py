"""The critical sections of one rollout's journal, and what is known between them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from tokenstore.journal.batch import late
from tokenstore.journal.files import RolloutFiles
from tokenstore.journal.index import Index
from tokenstore.journal.lifecycle import Ruling
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Steps, Wish

T = TypeVar("T")


class Sections:
    """Runs critical sections on one rollout, one at a time, from any thread."""

    def __init__(self, root: Root, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        self._root = root
        self._files = RolloutFiles(root, rollout_id)

    @property
    def poisoned(self) -> bool:
        """Whether the journal must be given up."""
        return self._files.poison is not None

    @property
    def turn_seconds(self) -> float:
        """How long the lock was held in sections that came back to back, so that others hardly got it."""
        return self._files.turn_seconds

    def finish(self, section: Generator[Wish, None, T]) -> T:
        """Run a critical section to its end, its wishes one by one, and give what came of it."""
        steps = Steps(section)
        with self._root.turn:
            self._root.finish(steps)
        return steps.result

    def close(self) -> None:
        """Give all descriptors away, after the running critical section."""
        self._files.close()

    # ------------------------------------------------------------------------------------------ inside

    def _section(
        self, *, shared: bool = False, for_removal: bool = False, create_lock: bool = True
    ) -> AbstractContextManager[Index]:
        if shared:
            return self._entered(self._files.shared())
        return self._entered(self._files.exclusive(for_removal=for_removal, create_lock=create_lock))

    @contextmanager
    def _entered(self, section: AbstractContextManager[T]) -> Iterator[T]:
        """Run a critical section, unless the journal must be given up, and keep what it has opened."""
        if self._files.poison:
            raise self._files.poison
        try:
            with section as known:
                yield known
        finally:
            self._root.handles.keep(self._files)

    def _check_late(self, ruling: Ruling) -> None:
        if ruling in (Ruling.FROZEN, Ruling.RETIRED):
            raise late(ruling, self.rollout_id)
