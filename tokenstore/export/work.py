"""The files of an export that is not finished: parts, and a log that says which of them are whole.

For `data.parquet` there are, in the same directory, `.data.parquet.progress`, `.data.parquet.part-000000` and so on,
and at the end for a moment `.data.parquet.whole`. The log begins with what is being exported; then each line names a
part and the rollouts in it.

1. A part counts once its line is in the log: the part and its name are synced before the line is written.
2. The whole is put together beside its name, synced, renamed, and the directory synced. Only then parts are removed.
3. Killed anywhere, the next run finds whole parts or the whole; a part without a whole line is made anew.
4. Two exports to one name never run at once: the log is locked.
5. A log of another export (other rollouts asked for, another format) is begun anew.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from tokenstore.codec import dumps, loads
from tokenstore.errors import TokenStoreError
from tokenstore.journal.disk import Directory, File

Stamp = tuple[Any, ...]
"""What a rollout was when it was exported; if it is the same, so is what would be exported now."""


class ExportBusyError(TokenStoreError):
    """Another export to the same file is running. Wait for it, or choose another name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name}: another export to this file is running")


@attrs.frozen
class Part:
    """A whole part."""

    number: int
    rollouts: Mapping[str, Stamp]
    rows: int


class Work:
    """What there is of an export. Blocking: use it in worker threads, and close it.

    Args:
        directory: Where the export will be; closed with the work.
        name: The name of its file there.
        plan: What is exported, a JSON object.

    Raises:
        ExportBusyError: Another export to this file is running.
        OSError: The directory cannot be written.
    """

    def __init__(self, directory: Directory, name: str, plan: Mapping[str, Any]) -> None:
        self.parts: list[Part] = []
        self._directory = directory
        self._name = name
        self._log = _locked(directory, self._hidden("progress"), name)
        try:
            self._end, self._next = self._recover(plan)
        except BaseException:
            self._log.close()
            raise

    def close(self) -> None:
        """Let go of everything; what is there stays."""
        self._log.close()
        self._directory.close()

    def keep(self, now: Mapping[str, Stamp]) -> None:
        """Give up the parts that hold a rollout that is not what it was, or not asked for any more."""
        for part in [
            part for part in self.parts if any(now.get(name) != stamp for name, stamp in part.rollouts.items())
        ]:
            self.parts.remove(part)
            self._note({"dropped": part.number})
            self._directory.unlink(self._part(part.number))

    def add(self, rollouts: Mapping[str, Stamp], rows: int, write: Callable[[io.BufferedIOBase], None]) -> None:
        """Write a part, durably."""
        part = Part(self._next, rollouts, rows)
        self._write(self._part(part.number), write)
        self._directory.sync()
        self._note(
            {"part": part.number, "rollouts": [[name, *stamp] for name, stamp in rollouts.items()], "rows": rows}
        )
        self.parts.append(part)
        self._next += 1

    def finish(self, merge: Callable[[Sequence[Callable[[], io.BufferedIOBase]], io.BufferedIOBase], None]) -> int:
        """Put the parts together under the name that was asked for, and return the size of the file in bytes."""
        self.parts.sort(key=lambda part: min(part.rollouts, default=""))  # parts made again stand last
        openers = [self._opener(part.number) for part in self.parts]
        size = self._write(self._hidden("whole"), lambda file: merge(openers, file))
        self._directory.replace(self._hidden("whole"), self._name)
        self._directory.sync()
        self._remove_parts()
        self._directory.unlink(self._hidden("progress"))
        self._directory.sync()
        return size

    def _remove_parts(self) -> None:
        ours = re.compile(re.escape(self._hidden("part-")) + r"\d{6,}")
        for name in [name for name in self._directory.names() if ours.fullmatch(name)]:
            self._directory.unlink(name)

    def _hidden(self, what: str) -> str:
        return f".{self._name}.{what}"

    def _part(self, number: int) -> str:
        return self._hidden(f"part-{number:06d}")

    def _opener(self, number: int) -> Callable[[], io.BufferedIOBase]:
        name = self._part(number)
        return lambda: io.BufferedReader(_Stream(self._directory.open(name, "read")))

    def _write(self, name: str, write: Callable[[io.BufferedIOBase], None]) -> int:
        """Write a file anew and sync it."""
        file = self._directory.open(name, "create")
        try:
            file.truncate(0)
            with io.BufferedWriter(_Stream(file, keep=True), 1024 * 1024) as stream:
                write(stream)
            file.sync()
            return file.stat().size
        except OSError as error:
            error.filename = error.filename or self._name  # which disk is full, this or the store's
            raise
        finally:
            file.close()

    def _recover(self, plan: Mapping[str, Any]) -> tuple[int, int]:
        """Read the log, or begin it anew; return where it ends, and the first number without a part."""
        data = _read_all(self._log)
        first, *lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True) or [b""]
        if first != dumps(dict(plan)) + b"\n":
            self._log.truncate(0)
            self._end = 0
            self._remove_parts()
            self._note(plan)
            self._directory.sync()
            return self._end, 0
        end, parts = len(first), dict[int, Part]()
        for line in lines:
            event = _event(line)
            if event is None:
                break
            end += len(line)
            if "part" in event:
                rollouts = {name: tuple(stamp) for name, *stamp in event["rollouts"]}
                parts[event["part"]] = Part(event["part"], rollouts, event["rows"])
            else:
                parts.pop(event["dropped"], None)
        self._log.truncate(end)
        self.parts = [part for part in parts.values() if self._directory.stat(self._part(part.number))]
        return end, max(parts, default=-1) + 1

    def _note(self, event: Mapping[str, Any]) -> None:
        line = memoryview(dumps(dict(event)) + b"\n")
        while line:
            written = self._log.write(self._end, line)
            line = line[written:]
            self._end += written
        self._log.sync()


def _locked(directory: Directory, log: str, name: str) -> File:
    """Open and lock the log; a finished export removes it, so look whether it is still the one at that name."""
    while True:
        file = directory.open(log, "create")
        if not file.lock(exclusive=True):
            file.close()
            raise ExportBusyError(name)
        there = directory.stat(log)
        if there is not None and there.identity == file.stat().identity:
            return file
        file.close()


def _event(line: bytes) -> dict[str, Any] | None:
    """Read a line of the log; None if a power cut left holes in it."""
    try:
        event: dict[str, Any] = loads(line)
    except ValueError:
        return None
    return event


def _read_all(file: File) -> bytes:
    pieces: list[bytes] = []
    offset = 0
    while piece := file.read(offset, 1024 * 1024):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


class _Stream(io.RawIOBase):
    """A file of the seam to the disk as Python's own streams are, which zipfile and pyarrow take.

    Args:
        file: The file.
        keep: Leave it open when the stream is closed, so that it can be synced.
    """

    def __init__(self, file: File, *, keep: bool = False) -> None:
        self._file = file
        self._keep = keep
        self._offset = 0

    mode: Literal["rb+"] = "rb+"

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._file.stat().size}[whence]
        self._offset = base + offset
        return self._offset

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(self._offset, len(buffer))
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        written = self._file.write(self._offset, data)
        self._offset += written
        return written

    def close(self) -> None:
        if not self.closed and not self._keep:
            self._file.close()
        super().close()
