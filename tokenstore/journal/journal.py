"""One rollout's journal: what the actor calls, one method an operation, each in a worker thread.

1. A method that writes returns only when what it did, and what its answer rests on, is durable.
2. A method that raises `LockBusyError` has done nothing; the actor waits on the loop and calls again.
3. After a failed sync that could not be undone the journal is `poisoned`: every method raises, and the next actor
   begins with a new journal that trusts nothing it did not sync itself.
4. Readers change nothing, create nothing, repair nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any

import attrs

from tokenstore.errors import ConflictingEntryError, TokenStoreError
from tokenstore.journal.batch import Batch
from tokenstore.journal.cursor import Cursor
from tokenstore.journal.health import Finding, Health
from tokenstore.journal.index import Index
from tokenstore.journal.lifecycle import Event, Ruling, State, rule
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.journal.logfile import LogFile
from tokenstore.journal.removing import Removing
from tokenstore.journal.requests import Begin, Request
from tokenstore.journal.root import Root, durable
from tokenstore.journal.snapshots import Snapshots
from tokenstore.journal.syncs import Wish
from tokenstore.records import RefusalRecord, TokenCaptureSnapshot, TokenEntry

logger = logging.getLogger("tokenstore")

INDEX_AFTER = 64 * 1024
"""Bytes of lines not indexed from which a retiring actor writes the index: reading them again costs more."""
INDEX_ALWAYS_AFTER = 64 * 1024 * 1024
"""Bytes of lines not indexed from which a busy actor writes it, so that no restart has to read more."""


class Journal(Removing):
    """The operations on one rollout. Methods may be called from any thread, one at a time."""

    def __init__(self, root: Root, rollout_id: str) -> None:
        super().__init__(root, rollout_id)
        self._snapshots = Snapshots(self._files)
        self._wrote = False

    @property
    def settled(self) -> bool:
        """Whether a batch will, as far as is known, wait for nothing but one sync of its file."""
        return self._files.named

    # ------------------------------------------------------------------------------------------ writing

    def committing(self, requests: Sequence[Request]) -> Generator[Wish, None, None]:
        """Store a run of puts and begin_calls with one append and one sync a file; each request gets its own answer.

        Raises:
            DurabilityError: The disk failed; no request without an error of its own may be acknowledged.
        """
        known = self._root.prompts.known(self.rollout_id)
        for request in requests:
            request.prepare(self._root.config.max_entry_bytes, known)
        waiting = [request for request in requests if request.error is None]
        if not waiting:
            return
        with self._section() as index:
            if any(isinstance(request, Begin) for request in waiting):
                self._files.intents.catch_up()
            batch = Batch(self._files)
            for request in waiting:
                batch.add(request)
            yield from batch.writing()
            self._wrote = True
            self._root.counters.batches += 1
            self._root.counters.batch_sizes.observe(len(waiting))
            if self._unindexed(index) > INDEX_ALWAYS_AFTER:
                self._write_index()

    def refuse(self, call_id: str, code: str | None, created_at: float) -> None:
        """Record that the engine refused a call, which settles its intent."""
        with self._section() as index:
            ruling = rule(self._classify_refusal(index.state, call_id, code), index.state.status)
            if ruling is Ruling.RECORD:
                record = RefusalRecord(model_call_id=call_id, code=code, created_at=created_at)
                state = index.current()
                refusals = (*state.refusals, record)
                self._files.write_state(attrs.evolve(state, refusals=refusals, version=state.version + 1))
            elif ruling is Ruling.CONFLICT_MARK:
                self._files.mark(call_id, conflict=True)
                self._root.counters.conflicts += 1
            self._files.settle()
            if ruling is Ruling.CONFLICT_MARK:
                problem = "has an entry, so it was not refused; the rollout is now incomplete"
                raise ConflictingEntryError(self.rollout_id, call_id, problem)
            if ruling is Ruling.CONFLICT:
                raise ConflictingEntryError(self.rollout_id, call_id, "was refused before with another code")
            self._check_late(ruling)

    def _classify_refusal(self, state: State, call_id: str, code: str | None) -> Event:
        if call_id in self._files.index.calls:
            return Event.REFUSE_ANSWERED
        before = state.refusal_of(call_id)
        if before is None:
            return Event.REFUSE_NEW
        return Event.REFUSE_SAME if before.code == code else Event.REFUSE_OTHER

    def mark(self, call_id: str, *, only_if_open: bool = False) -> None:
        """Record that a call was lost; of a frozen rollout too, unless it is to be left alone."""
        with self._section() as index:
            ruling = rule(Event.MARK_IF_OPEN if only_if_open else Event.MARK, index.state.status)
            self._check_late(ruling)
            if ruling is Ruling.RECORD:
                self._files.mark(call_id)
            self._files.settle()

    # ------------------------------------------------------------------------------------------ consuming

    def freeze(self) -> TokenCaptureSnapshot:
        """Verify everything, then flip the state, so that a rollout is never frozen and unreadable."""
        with self._section() as index:
            ruling = rule(Event.FREEZE, index.state.status)
            self._check_late(ruling)
            self._files.intents.catch_up()
            self._files.settle()
            if (before := self._snapshots.delivered_before(index)) is not None:
                return before
            verified = self._snapshots.verify(index)
            if ruling is Ruling.RECORD:
                self._files.write_state(self._snapshots.sealed(index, verified))
            snapshot = self._snapshots.deliver(index, verified)
            if ruling is Ruling.RECORD:
                self._tell_frozen(snapshot)
            return snapshot

    def _tell_frozen(self, snapshot: TokenCaptureSnapshot) -> None:
        reasons = snapshot.incomplete_reasons
        self._root.counters.froze(reasons)
        told = {"event": "frozen", "rollout_id": self.rollout_id, "incomplete": snapshot.incomplete}
        counts = {"calls": len(snapshot.entries), "version": snapshot.version, "reasons": list(reasons)}
        complete = "incomplete" if snapshot.incomplete else "complete"
        logger.info("rollout %s is frozen, %s", self.rollout_id, complete, extra=told | counts)

    def peek(self) -> TokenCaptureSnapshot:
        """Give what freeze would, calls in flight apart, and change nothing."""
        with self._section(shared=True) as index:
            self._check_late(rule(Event.READ, index.state.status))
            self._files.intents.catch_up("read")
            return self._snapshots.look(index, self._snapshots.verify(index))

    def is_incomplete(self) -> bool:
        """Whether state or marker say that something was lost."""
        with self._section(shared=True) as index:
            marked = not index.state.retired and self._files.marker.is_open
            return index.state.incomplete or marked

    def open_cursor(self) -> Cursor:
        """Fix where a reading of the entries one by one ends."""
        with self._section(shared=True) as index:
            self._check_late(rule(Event.READ, index.state.status))
            return Cursor(self._files, index)

    def read_slice(self, cursor: Cursor) -> list[TokenEntry]:
        """Read on from a cursor; an empty list means the end.

        Raises:
            TokenCaptureRetiredError: The rollout was removed meanwhile, or removed and made anew.
        """
        with self._section(shared=True) as index:
            self._check_late(rule(Event.READ, index.state.status))
            return cursor.read_on(self._files, index)

    # ------------------------------------------------------------------------------------------ mending

    def examine(self) -> Finding:
        """Tell how the rollout is; changes nothing."""
        with self._section(shared=True) as index:
            records = self._files.has_records()
            if index.state.retired:
                return self._finding("retired", leftovers=("records",) if records else ())
            if not records and not self._files.statefile.exists:
                return self._finding_of_nothing()
            self._files.intents.catch_up("read")
            verified = self._snapshots.verify(index)
            snapshot = self._snapshots.look(index, verified)
            damaged = bool(index.current().damage or verified.reasons)
            return self._finding(
                "damaged" if damaged else "masked" if snapshot.incomplete else "whole",
                calls=len(snapshot.entries),
                reasons=snapshot.incomplete_reasons,
                leftovers=self._tails(index.state),
            )

    def _finding_of_nothing(self) -> Finding:
        lock = self._files.names.lock
        with durable("look-up", lock):
            if self._lock_may_go and self._root.directory.stat(lock) is not None:
                return self._finding("stale", file=lock)
        return self._finding("absent")

    def _tails(self, state: State) -> tuple[str, ...]:
        """The ends that lack their newline; nobody reads lines behind a seal."""
        files: dict[str, LogFile] = {} if state.frozen else {"unterminated": self._files.tokens}
        files |= {"unterminated_intents": self._files.intents, "unterminated_marker": self._files.marker}
        tails = {name: file.unterminated() for name, file in files.items()}
        return tuple(f"{name}:{offset}+{length}" for name, (offset, length) in tails.items() if length)

    def _finding(self, health: Health, **facts: Any) -> Finding:
        return Finding(health=health, rollout_id=self.rollout_id, **facts)

    @property
    def _lock_may_go(self) -> bool:
        """A reference process that waits on a lock file does not look afterwards whether it is still there."""
        return self._root.config.prompt_storage == "shared"

    def recover(self) -> None:
        """Do what the next writer would do first: mend tails, finish a removal, write down what was found.

        Of a rollout that is gone the lock file is removed, this one too if it was made just now.
        """
        with self._section():
            if self._files.statefile.exists or self._files.has_records():
                self._files.intents.catch_up()
                self._files.settle()
            elif self._lock_may_go:
                self._files.lock.unlink()

    # ------------------------------------------------------------------------------------------ idling

    def offer_index(self) -> None:
        """Write the index if enough is not indexed, so that nobody reads those lines again, and leave the rest known.

        Who has only read, and promised to change nothing, leaves it to a writer.
        """
        if not self._wrote or self.poisoned:
            return
        if self._unindexed(self._files.index) > INDEX_AFTER:
            # A rollout that another process has deleted must not get its lock file back.
            with suppress(LockBusyError, TokenStoreError, OSError), self._section(create_lock=False) as index:
                if self._unindexed(index) > INDEX_AFTER:
                    self._write_index()
        self._files.leave()

    def _unindexed(self, index: Index) -> int:
        if index.state.status != "open" or index.state.indexed_size is None:
            return 0
        return self._files.tokens.size - index.state.indexed_size

    def _write_index(self) -> None:
        """Replace the state by one that covers all lines. It is only an index: its name may be lost in a crash."""
        with suppress(TokenStoreError):
            self._files.tokens.settle()
            self._files.statefile.write(self._files.index.current())
            self._files.index.written(self._files.statefile.state)
