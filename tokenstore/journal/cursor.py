"""Reading a rollout's entries one by one, in slices, with neither lock nor descriptor held between them."""

from __future__ import annotations

import hashlib

from tokenstore.codec import PromptReader, StoredLine
from tokenstore.errors import TokenCaptureRetiredError
from tokenstore.journal.files import RolloutFiles
from tokenstore.journal.index import Index
from tokenstore.journal.reading import HELD_TOKENS, whole_entries
from tokenstore.records import TokenEntry

SLICE_BYTES = 1024 * 1024
"""Bytes of lines read in one slice, at least one line."""


class Cursor:
    """Where a reading has come to, and where it will end."""

    def __init__(self, files: RolloutFiles, index: Index) -> None:
        self._position = 0
        self._end = files.tokens.size
        self._calls = dict(index.calls)
        self._waiting = dict(index.calls)
        self._identity = files.tokens.identity
        self._last_line: tuple[int, int, bytes] | None = None
        self._files = files
        self._prompts = PromptReader(self._line_at, HELD_TOKENS)

    def read_on(self, files: RolloutFiles, index: Index) -> list[TokenEntry]:
        """Read the next slice; an empty list means the end.

        Args:
            files: The rollout's files, under their lock; they may be other objects than at the last slice.
            index: What is known of them.

        Raises:
            TokenCaptureRetiredError: The file is not the one that the reading began with.
        """
        self._files = files
        self._check(index)
        entries: list[TokenEntry] = []
        start = self._position
        for found, entry in whole_entries(files.lines, start, self._end, self._prompts):
            self._position = found.end
            if found.head is not None:  # of damage only the length is known
                self._last_line = found.offset, found.end, hashlib.sha256(found.payload).digest()
            if entry is not None and self._waiting.get(entry.model_call_id) == found.digest:
                del self._waiting[entry.model_call_id]
                entries.append(entry)
            if entries and found.end - start >= SLICE_BYTES:
                break
        return entries

    def _line_at(self, offset: int) -> StoredLine:
        return self._files.lines.decode_at(offset)

    def _check(self, index: Index) -> None:
        # A file made anew may have the old one's number and begin with the same lines: every call that the reading
        # began with must still be there, as it was.
        same = self._files.tokens.identity == self._identity and self._files.tokens.end >= self._end
        same = same and self._calls.items() <= index.calls.items()
        if same and self._last_line is not None:
            offset, end, digest = self._last_line
            line = self._files.tokens.read(offset, end - offset).rstrip(b"\n")
            same = hashlib.sha256(line).digest() == digest
        if not same and self._end:
            raise TokenCaptureRetiredError(self._files.rollout_id)
