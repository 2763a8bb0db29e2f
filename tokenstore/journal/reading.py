"""Reading a rollout's lines as whole entries: for snapshots, for comparison, and a slice at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import attrs

from tokenstore.codec import PromptReader, StoredLine, content_digest
from tokenstore.journal.damage import damaged, note
from tokenstore.journal.recovery import Found, LineReader
from tokenstore.records import TokenEntry

HELD_TOKENS = 4 * 131_072
"""Prompt ids of earlier entries held for later prompts: a few of the longest contexts."""
_ALL = sys.maxsize


def whole_entries(
    lines: LineReader, start: int, end: int, prompts: PromptReader
) -> Iterator[tuple[Found, TokenEntry | None]]:
    """Give what each line is, and its entry with its whole prompt, in file order; None where there is none."""
    for found, line in lines.read_whole(start, end):
        yield found, prompts.whole(line, found.offset) if line else None


def contents_of(
    lines: LineReader, end: int, call_ids: set[str], digests: Mapping[str, str] | None = None
) -> dict[str, list[bytes]]:
    """The different content digests of some calls, in file order.

    Args:
        lines: The file's lines.
        end: Where to stop.
        call_ids: The calls.
        digests: If given, only the lines with these digests count.
    """
    contents: dict[str, list[bytes]] = {call_id: [] for call_id in call_ids}
    for found, entry in whole_entries(lines, 0, end, PromptReader(lines.decode_at, HELD_TOKENS)):
        if entry is None or entry.model_call_id not in contents:
            continue
        if digests is None or digests[entry.model_call_id] == found.digest:
            content = content_digest(entry)
            if content not in contents[entry.model_call_id]:
                contents[entry.model_call_id].append(content)
    return contents


def _all_read(lines: LineReader, end: int) -> list[tuple[Found, str, StoredLine | None]]:
    """Read all lines, with the digest of each in place of its bytes, before the first prompt is built.

    Reading makes many small objects, which sets off garbage collections; each would look at every id of every prompt
    that is there already, which takes a third of the whole.
    """
    return [(attrs.evolve(found, payload=b""), found.digest, line) for found, line in lines.read_whole(0, end)]


@attrs.frozen
class Verified:
    """What a full reading of a rollout has given."""

    entries: tuple[TokenEntry, ...]
    """The entries that may be delivered, in file order."""
    digests: dict[str, str]
    """sha256 of their lines, by call id."""
    reasons: tuple[str, ...]
    """What is damaged, changed or lost."""


def verify(lines: LineReader, end: int, calls: Mapping[str, str]) -> Verified:
    """Read and verify every line.

    Args:
        lines: The file's lines.
        end: Where the known lines end.
        calls: The lines that count, as sha256 by call id; whatever else is in the file is left out.
    """
    entries: dict[str, TokenEntry] = {}
    reasons: list[str] = []
    changed: dict[str, str] = {}
    prompts = PromptReader(lines.decode_at, _ALL)
    for found, digest, line in _all_read(lines, end):
        entry = prompts.whole(line, found.offset) if line else None
        note(reasons, found.damage)
        if found.head is None:
            continue
        call_id = found.head.model_call_id
        if call_id in entries or call_id not in calls:
            continue
        if calls[call_id] != digest:
            changed.setdefault(call_id, damaged(found.offset, found.end - found.offset))
        elif entry is None:
            changed[call_id] = f"lost_base:{call_id}" if found.head.base_id else f"unacceptable:{found.offset}"
        else:
            entries[call_id] = entry
    missing = [call_id for call_id in calls if call_id not in entries]
    reasons.extend(changed.get(call_id, f"lost_call:{call_id}") for call_id in missing)
    digests = {call_id: calls[call_id] for call_id in entries}
    return Verified(tuple(entries.values()), digests, tuple(reasons))
