"""What is known of a rollout between two critical sections: the state file's facts, and all that is newer.

Pure memory. `state` is what the state file holds; what was found since waits beside it until it is written, so that a
reader, who writes nothing, and a writer come to the same facts and the same version.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tokenstore.journal.damage import damaged, news, note
from tokenstore.journal.lifecycle import State, with_damage, with_marks
from tokenstore.journal.recovery import Found


class Index:
    """Calls, facts and version of one rollout.

    Args:
        state: What the state file holds.
        marker_ids: The lines of the marker, needed where a state does not say which it has counted.
    """

    def __init__(self, state: State, marker_ids: Iterable[str] = ()) -> None:
        if state.marked is None:
            state = attrs.evolve(state, marked=tuple(marker_ids) if state.incomplete else ())
        self.state = state
        self.calls: dict[str, str] = dict(state.entry_digests)
        self.contents: dict[str, bytes] = {}
        self.scanned = state.indexed_size or 0
        self.doubles: list[str] = []
        self._fresh = 0
        self._marks: list[str] = []
        self._conflicts: list[str] = []
        self._damage: list[str] = []

    @property
    def has_news(self) -> bool:
        """Whether there are facts that the state file must hold before anything is acknowledged."""
        return bool(self._marks or self._conflicts or self._damage) or self.state.indexed_size is None

    @property
    def new_conflicts(self) -> list[str]:
        """Conflicting calls whose mark is not in the marker yet."""
        return [call_id for call_id in self._conflicts if call_id not in (self.state.marked or ())]

    def restart(self) -> None:
        """Forget the lines, because some that the state covers are gone, and expect all to be read again."""
        self.calls.clear()
        self.scanned = self._fresh = 0

    def expects(self, found: Found) -> bool:
        """Whether the state covers just this line."""
        return found.head is not None and self.state.entry_digests.get(found.head.model_call_id) == found.digest

    def fold(self, found: Found) -> None:
        """Take the next line of the file into account."""
        note(self._damage, found.damage)
        self.scanned = found.end
        if found.head is None:
            return
        call_id, base, digest = found.head.model_call_id, found.head.base_id, found.digest
        covered = self.state.entry_digests.get(call_id)
        if base is not None and base not in self.calls:
            note(self._damage, [f"lost_base:{call_id}"])
        elif call_id in self.calls:
            if self.calls[call_id] != digest:
                self.doubles.append(call_id)
        elif covered is not None and covered != digest:
            note(self._damage, [damaged(found.offset, found.end - found.offset)])
        else:
            self.add_call(call_id, digest)

    def add_call(self, call_id: str, digest: str) -> None:
        """Count a call whose line is in the file."""
        self.calls[call_id] = digest
        if self.state.indexed_size is not None and call_id not in self.state.entry_digests:
            self._fresh += 1

    def finish_scan(self, unwritten: int = 0) -> None:
        """Notice that bytes which the state covers are gone, but for a newline that the next writer will put back."""
        if self.state.indexed_size is not None and self.scanned + unwritten < self.state.indexed_size:
            note(self._damage, [damaged(self.scanned, self.state.indexed_size - self.scanned)])

    def add_conflicts(self, call_ids: Iterable[str]) -> None:
        """Note calls that were found twice with different content."""
        self._conflicts.extend(call_id for call_id in call_ids if call_id not in self.state.conflicts)

    def add_damage(self, reasons: Iterable[str]) -> None:
        """Note what reading the lines has found."""
        self._damage += news([*self.state.damage, *self._damage], reasons)

    def add_marks(self, marker_ids: Iterable[str]) -> None:
        """Note the marker's lines that are not counted yet."""
        marked = set(self.state.marked or ())
        self._marks = [call_id for call_id in marker_ids if call_id not in marked]

    def current(self) -> State:
        """The state as it would be written now, everything found taken in."""
        state = self.state
        if not state.retired and not (state.frozen and state.indexed_size is not None):
            state = attrs.evolve(
                state,
                version=state.version + self._fresh,
                entry_digests=dict(self.calls),
                indexed_size=self.scanned,
            )
        if self._damage:
            state = with_damage(state, self._damage)
        if self._marks:
            state = with_marks(state, self._marks)
        if self._conflicts:
            state = with_marks(state, self._conflicts, conflict=True)
        return state

    def written(self, state: State) -> None:
        """Note that the state file now holds a state made of `current()`."""
        self.state = state
        if state.status == "open" and not state.indexed_size:
            self._fresh = len(self.calls)  # it was written without its index, and does not count them
        else:
            self.calls = dict(state.entry_digests)
            self._fresh = 0
        self._marks, self._conflicts, self._damage = [], [], []
