"""Bugs to be put into the journal on purpose, each with the scripts that must find it.

A mutant is a function that patches the code; its docstring says what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

import attrs
import pytest

from tokenstore.codec import PromptCache
from tokenstore.errors import DurabilityError
from tokenstore.journal import logfile, statefile
from tokenstore.journal.disk import Access, File, FileStat
from tokenstore.journal.files import RolloutFiles
from tokenstore.journal.index import Index
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import TEMPORARY_PREFIX
from tokenstore.journal.lockfile import LockBusyError, LockFile
from tokenstore.journal.logfile import LogFile
from tokenstore.journal.root import durable
from tokenstore.journal.statefile import StateFile
from tokenstore.journal.syncs import Wish
from tokenstore.testing.simulated_files import SimulatedFile

Patch: TypeAlias = pytest.MonkeyPatch


def no_directory_sync_after_first_open(patch: Patch) -> None:
    """The name of a new file is never made durable."""
    patch.setattr(LogFile, "_settle_name", lambda _: None)


def state_replaced_unsynced(patch: Patch) -> None:
    """A state is moved into place before its bytes are durable."""
    sync = SimulatedFile.sync

    def lie(self: SimulatedFile) -> None:
        if not self._name.startswith(TEMPORARY_PREFIX):
            sync(self)

    patch.setattr(SimulatedFile, "sync", lie)


def state_moved_without_directory_sync(patch: Patch) -> None:
    """A lifecycle fact is acknowledged when its state is moved, and the move may be lost."""
    settle = StateFile.settle
    patch.setattr(StateFile, "settle", lambda self, **_: settle(self, sync_directory=False))


def records_removed_before_the_fence_is_durable(patch: Patch) -> None:
    """A drop moves the fence into place and removes the records with one directory sync after both."""
    settling = StateFile.settling

    def hasty(self: StateFile, *, sync_directory: bool = True) -> Iterator[Wish]:
        return settling(self, sync_directory=sync_directory and not self.state.retired)

    patch.setattr(StateFile, "settling", hasty)


def fence_removed_with_the_records(patch: Patch) -> None:
    """A deletion removes fence and records in one step, and either may come back alone."""
    remove_records = Journal.remove_records

    def both(self: Journal) -> None:
        remove_records(self)
        with self._section(for_removal=True) as index:
            if index.state.retired:
                self._files.unlink_fence()

    patch.setattr(Journal, "remove_records", both)


def sync_tried_again(patch: Patch) -> None:
    """A failed sync is tried again, and its success believed."""

    def again(_: LogFile, file: File, *__: int) -> Iterator[Wish]:
        try:
            file.datasync()
        except OSError:
            file.datasync()
        yield from ()

    patch.setattr(LogFile, "_syncing", again)


def tail_glued(patch: Patch) -> None:
    """A whole last line without its newline counts, and the next line is written behind it."""
    patch.setattr(LogFile, "complete_line", lambda _: None)


def fragment_kept(patch: Patch) -> None:
    """A torn tail is taken for a line and kept."""

    def keep(self: LogFile, _: int) -> None:
        self.size = self.end

    patch.setattr(LogFile, "cut", keep)


def cut_back_too_far(patch: Patch) -> None:
    """After a failed write the file is cut to what this process has synced, below what another has acknowledged."""

    def cut_back(self: LogFile, file: File, failure: DurabilityError) -> DurabilityError:
        try:
            file.truncate(self._synced)
            file.sync()
        except OSError:
            self.poison = failure
        return failure

    patch.setattr(LogFile, "_cut_back", cut_back)


def found_line_acknowledged_unsynced(patch: Patch) -> None:
    """A second put of what another process has written succeeds without a sync."""
    patch.setattr(LogFile, "settle", LogFile._settle_name)


def tail_of_another_not_rewritten(patch: Patch) -> None:
    """What another process has written is synced and not written again, though a failed sync may have lost it."""
    patch.setattr(LogFile, "_first_unsynced", lambda self: self.size)


def intents_not_synced(patch: Patch) -> None:
    """A begin_call is acknowledged when its intent is written."""
    syncing = LogFile._syncing

    def lazy(self: LogFile, file: File, start: int, ticket: int) -> Iterator[Wish]:
        if not self.name.endswith(".intents"):
            yield from syncing(self, file, start, ticket)

    patch.setattr(LogFile, "_syncing", lazy)


def state_before_the_marker(patch: Patch) -> None:
    """A mark is counted in the state before its line is in the marker."""

    def mark(self: RolloutFiles, call_id: str, *, conflict: bool = False) -> None:
        marked = call_id in (self.index.state.marked or ())
        self.index.add_marks([] if marked else [call_id])
        self.index.add_conflicts([call_id] if conflict else [])
        if self.index.has_news:
            self.write_state(self.index.current())
        if not marked:
            self.marker.add([call_id])

    patch.setattr(RolloutFiles, "mark", mark)


def damage_not_recorded(patch: Patch) -> None:
    """Damage that was found is not written down."""

    def forgetful(self: Index) -> bool:
        self._damage.clear()
        return bool(self._marks or self._conflicts) or self.state.indexed_size is None

    patch.setattr(Index, "has_news", property(forgetful))


def marks_of_a_frozen_rollout_not_counted(patch: Patch) -> None:
    """A mark that a crash has left in the marker of a frozen rollout is not folded in."""
    add_marks = Index.add_marks
    patch.setattr(Index, "add_marks", lambda self, ids: None if self.state.frozen else add_marks(self, ids))


def prompts_never_forgotten(patch: Patch) -> None:
    """A prompt stays known as a base when its line is not in the file, or no longer."""
    patch.setattr(PromptCache, "forget", lambda *_: None)


def short_write_believed(patch: Patch) -> None:
    """What a write has not taken is not written."""

    def once(file: File, offset: int, data: bytes) -> None:
        file.write(offset, data)

    patch.setattr(logfile, "write_all", once)
    patch.setattr(statefile, "write_all", once)


def recognised_by_inode_and_size(patch: Patch) -> None:
    """A file whose descriptor was given away is taken for the same if its inode number and size are."""
    recognise = LogFile._recognise

    def lax(self: LogFile, file: File, now: FileStat) -> None:
        known = self._fingerprint
        if known is not None and known.identity == now.identity and known.size <= now.size:
            self._fingerprint = None
        else:
            recognise(self, file, now)

    patch.setattr(LogFile, "_recognise", lax)


def temporary_state_left(patch: Patch) -> None:
    """A state that could not be moved into place stays under its temporary name."""
    patch.setattr(StateFile, "_discard", lambda *_: None)


def records_removed_without_looking_again(patch: Patch) -> None:
    """The second step of a removal does not look whether the rollout is still fenced."""

    def blind(self: Journal) -> None:
        with self._section(for_removal=True):
            self._files.unlink_records()

    patch.setattr(Journal, "remove_records", blind)


def fence_removed_without_looking_again(patch: Patch) -> None:
    """The third step of a deletion does not look whether the state is still a fence."""

    def blind(self: Journal) -> None:
        with self._section(for_removal=True):
            self._files.unlink_fence()

    patch.setattr(Journal, "remove_fence", blind)


def lock_removed_while_the_state_is_there(patch: Patch) -> None:
    """The last step of a deletion does not look whether the rollout is gone."""

    def blind(self: Journal) -> None:
        with self._section(for_removal=True):
            self._files.lock.unlink()

    patch.setattr(Journal, "remove_lock", blind)


def state_descriptor_left_open(patch: Patch) -> None:
    """The descriptor of a state that was replaced is never closed."""

    def leak(self: StateFile) -> None:
        self._file = None

    patch.setattr(StateFile, "release", leak)


def lock_kept_after_an_error(patch: Patch) -> None:
    """A lock that was taken just before an error is not given back."""

    def take(self: LockFile, access: Access) -> None:
        with durable("locking", self.name):
            if not self._try(access):
                raise LockBusyError

    patch.setattr(LockFile, "take", take)


def error_of_closing_raised(patch: Patch) -> None:
    """An error of closing a descriptor comes out of an operation that has succeeded."""
    patch.setattr(logfile, "let_go", lambda file: file.close())


@attrs.frozen
class Mutant:
    """A bug, and the scripts that find it."""

    put_in: Callable[[Patch], None]
    scenarios: tuple[str, ...]


MUTANTS: Mapping[str, Mutant] = MappingProxyType(
    {
        mutant.put_in.__name__: mutant
        for mutant in (
            # Those that the project has promised to find.
            Mutant(no_directory_sync_after_first_open, ("put", "begin and put")),
            Mutant(state_replaced_unsynced, ("freeze", "mark")),
            Mutant(records_removed_before_the_fence_is_durable, ("drop",)),
            Mutant(sync_tried_again, ("put", "two writers")),
            Mutant(tail_glued, ("a line without its newline",)),
            Mutant(cut_back_too_far, ("two writers", "two writers share prompts")),
            Mutant(found_line_acknowledged_unsynced, ("retries", "two writers retry")),
            Mutant(fence_removed_with_the_records, ("delete frozen",)),
            # And more of the kind.
            Mutant(state_moved_without_directory_sync, ("freeze", "retire")),
            Mutant(fragment_kept, ("freeze", "torn intents")),
            Mutant(tail_of_another_not_rewritten, ("batches",)),
            Mutant(intents_not_synced, ("a lost call",)),
            Mutant(state_before_the_marker, ("mark", "conflict")),
            Mutant(damage_not_recorded, ("a hole",)),
            Mutant(marks_of_a_frozen_rollout_not_counted, ("mark after freeze",)),
            Mutant(prompts_never_forgotten, ("shared prompts", "a base removed while idle")),
            Mutant(short_write_believed, ("put", "freeze full")),
            Mutant(recognised_by_inode_and_size, ("an inode comes back",)),
            Mutant(temporary_state_left, ("freeze",)),
            Mutant(records_removed_without_looking_again, ("a removal overtaken",)),
            Mutant(fence_removed_without_looking_again, ("a removal overtaken by a freeze",)),
            Mutant(lock_removed_while_the_state_is_there, ("a lock kept",)),
            Mutant(state_descriptor_left_open, ("freeze",)),
            Mutant(lock_kept_after_an_error, ("two writers freeze",)),
            Mutant(error_of_closing_raised, ("handles given away", "drop", "retire")),
        )
    }
)
"""Every mutant by its name."""
