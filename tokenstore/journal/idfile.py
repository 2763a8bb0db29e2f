"""A file of model call ids, one a line: the intents, or the marker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from tokenstore.ids import MAX_MODEL_CALL_ID, recordable_call_id
from tokenstore.journal.disk import Access
from tokenstore.journal.logfile import CHUNK, LogFile
from tokenstore.journal.root import Root
from tokenstore.journal.syncs import Wish

logger = logging.getLogger("tokenstore")
_SHOWN = 64
_LONGEST = 4 * MAX_MODEL_CALL_ID + 1
"""Bytes kept of a line of many chunks: of one so long, whatever follows, it is sure that it is no call id."""


class IdFile(LogFile):
    """Ids that were recorded, in order, each once; a line that is no call id is kept apart, as a lost call."""

    def __init__(self, root: Root, name: str) -> None:
        super().__init__(root, name)
        self.ids: dict[str, None] = {}
        self.invalid: dict[str, None] = {}

    def catch_up(self, access: Access = "write") -> None:
        """Take the lines of others as known. An unterminated tail was never acknowledged: it is cut, or passed over."""
        if not self.refresh(access):
            self.ids.clear()
            self.invalid.clear()
        if self.size == self.end:
            return
        line, whole = b"", self.size
        for offset in range(self.size, self.end, CHUNK):
            part = self.read(offset, min(CHUNK, self.end - offset))
            whole = offset + part.rfind(b"\n") + 1 if b"\n" in part else whole
            *lines, line = (line + part).split(b"\n")
            self._take(dict.fromkeys(lines))
            line = line[:_LONGEST]
        self.extend(whole)
        if whole < self.end and access == "write":
            logger.warning("%s: %d unterminated bytes at its end were cut off", self.name, self.end - whole)
            self.cut(self.size)

    def add(self, ids: Iterable[str]) -> None:
        """Record ids durably, one line each."""
        self._root.finish(self.adding(ids))

    def adding(self, ids: Iterable[str]) -> Iterator[Wish]:
        """Do as `add` does, in steps."""
        fresh = list(ids)
        yield from self.appending("".join(f"{call_id}\n" for call_id in fresh).encode())
        self.ids.update(dict.fromkeys(fresh))

    def forget(self) -> None:
        """Let go of all that was known, because the file was removed."""
        super().forget()
        self.ids.clear()
        self.invalid.clear()

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            if recordable_call_id(text) == text and text.encode() == line:
                self.ids[text] = None
            else:
                self.invalid[ascii(text[:_SHOWN])[1:-1]] = None
