"""A file of model call ids, one a line: the intents, or the marker."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tokenstore.ids import recordable_call_id
from tokenstore.journal.disk import Access
from tokenstore.journal.logfile import CHUNK, LogFile
from tokenstore.journal.root import Root

logger = logging.getLogger("tokenstore")
_SHOWN = 64


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
        data = b"".join(self.read(offset, CHUNK) for offset in range(self.size, self.end, CHUNK))
        whole, newline, tail = data.rpartition(b"\n")
        if newline:
            self._take(whole.split(b"\n"))
        self.extend(self.end - len(tail))
        if tail and access == "write":
            logger.warning("%s: %d unterminated bytes at its end were cut off", self.name, len(tail))
            self.cut(self.size)

    def add(self, ids: Iterable[str]) -> None:
        """Record ids durably, one line each."""
        fresh = list(ids)
        self.append("".join(f"{call_id}\n" for call_id in fresh).encode())
        self.ids.update(dict.fromkeys(fresh))

    def forget(self) -> None:
        """Let go of all that was known, because the file was removed."""
        super().forget()
        self.ids.clear()
        self.invalid.clear()

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            if recordable_call_id(text) == text and "\ufffd" not in text:
                self.ids[text] = None
            else:
                self.invalid[ascii(text[:_SHOWN])[1:-1]] = None
