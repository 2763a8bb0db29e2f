"""`export`: rollout by rollout into parts, and the parts into one file.

| what goes wrong with a rollout | then |
|---|---|
| it is not there, retired, unreadable, or cannot be given as trajectories | it is listed, the others are exported |
| its lock stays held, or the disk fails | raised: no file is made, and the next run goes on from the parts |
| it was retired since the listing, and nobody named it | it is left out |
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import anyio
import attrs
from anyio import to_thread

from tokenstore.errors import TokenCaptureRetiredError, TokenStoreError
from tokenstore.export import jsonl, npz, parquet
from tokenstore.export.columns import Recipe, Records, Row, packed_bytes
from tokenstore.export.work import Stamp, Work
from tokenstore.ids import validate_rollout_ids
from tokenstore.journal.disk import Directory, FileStat, OsDirectory
from tokenstore.store import TokenCaptureStore
from tokenstore.trajectories import Duplicates, Strategy

Format = Literal["jsonl", "parquet", "npz"]
"""How an export is written."""
FORMATS: Mapping[Format, ModuleType] = {"jsonl": jsonl, "parquet": parquet, "npz": npz}
"""The module of each format; all have `check`, `write` and `merge`."""
PART_BYTES = 64 * 1024 * 1024
"""Packed bytes of a part: some seconds of work, which is what a kill can cost."""
PART_ROLLOUTS = 256
"""Rollouts of a part, where they are small, for the same reason."""


@attrs.frozen(kw_only=True)
class ExportReport:
    """What became of an export."""

    path: Path
    """The file."""
    bytes: int
    """Its size."""
    rollouts: int
    """Rollouts in it."""
    rows: int
    """Entries or trajectories in it."""
    resumed: int
    """Rollouts that an earlier run had exported."""
    failed: Mapping[str, str]
    """Rollouts that could not be exported, and why."""


async def export(
    store: TokenCaptureStore,
    path: str | os.PathLike[str],
    *,
    format: Format,  # noqa: A002 - the word for it
    records: Records = "entries",
    rollouts: Sequence[str] = (),
    strategy: Strategy = "prefix",
    duplicates: Duplicates = "supersede",
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> ExportReport:
    """Write rollouts to a file, which appears under its name when it is whole and durable.

    A run that was killed or failed is gone on with by running it again with the same arguments. Cancelling waits for
    the part that is being written.

    Args:
        store: Where the rollouts are; it is not changed.
        path: The file, outside the store's directory; a regular file that is there is replaced at the end.
        format: `"jsonl"`, `"parquet"` or `"npz"`.
        records: `"entries"`, or `"trajectories"`: those of every rollout, trainable or not, with the verdict beside.
        rollouts: Ids of the rollouts to export; none means all that are not retired.
        strategy: How trajectories are built, see `trajectories.build`.
        duplicates: The same.
        progress: Called with the number of rollouts done and of all.

    Returns:
        What was exported. Look at `failed`.

    Raises:
        ExportBusyError: Another export to this file is running.
        ValueError: A format, a kind of records, a strategy or what to do with duplicates is none of those above.
        ModuleNotFoundError: The format's package is not installed; the message says how to install it.
        InvalidEntryError: A text that npz cannot hold; take another format.
        LockTimeoutError, OSError: A rollout could not be read now, or the file not be written; run it again.
    """
    _check_choices(format, records, strategy, duplicates)
    FORMATS[format].check()
    recipe = Recipe(records, strategy, duplicates)
    wanted = validate_rollout_ids(rollouts)
    now = await _stamps(store, wanted)
    plan = {**attrs.asdict(recipe), "format": format, "root": str(store.root.absolute()), "rollouts": sorted(wanted)}
    work = await to_thread.run_sync(_begin, Path(path), store.root, {"export": plan})
    try:
        await to_thread.run_sync(work.keep, now)
        exporting = _Exporting(store, work, recipe, FORMATS[format])
        await exporting.run(now, wanted, progress)
        return await exporting.finish(Path(path))
    except OSError as error:
        if error.filename == Path(path).name:
            error.filename = str(path)  # as it was asked for
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(work.close)


def _check_choices(*given: str) -> None:
    for choice, known in zip(given, (Format, Records, Strategy, Duplicates), strict=True):
        if choice not in get_args(known):
            raise ValueError(f"{choice!r} is not known, there are {', '.join(get_args(known))}")


def _begin(path: Path, root: Path, plan: Mapping[str, Any]) -> Work:
    _check_place(path, root)
    directory = OsDirectory(path.parent)
    try:
        return Work(directory, path.name, plan)
    except OSError as error:
        directory.close()
        error.filename = str(path)  # a hidden file beside it could not be made, of which nobody has heard
        raise
    except BaseException:
        directory.close()
        raise


def _check_place(path: Path, root: Path) -> None:
    """Refuse, before any work is done, a name whose file must not be replaced."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(errno.EEXIST, "A link, a pipe or a device is there, choose another name", str(path))
    if path.parent.samefile(root):  # where the files of rollouts are, and whatever else its owner looks for
        raise PermissionError(errno.EPERM, "In the store's own directory, choose another", str(path))


