"""`tokenstore ingest FILE...`: entries from JSONL, or from Parquet or npz that `export` gave, into a store.

1. Memory is bounded: a window of lines is read, decoded in a worker thread and stored before the next one is read.
2. Inside a window at most 64 rollouts go in concurrently; the lines of one rollout one after the other.
3. A line that is refused is reported with file and number, and the others go on. A disk that fails, or a lock that
   stays held, ends the run: going on would put later lines of a rollout before the failed one.
4. Running the same command again is safe: what is there already counts as such.
5. A rollout that Parquet or npz calls incomplete is marked so, before its first entry. Lines of JSONL do not say it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, cast

import anyio
from anyio import to_thread

from tokenstore import (
    CorruptRolloutError,
    DurabilityError,
    InvalidEntryError,
    LockTimeoutError,
    TokenCaptureRetiredError,
    TokenCaptureStore,
    TokenEntry,
    TokenStoreError,
)
from tokenstore.cli.common import EXIT_FAILED, EXIT_OK, CommandError, add_output, add_root, describe, run_async
from tokenstore.cli.lines import Line, LineSplitter, Refusal, decode, refusal_of
from tokenstore.cli.output import Output, human_seconds, printable
from tokenstore.config import MAX_ENTRY_BYTES
from tokenstore.export import reader_of
from tokenstore.export.columns import Exported
from tokenstore.export.reading import Reader

if TYPE_CHECKING:
    from argparse import _SubParsersAction

MAX_PUTS = 64
"""Puts in flight at once."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes read for one window: some hundreds of ordinary calls, and a few tens of megabytes once decoded."""

