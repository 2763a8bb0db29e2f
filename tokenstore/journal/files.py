"""The files of one rollout under its lock: what every operation stands on.

A critical section takes the lock, looks whether the files are still the ones it knows, catches up with other writers,
mends what a crash has left, and writes down what it found; then the operation runs. A shared section does the same in
memory and changes nothing on the disk.

What a crash leaves at each step of catching up: a newline more at the end of a whole line, an unacknowledged tail less,
a line in the marker that the state does not count, a state that counts it. Each is a rollout that the next section
catches up with in the same way, so a second recovery changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tokenstore.config import MAX_ENTRY_BYTES
from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.disk import Access
from tokenstore.journal.held import HeldFiles
from tokenstore.journal.index import Index
from tokenstore.journal.lifecycle import State
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.journal.reading import contents_of
from tokenstore.journal.recovery import Found, LineReader
from tokenstore.journal.root import Root, durable
from tokenstore.journal.syncs import Wish

logger = logging.getLogger("tokenstore")


class RolloutFiles(HeldFiles):
    """The files of one rollout and what is known of them. One critical section at a time, also between threads."""

    def __init__(self, root: Root, rollout_id: str) -> None:
        super().__init__(root, rollout_id)
        self.index = Index(State())
        # What another process was allowed to write is read, whatever this one may write.
        longest = max(root.config.max_entry_bytes, MAX_ENTRY_BYTES)
        self.lines = LineReader(self.tokens.read, rollout_id, self.names.tokens, longest)
        self._outdated = False
        self._unguarded = False
        # Another actor's prompts may be cached from before the rollout was removed and made anew by another process,
        # unless the file is just as that actor left it.
        self._provisional = True

    # ------------------------------------------------------------------------------------------ sections

    @contextmanager
    def exclusive(self, *, for_removal: bool = False, create_lock: bool = True) -> Iterator[Index]:
        """Run a critical section.

        Args:
            create_lock: Whether a rollout without a lock file gets one; else such a rollout counts as busy.
            for_removal: Whether the operation removes the rollout: then leftovers and what cannot be read are its own.

        Raises:
            LockBusyError: Somebody else holds the lock.
            DurabilityError: The disk failed while catching up; nothing was concluded from it.
            CorruptRolloutError: There is something that recovery must not touch.
        """
        self._enter("create" if create_lock else "write")
        try:
            if not self.lock.is_open:
                raise LockBusyError
            self._prepare(for_removal=for_removal)
            yield self.index
        finally:
            if for_removal and self.statefile.state.retired:
                self._forget()
            self._leave()

    @contextmanager
    def shared(self) -> Iterator[Index]:
        """Look without changing anything; takes the lock only if its file is there.

        Raises:
            LockBusyError: Somebody else holds the lock.
            CorruptRolloutError: There is something that this library cannot read.
        """
        self._enter("read")
        try:
            self._catch_up("read")
            yield self.index
        finally:
            self._leave()

    @contextmanager
    def fenced(self) -> Iterator[State]:
        """Run a critical section of a removal that has put its fence up: it rests on the state and nothing else.

        Raises:
            LockBusyError: Somebody else holds the lock.
            DurabilityError: The disk failed.
            CorruptRolloutError: Something else is at the place of the fence.
        """
        self._enter("create")
        try:
            if not self.statefile.refresh():
                self._outdated = True
            yield self.statefile.state
        finally:
            self._forget()
            self._leave()

    def _prepare(self, *, for_removal: bool) -> None:
        try:
            self._catch_up("write", for_removal=for_removal)
            self._record_news()
        except CorruptRolloutError:
            if not for_removal:
                raise
            self.index = Index(self.statefile.state)
        if not for_removal and self.index.state.retired and self.has_records():
            self.root.finish(self.removing_records())

    # ------------------------------------------------------------------------------------------ catching up

    def _catch_up(self, access: Access, *, for_removal: bool = False) -> None:
        if self._unguarded and self.lock.is_open:
            # Whoever made the lock file meanwhile may have cut off again what was seen without one.
            for file in (self.tokens, self.intents, self.marker):
                file.forget()
        self._unguarded = not self.lock.is_open
        # What has changed stays noted until the index is made anew, also if looking at the next file fails.
        if not self.statefile.refresh():
            self._outdated = True
        if for_removal and self.statefile.state.retired:
            # Nothing else is asked of a fence. What is behind it counts as outdated until somebody looks at it.
            self.index, self._outdated = Index(self.statefile.state), True
            return
        sealed = self.statefile.state.frozen and self.statefile.state.indexed_size is not None
        passed_over = for_removal and sealed
        if not passed_over:
            self._catch_up_with_file(access)
        self.marker.catch_up(access)
        if self._outdated:
            self.tokens.extend(0)
            self.index = Index(self.statefile.state, self._marks())
            self._outdated, self._provisional = False, self._provisional and passed_over
        state = self.index.state
        if state.retired:
            return
        if not state.frozen:
            self._catch_up_lines(mend=access == "write")
        elif state.indexed_size is None:
            self._catch_up_lines(mend=False)
        else:
            self.tokens.extend(min(state.indexed_size, self.tokens.end))
        self.index.add_marks(self._marks())

    def _catch_up_with_file(self, access: Access) -> None:
        """Begin anew if the lines are not the known ones, and with cached prompts too, if those are not its own."""
        same = self.tokens.refresh(access)
        if same and not self._provisional:
            return
        self._outdated = True
        left = self.root.prompts.left(self.rollout_id)
        if not same or left is None or left != self.tokens.found():
            self.root.prompts.forget(self.rollout_id)

    def _marks(self) -> list[str]:
        """The marker's calls; lines that name none count as one blank mark."""
        return [*self.marker.ids, *([""] if self.marker.invalid else [])]

    def _catch_up_lines(self, *, mend: bool) -> None:
        if not self.index.scanned == self.tokens.end == self.tokens.size:
            self._scan_lines(mend=mend)
        if self.index.doubles:
            self._judge_doubles()

    def _scan_lines(self, *, mend: bool) -> None:
        index = self.index
        if index.scanned > self.tokens.end:
            index.restart()
        for found in self.lines.find(index.scanned, self.tokens.end):
            if not found.terminated and not self._accept_tail(found, mend=mend):
                break
            index.fold(found)
        if mend and index.scanned == self.tokens.end - 1:
            index.scanned = self.tokens.end
        self.tokens.extend(index.scanned)
        index.finish_scan(unwritten=int(self._provisional))

    def _accept_tail(self, found: Found, *, mend: bool) -> bool:
        """Decide about an unterminated last line; true if it counts as a line."""
        if not mend:
            # A reader takes an acknowledged line that lost its newline, and forgets afterwards where it ended.
            self._provisional = self.index.expects(found)
            return self._provisional
        if found.head is not None:
            self.tokens.complete_line()
            return True
        cut = self.tokens.end - self.index.scanned
        logger.warning("%s: %d unterminated bytes at its end were cut off", self.names.tokens, cut)
        self.tokens.cut(self.index.scanned)
        return False

    def _judge_doubles(self) -> None:
        """Tell calls written twice with the same content, which is harmless, from conflicts."""
        contents = contents_of(self.lines, self.index.scanned, set(self.index.doubles))
        self.index.add_conflicts(call_id for call_id, found in contents.items() if len(found) > 1)
        self.index.doubles.clear()

    def _record_news(self) -> None:
        """Write down what catching up has found, before anything is acknowledged."""
        if self.index.has_news and not self.index.state.retired:
            if self.index.new_conflicts:
                self.marker.add(self.index.new_conflicts)
            self.write_state(self.index.current())

    # ------------------------------------------------------------------------------------------ for operations

    def write_state(self, state: State) -> None:
        """Make facts durable, after the lines that the state covers and the marks that it counts."""
        self.tokens.settle()
        self.marker.settle()
        self.statefile.write(state)
        # From here on the file says so, even if its name cannot be synced: what comes next must be ruled by it.
        self.index.written(self.statefile.state)
        self.statefile.settle()

    def mark(self, call_id: str, *, conflict: bool = False) -> None:
        """Record durably that a call was lost or conflicts, the marker first; a call is marked once."""
        index = self.index
        if call_id not in (index.state.marked or ()):
            self.marker.add([call_id])
            index.add_marks(self._marks())
        if conflict:
            index.add_conflicts([call_id])
        if index.has_news:
            self.write_state(index.current())

    def settle(self) -> None:
        """Make everything that was found durable: rule 3 of the contract's durability rules."""
        self.tokens.settle()
        self.intents.settle()
        self.marker.settle()
        self.statefile.settle()

    def content_of(self, call_id: str) -> bytes | None:
        """The content digest of the entry in the file, None if its prompt's base is lost."""
        if call_id not in self.index.contents:
            found = contents_of(self.lines, self.index.scanned, {call_id}, self.index.calls)
            if not found.get(call_id):
                return None
            self.index.contents[call_id] = found[call_id][0]
        return self.index.contents[call_id]

    def lost_calls(self) -> list[str]:
        """Calls with an intent and neither entry nor refusal, and lines of the intents that name no call."""
        index = self.index
        answered = {record.model_call_id for record in index.state.refusals} | index.calls.keys()
        return [call_id for call_id in self.intents.ids if call_id not in answered] + list(self.intents.invalid)

    def removing_records(self) -> Iterator[Wish]:
        """Remove lines, intents and marker behind a fence that is surely durable, and make that durable."""
        yield from self.statefile.settling()
        self.unlink_records()
        yield from self.root.syncing()

    def unlink_records(self) -> None:
        """Remove lines, intents and marker; durable only after a directory sync."""
        with self.root.turn.away():
            for name in self.names.records:
                with durable("removal", name):
                    self.root.directory.unlink(name)
            self._forget_records()
        self.root.prompts.forget(self.rollout_id)
        self.index = Index(self.statefile.state)

    def unlink_fence(self) -> None:
        """Remove the state file; durable only after a directory sync."""
        self.statefile.unlink()
        self.index = Index(State())
