"""What is in a directory, seen without locks: for people and tools, a moment old at worst."""

from __future__ import annotations

from collections.abc import Iterator

from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.disk import Directory, FileStat
from tokenstore.journal.layout import Names, rollout_of
from tokenstore.journal.lifecycle import State
from tokenstore.journal.logfile import CHUNK
from tokenstore.journal.statefile import MAX_STATE_BYTES, parse_state
from tokenstore.records import RolloutStatus


def list_rollouts(directory: Directory) -> Iterator[RolloutStatus]:
    """Give each rollout of a directory once, in no order; memory does not grow with their number."""
    now = directory.clock_ns()
    for name in directory.names():
        rollout_id = rollout_of(name)
        if rollout_id is not None:
            status = _status(directory, rollout_id, name, now)
            if status is not None:
                yield status


def _status(directory: Directory, rollout_id: str, name: str, now: int) -> RolloutStatus | None:
    """Look at a rollout, if the name is the first of its files that is there: each rollout is seen once."""
    names = Names.of(rollout_id)
    stats = {evidence: directory.stat(evidence) for evidence in names.evidence}
    there = {evidence: info for evidence, info in stats.items() if info is not None}
    if next(iter(there), None) != name:
        return None
    state = State()
    if names.state in there:
        readable = there[names.state].size <= MAX_STATE_BYTES
        state = parse_state(_read(directory, names.state, 0) if readable else b"")
    return RolloutStatus(
        rollout_id=rollout_id,
        state=state.status,
        incomplete=state.incomplete or names.marker in there,
        calls=len(state.entry_digests) + _lines_behind(directory, names.tokens, state),
        bytes=there[names.tokens].size if names.tokens in there else 0,
        age=_age(there, now),
    )


def _age(there: dict[str, FileStat], now: int) -> float:
    return max(0.0, (now - max(info.mtime_ns for info in there.values())) / 1e9)


def _lines_behind(directory: Directory, name: str, state: State) -> int:
    """Count the lines that the state does not cover."""
    if state.status != "open" and state.indexed_size is not None:
        return 0
    return _read(directory, name, state.indexed_size or 0, count=True).count(b"\n")


def _read(directory: Directory, name: str, offset: int, *, count: bool = False) -> bytes:
    """Read a file from an offset to its end; of many lines keep only the newlines."""
    parts: list[bytes] = []
    try:
        file = directory.open(name, "read")
    except (OSError, CorruptRolloutError):
        return b""  # gone meanwhile, unreadable or planted: that must not end the listing of the others
    try:
        while part := file.read(offset, CHUNK):
            parts.append(b"\n" * part.count(b"\n") if count else part)
            offset += len(part)
    finally:
        file.close()
    return b"".join(parts)