Advance = Callable[[float], None]


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Store entries from JSONL, one JSON object a line, blank lines ignored, or from Parquet or npz that 'export' "
        "gave. A line or row that is refused is reported with its file and number and the others are kept; the exit "
        "status is then 1. Lines of one rollout are stored in their order. Running it again stores nothing twice. "
        "Rollouts that Parquet or npz calls incomplete are marked so; lines of JSONL do not say it."
    )
    parser = commands.add_parser("ingest", help="store entries from JSONL, Parquet or npz", description=about)
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="JSONL, Parquet or npz of entries, - for JSONL on stdin"
    )
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Ingest the files; with `--json` one object a line: the refusals as they come, then a summary."""
    with output.progress("ingest", _total_bytes(arguments.files)) as advance:
        ingest = run_async(_ingest, arguments.root, arguments.files, output, advance, backend=arguments.backend)
    ingest.summarise()
    return EXIT_OK if ingest.flawless else EXIT_FAILED


async def _ingest(root: str, files: Sequence[str], output: Output, advance: Advance) -> _Ingest:
    async with TokenCaptureStore(root) as store:
        ingest = _Ingest(store, output)
        for file in files:
            if not ingest.stopped:
                await ingest.file(file, advance)
        ingest.stored = store.statistics().puts
    return ingest


class _Ingest:
    """One run over all files: what was counted so far, and whether it must stop."""

    def __init__(self, store: TokenCaptureStore, output: Output) -> None:
        self.stored = 0
        self.stopped = False
        self._store = store
        self._output = output
        self._lines = self._accepted = self._refused = self._unreadable = 0
        self._masked: set[str] = set()
        self._started = perf_counter()

    @property
    def flawless(self) -> bool:
        """True if every line of every file is in the store."""
        return not (self._refused or self._unreadable or self.stopped)

    async def file(self, file: str, advance: Advance) -> None:
        """Store the entries of one file."""
        name = "<stdin>" if file == "-" else printable(file)
        try:
            read = None if file == "-" else await to_thread.run_sync(_reader_of, file)
            if read is not None:
                await self._rows(name, file, read)
            else:
                await self._lines_of(name, file, advance)
        except CommandError as error:
            self._give_up(name, error)

    async def _lines_of(self, name: str, file: str, advance: Advance) -> None:
        splitter = LineSplitter(MAX_ENTRY_BYTES)
        try:
            async with aclosing(_chunks(file)) as chunks:
                async for chunk in chunks:
                    await self._window(name, await to_thread.run_sync(_decode_all, list(splitter.feed(chunk))))
                    advance(len(chunk))
                    if self.stopped:
                        return
        except CommandError as error:
            self._give_up(name, error)
        await self._window(name, _decode_all(splitter.end()))

    async def _rows(self, name: str, file: str, read: Reader) -> None:
        """Store the rows of an export that is no JSONL."""
        number = 0
        with closing(_rows_of(file, read)) as batches:
            while not self.stopped and (batch := await to_thread.run_sync(next, batches, None)) is not None:
                rows = [
                    (row, refusal_of(row, each.entry) if isinstance(each.entry, TokenStoreError) else each.entry)
                    for row, each in enumerate(batch, number + 1)
                ]
                number += len(rows)
                await self._mask(batch)
                await self._window(name, rows)

    async def _mask(self, batch: Sequence[Exported]) -> None:
        """Mark rollouts that were incomplete where they came from, before anything of them is stored."""
        masked = {each.entry.rollout_id for each in batch if each.incomplete and isinstance(each.entry, TokenEntry)}
        for rollout_id in sorted(masked - self._masked):
            with suppress(TokenCaptureRetiredError, CorruptRolloutError):  # then the entries are refused, and say why
                if not (await self._store.peek(rollout_id)).incomplete:
                    await self._store.mark_incomplete(rollout_id)
        self._masked |= masked

    def summarise(self) -> None:
        """Say what became of the lines."""
        counts = {
            "lines": self._lines,
            "stored": self.stored,
            "already_there": self._accepted - self.stored,
            "refused": self._refused,
            "unreadable_files": self._unreadable,
        }
        seconds = perf_counter() - self._started
        if self._output.json:
            self._output.document({"event": "summary", **counts, "stopped": self.stopped, "seconds": seconds})
            return
        said = ", ".join(f"{key.replace('_', ' ')} {count}" for key, count in counts.items() if count or key != _RARE)
        self._output.text(f"{said}, in {human_seconds(seconds)}")

    async def _window(self, name: str, lines: Sequence[tuple[int, TokenEntry | Refusal]]) -> None:
        queues: dict[str, list[tuple[int, TokenEntry]]] = {}
        refusals: list[Refusal] = []
        for line, entry in lines:
            if isinstance(entry, Refusal):
                refusals.append(entry)
            else:
                queues.setdefault(entry.rollout_id, []).append((line, entry))
        self._lines += len(lines)
        waiting = iter(queues.values())
        async with anyio.create_task_group() as workers:
            for _ in range(min(MAX_PUTS, len(queues))):
                workers.start_soon(self._put_rollouts, waiting, refusals)
        self._refused += len(refusals)
        for refusal in sorted(refusals, key=lambda refusal: refusal.line):
            self._report(name, refusal.line, refusal.error, refusal.problem)

    async def _put_rollouts(self, waiting: Iterator[list[tuple[int, TokenEntry]]], refusals: list[Refusal]) -> None:
        """Take rollouts that no other worker has taken, and put the entries of each in their order."""
        for line, entry in chain.from_iterable(waiting):
            if self.stopped:
                return
            try:
                await self._store.put(entry)
                self._accepted += 1
            except TokenStoreError as error:
                refusals.append(refusal_of(line, error))
                self.stopped |= isinstance(error, DurabilityError | LockTimeoutError)

    def _give_up(self, name: str, error: CommandError) -> None:
        self._unreadable += 1
        self._report(name, None, "OSError", str(error))

    def _report(self, name: str, line: int | None, error: str, problem: str) -> None:
        if self._output.json:
            event = {"event": "refused", "file": name, "line": line, "error": error, "problem": problem}
            self._output.document(event)
        else:
            self._output.note(f"{name}:{line}: {problem}" if line else f"{name}: {problem}")


_RARE = "unreadable_files"


def _decode_all(lines: Iterable[Line]) -> list[tuple[int, TokenEntry | Refusal]]:
    return [(line.number, decode(line, MAX_ENTRY_BYTES)) for line in lines]


def _reader_of(file: str) -> Reader | None:
    try:
        return reader_of(Path(file))
    except OSError as error:
        raise CommandError(error.strerror or describe(error)) from error


def _rows_of(file: str, read: Reader) -> Generator[list[Exported]]:
    """Give the rows of an export.

    Raises:
        CommandError: It cannot be read, or holds no entries.
    """
    try:
        yield from read(Path(file))
    except (InvalidEntryError, ModuleNotFoundError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(describe(error)) from error


async def _chunks(file: str) -> AsyncGenerator[bytes, None]:
    """Read a file, or stdin for `-`, in chunks.

    A worker thread never waits for a terminal or a pipe, since Ctrl-C could not wake it: the loop waits instead.

    Raises:
        CommandError: The file cannot be opened or read.
    """
    try:
        source = cast("BufferedIOBase", sys.stdin.buffer if file == "-" else await to_thread.run_sync(_open, file))
        try:
            waits = not source.seekable()
            while True:
                if waits:
                    await anyio.wait_readable(source)
                chunk = await to_thread.run_sync(source.read1, CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        finally:
            if file != "-":
                source.close()
    except OSError as error:
        raise CommandError(error.strerror or describe(error)) from error


def _open(file: str) -> BufferedIOBase:
    return Path(file).open("rb")


def _total_bytes(files: Sequence[str]) -> int | None:
    """Add up the files' sizes for the progress bar; `None` if one has no size yet."""
    paths = [Path(file) for file in files]
    return sum(path.stat().st_size for path in paths) if all(path.is_file() for path in paths) else None