async def _stamps(store: TokenCaptureStore, wanted: Sequence[str]) -> dict[str, Stamp]:
    """List the rollouts to be exported, in the order of their ids."""
    names = set(wanted)
    found = [
        status.rollout_id
        async for status in store.rollouts()
        if (status.rollout_id in names if names else status.state != "retired")
    ]
    return await store.on_disk(partial(_look, store, sorted(found)))


def _look(store: TokenCaptureStore, rollout_ids: Sequence[str], directory: Directory) -> dict[str, Stamp]:
    """Stamp rollouts with what their files are: an intent, a mark or a new rollout of the id makes another stamp."""
    paths = (store.path_for, store.state_path_for, store.intents_path_for, store.incomplete_path_for)
    return {
        rollout_id: tuple(chain.from_iterable(_file(directory.stat(path(rollout_id).name)) for path in paths))
        for rollout_id in rollout_ids
    }


def _file(found: FileStat | None) -> tuple[int, int, int]:
    return (found.inode, found.mtime_ns, found.size) if found else (0, 0, 0)


class _Exporting:
    """One run: the rows of the next part, and what was counted."""

    def __init__(self, store: TokenCaptureStore, work: Work, recipe: Recipe, module: ModuleType) -> None:
        self._store = store
        self._work = work
        self._recipe = recipe
        self._format = module
        self._resumed = {name for part in work.parts for name in part.rollouts}
        self._failed: dict[str, str] = {}
        self._rows: list[Row] = []
        self._rollouts: dict[str, Stamp] = {}

    async def run(
        self, now: Mapping[str, Stamp], wanted: Sequence[str], progress: Callable[[int, int], object]
    ) -> None:
        """Put what is missing into parts."""
        self._failed = {name: "there is no such rollout" for name in wanted if name not in now}
        waiting = [name for name in now if name not in self._resumed]
        progress(len(self._resumed), len(now))
        size = 0
        for done, rollout_id in enumerate(waiting, len(self._resumed) + 1):
            size += await self._take(rollout_id, now[rollout_id], named=bool(wanted))
            if size >= PART_BYTES or len(self._rollouts) >= PART_ROLLOUTS:
                await self._flush()
                size = 0
            progress(done, len(now))
        if self._rollouts or not self._work.parts:
            await self._flush()

    async def finish(self, path: Path) -> ExportReport:
        """Make the file of the parts."""
        size = await to_thread.run_sync(self._work.finish, self._format.merge)
        return ExportReport(
            path=path,
            bytes=size,
            rollouts=sum(len(part.rollouts) for part in self._work.parts),
            rows=sum(part.rows for part in self._work.parts),
            resumed=len(self._resumed),
            failed=self._failed,
        )

    async def _take(self, rollout_id: str, stamp: Stamp, *, named: bool) -> int:
        """Make rows of a rollout, and return the memory that they take."""
        try:
            snapshot = await self._store.peek(rollout_id)
            rows = await to_thread.run_sync(self._recipe.rows, snapshot)
        except TokenCaptureRetiredError as error:
            if named:
                self._failed[rollout_id] = str(error)
            return 0
        except TokenStoreError as error:
            if isinstance(error, OSError):
                raise
            self._failed[rollout_id] = str(error)
            return 0
        self._rows += rows
        self._rollouts[rollout_id] = stamp
        return sum(map(packed_bytes, rows))

    async def _flush(self) -> None:
        rows, rollouts = self._rows, self._rollouts
        self._rows, self._rollouts = [], {}
        write = partial(self._format.write, columns=self._recipe.columns, rows=rows, note=attrs.asdict(self._recipe))
        await to_thread.run_sync(self._work.add, rollouts, len(rows), write)
