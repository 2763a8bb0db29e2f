"""The state file: one JSON object, replaced atomically, its descriptor kept so that its identity is sure.

A crash at any step of a replace leaves the old state or the new one, since the temporary file is synced before it is
moved. What the bytes mean is decided by `parse_state`; it never raises, since a state that cannot be understood is a
fact about the rollout (`state_lost`), not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from tokenstore.codec import dumps, loads
from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.disk import File, FileStat
from tokenstore.journal.layout import TEMPORARY_PREFIX
from tokenstore.journal.lifecycle import State
from tokenstore.journal.logfile import write_all
from tokenstore.journal.root import Root, durable, let_go
from tokenstore.journal.syncs import Wish
from tokenstore.records import RefusalRecord

OUR_KEY = "tokenstore"
_OUR_LISTS = ("marked", "conflicts", "damage", "verdict")
_CHUNK = 1024 * 1024
_COUNTS = 2**63
"""Versions and sizes lie below this."""
MAX_STATE_BYTES = 32 * 1024 * 1024
"""The digests of three hundred thousand calls. What is larger no store wrote, and it is not read into memory."""
REMEMBERED_BYTES = 1024
"""Bytes of a state up to which they are kept, so that who finds them again need not parse them: those of a fence."""
_FIELDS = ("frozen", "retired", "incomplete", "snapshot_id", "version", "entry_digests", "indexed_size", "refusals")


def parse_state(data: bytes) -> State:
    """Understand the bytes of a state file, whoever wrote it.

    Bytes that are no JSON object give an open state with the damage `state_lost`; so does a known key with a value of
    the wrong kind, which is then left out.
    """
    try:
        value = loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return State(incomplete=True, damage=("state_lost",))
    # What cannot be written again, such as half a surrogate pair, would make every later write of this state fail.
    writable = _is_writable(value)
    kept = value if writable else {name: item for name, item in value.items() if _is_writable({name: item})}
    ours = kept.get(OUR_KEY, {})
    state, intact = _build(kept, ours if isinstance(ours, dict) else {}, _unknown(kept, ours))
    if intact and isinstance(ours, dict) and len(kept) == len(value):
        return state
    return attrs.evolve(state, incomplete=True, damage=tuple(dict.fromkeys([*state.damage, "state_lost"])))


def _unknown(value: dict[str, Any], ours: Any) -> dict[str, Any]:
    """What other writers, or a later version of this one under our key, have left in the file."""
    unknown = {name: item for name, item in value.items() if name not in _FIELDS and name != OUR_KEY}
    later = {name: item for name, item in ours.items() if name not in _OUR_LISTS} if isinstance(ours, dict) else {}
    return {**unknown, OUR_KEY: later} if later else unknown


def _build(known: dict[str, Any], ours: dict[str, Any], unknown: dict[str, Any]) -> tuple[State, bool]:
    """Take the values of the right kind, and tell whether all were."""
    fields: dict[str, Any] = {"unknown": unknown}
    intact = True
    for name, kind in (("frozen", bool), ("retired", bool), ("incomplete", bool), ("snapshot_id", str)):
        if isinstance(known.get(name, kind()), kind):
            fields[name] = known.get(name, kind())
        else:
            intact = False
    if _is_count(known.get("version", 0)):
        fields["version"] = known.get("version", 0)
    else:
        intact = False
    for name, is_right in (("indexed_size", _is_count), ("entry_digests", _is_digests)):
        intact = intact and (name not in known or is_right(known[name]))
    indexed = _is_count(known.get("indexed_size")) and _is_digests(known.get("entry_digests"))
    fields["indexed_size"] = known["indexed_size"] if indexed else None
    fields["entry_digests"] = known["entry_digests"] if indexed else {}
    refusals = _refusals(known.get("refusals", []))
    fields["refusals"] = refusals or ()
    fields["marked"] = _texts(ours.get("marked"))
    fields["conflicts"] = _texts(ours.get("conflicts")) or ()
    fields["damage"] = _texts(ours.get("damage")) or ()
    fields["verdict"] = _texts(ours.get("verdict"))
    lists = [ours[name] for name in _OUR_LISTS if name in ours]
    return State(**fields), intact and refusals is not None and None not in map(_texts, lists)


def _is_writable(value: object) -> bool:
    try:
        dumps(value)
    except (ValueError, OverflowError):
        return False
    return True


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _COUNTS


def _is_digests(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values())


def _texts(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        return None
    return tuple(value)


def _refusals(value: object) -> tuple[RefusalRecord, ...] | None:
    if not isinstance(value, list):
        return None
    try:
        return tuple(RefusalRecord(**record) for record in value)
    except (TypeError, ValueError):
        return None


def render_state(state: State) -> bytes:
    """Write a state as the bytes of its file."""
    ours = {"marked": list(state.marked or ()), "conflicts": list(state.conflicts), "damage": list(state.damage)}
    if state.verdict is not None:
        ours["verdict"] = list(state.verdict)
    value = {
        **state.unknown,
        **{name: getattr(state, name) for name in _FIELDS},
        "refusals": [attrs.asdict(record) for record in state.refusals],
        OUR_KEY: {**state.unknown.get(OUR_KEY, {}), **ours},
    }
    return dumps(value) + b"\n"


def _smaller(state: State) -> State:
    """The state without what may be left out: an open one needs no index, a fence no reasons, but a seal everything."""
    if state.retired:
        return state.bare()
    return state if state.frozen else state.without_index()


def _rendered(name: str, state: State) -> tuple[State, bytes]:
    """The bytes of a state that are not more than is read back, and the state that they hold."""
    data = render_state(state)
    if len(data) > MAX_STATE_BYTES:
        state = _smaller(state)
        data = render_state(state)
    if len(data) > MAX_STATE_BYTES:
        problem = f"would take {len(data)} bytes, a state may take {MAX_STATE_BYTES}; nothing was changed"
        raise CorruptRolloutError(name, f"{problem}: read the rollout with `entries`, then retire or delete it")
    return state, data


class StateFile:
    """The state of one rollout, read again whenever the file may be another one. Used under the rollout's lock."""

    def __init__(self, root: Root, name: str) -> None:
        self.name = name
        self.state = State()
        self._root = root
        self._file: File | None = None
        self._seen: FileStat | None = None
        self._data = b""
        self._synced = False
        self.named = False

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is kept."""
        return self._file is not None

    @property
    def exists(self) -> bool:
        """Whether the file was there when it was last looked at or written."""
        return self._seen is not None

    def refresh(self) -> bool:
        """Read the file again if it is not, for sure, the one last read or written.

        Returns:
            True if the facts are still the ones they were.
        """
        with durable("look-up", self.name):
            now = self._root.directory.stat(self.name)
        if now == self._seen and (now is None or self._file is not None):
            return True
        before, seen = self.state, self._seen
        self._load()
        same = self.state == before
        if not same or seen != self._seen:
            self._synced = self.named = False
        return same

    def _load(self) -> None:
        """Read the file; if that fails, nothing new counts as seen, so that the next time it is read again."""
        self.release()
        with durable("read", self.name):
            try:
                file = self._root.directory.open(self.name, "read")
            except FileNotFoundError:
                self._seen, self.state, self._data = None, State(), b""
                return
            try:
                seen = file.stat()
                _check_size(self.name, seen.size)
                data = _read_all(file)
            except (OSError, CorruptRolloutError):
                let_go(file)
                raise
        if not data or data != self._data:
            self.state = parse_state(data)
        self._keep(file, seen, data)

    def _keep(self, file: File, seen: FileStat, data: bytes) -> None:
        self._file, self._seen = file, seen
        self._data = data if len(data) <= REMEMBERED_BYTES else b""

    def write(self, state: State) -> None:
        """Replace the file: temporary, fsync, rename. The name is durable only after a directory sync.

        What would be too large to be read back is written smaller, as `state` then says.

        Raises:
            CorruptRolloutError: It cannot be made small enough; nothing was written.
        """
        self._root.finish(self.writing(state))

    def writing(self, state: State) -> Iterator[Wish]:
        """Do as `write` does, in steps."""
        state, data = _rendered(self.name, state)
        with durable("write", self.name):
            with self._root.turn.away():
                temporary, file = self._root.directory.create_temporary(TEMPORARY_PREFIX)
            try:
                write_all(file, 0, data)
                yield from self._root.syncing_file(file)
                self._root.directory.replace(temporary, self.name)
                seen = file.stat()
            except OSError:
                let_go(file)
                self._discard(temporary)
                raise
        with self._root.turn.away():
            self.release()
        self.state = state
        self._keep(file, seen, data)
        self._synced, self.named = True, False

    def settle(self, *, sync_directory: bool = True) -> None:
        """Make what was found or written durable, unless this process has done so since it was another file.

        Args:
            sync_directory: False if the caller syncs the directory for many rollouts at once.
        """
        self._root.finish(self.settling(sync_directory=sync_directory))

    def settling(self, *, sync_directory: bool = True) -> Iterator[Wish]:
        """Do as `settle` does, in steps."""
        if self._file is None:
            return
        if not self._synced:
            with durable("sync", self.name):
                yield from self._root.syncing_file(self._file)
            self._synced = True
        if sync_directory and not self.named:
            yield from self._root.syncing()
            self.named = True

    def unlink(self) -> None:
        """Remove the file; its removal is durable only after a directory sync."""
        with self._root.turn.away(), durable("removal", self.name):
            self._root.directory.unlink(self.name)
            self.release()
        self._seen, self.state, self._data = None, State(), b""

    def release(self) -> None:
        """Close the descriptor; the next use reads the file again."""
        if self._file is not None:
            let_go(self._file)
            self._file = None

    def _discard(self, temporary: str) -> None:
        """Remove a temporary file that will not be moved; if even that fails, `repair` removes it later."""
        try:
            self._root.directory.unlink(temporary)
        except OSError:
            return


def _check_size(name: str, size: int) -> None:
    if size > MAX_STATE_BYTES:
        raise CorruptRolloutError(name, "is larger than any state can be; remove the file, or the rollout")


def _read_all(file: File) -> bytes:
    parts: list[bytes] = []
    offset = 0
    while part := file.read(offset, _CHUNK):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)
