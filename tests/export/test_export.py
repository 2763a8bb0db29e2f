"""`export`: whole directories as JSONL, Parquet and npz, and back."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import attrs
import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.recordings import differences, put_at_once, recordings, rollouts_of
from tests.samples import data_folder, entry
from tests.trajectories.naive import snapshot_of
from tokenstore import TokenCaptureStore, TokenEntry
from tokenstore.codec import decode_entry, loads
from tokenstore.errors import InvalidEntryError
from tokenstore.export import ExportReport, Format, export, exporting, jsonl, reader_of
from tokenstore.export.columns import COLUMNS
from tokenstore.testing import SHAPES, shaped_rollout
from tokenstore.trajectories import build

pytestmark = pytest.mark.anyio
TOP = Path(__file__).parents[2]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet", "npz")
ROLLOUTS = {shape: shaped_rollout(shape, shape) for shape in sorted(SHAPES)}
"""A rollout of each kind; one of them holds ids beyond int32."""


async def fill(root: Path, rollouts: Sequence[str] = tuple(ROLLOUTS)) -> None:
    """Put rollouts into a store."""
    async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
        for name in rollouts:
            tasks.start_soon(put_in_order, store, ROLLOUTS[name])


async def put_in_order(store: TokenCaptureStore, calls: Sequence[TokenEntry]) -> None:
    """Put the calls of a rollout."""
    for call in calls:
        await store.put(call)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of rollout, which nothing here changes."""
    root = tmp_path_factory.mktemp("filled")
    anyio.run(fill, root)
    return root


async def run(root: Path, path: Path, format: Format, **options: Any) -> ExportReport:  # noqa: A002
    """Export a directory."""
    async with TokenCaptureStore(root) as store:
        return await export(store, path, format=format, **options)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet file as plain rows."""
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def entries_of(path: Path) -> list[Any]:
    """Read an export of entries that is no JSONL."""
    read = reader_of(path)
    assert read is not None
    return [each.entry for batch in read(path) for each in batch]


def flat(archive: Any, name: str, row: int) -> list[Any]:
    """Read a row of a list column of an npz file."""
    start, stop = archive[f"{name}_offsets"][row : row + 2]
    values: list[Any] = archive[name][start:stop].tolist()
    return values


def assert_equal(one: Path, other: Path, format: Format) -> None:  # noqa: A002
    """Compare two exports, row by row and bit by bit."""
    if format == "parquet":
        assert rows_of(one) == rows_of(other)
    elif format == "jsonl":
        assert one.read_bytes() == other.read_bytes()
    else:
        with np.load(one) as first, np.load(other) as second:
            assert first.files == second.files
            assert all(first[name].dtype == second[name].dtype for name in first.files)
            assert all(first[name].tobytes() == second[name].tobytes() for name in first.files)


def killed_export(root: Path, path: Path) -> None:
    """Kill a process that has exported two rollouts as Parquet."""
    command = [sys.executable, "-m", "tests.export.killed", str(root), str(path), "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(TOP)}) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stopped\n"
        process.send_signal(signal.SIGKILL)


class TestEntries:
    """Calls as they were recorded."""

    async def test_jsonl_holds_every_value(self, tmp_path: Path, filled: Path) -> None:
        """Each line is an entry, value for value, and nothing else stands beside it."""
        report = await run(filled, tmp_path / "out.jsonl", "jsonl")

        found = [decode_entry(loads(line)) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
        given = [call for calls in ROLLOUTS.values() for call in calls]
        assert [call.model_call_id for call in found] == [call.model_call_id for call in given]
        assert differences(given, found) == []
        assert (report.rows, report.rollouts, report.failed) == (len(given), len(ROLLOUTS), {})
        assert report.bytes == (tmp_path / "out.jsonl").stat().st_size

    async def test_parquet_holds_every_value(self, tmp_path: Path, filled: Path) -> None:
        """Rows of Parquet become the same entries again; group and reward are columns."""
        await run(filled, tmp_path / "out.parquet", "parquet")

        found = entries_of(tmp_path / "out.parquet")
        given = [call for calls in ROLLOUTS.values() for call in calls]
        assert [call for call in found if not isinstance(call, TokenEntry)] == []
        assert differences(given, found) == []
        first = rows_of(tmp_path / "out.parquet")[0]
        assert (first["group_id"], first["reward"]) == (given[0].extra["group_id"], given[0].extra["reward"])
        assert first["incomplete"] is False

    async def test_npz_holds_every_value(self, tmp_path: Path, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows of npz become the same entries again, also those of several parts."""
        monkeypatch.setattr(exporting, "PART_BYTES", 100_000)
        await run(filled, tmp_path / "out.npz", "npz")

        given = [call for calls in ROLLOUTS.values() for call in calls]
        assert differences(given, entries_of(tmp_path / "out.npz")) == []

    async def test_npz_holds_the_arrays(self, tmp_path: Path, filled: Path) -> None:
        """List columns are flat arrays with offsets, and nothing is pickled."""
        await run(filled, tmp_path / "out.npz", "npz")

        with np.load(tmp_path / "out.npz") as archive:
            for row, call in enumerate(call for calls in ROLLOUTS.values() for call in calls):
                assert archive["model_call_id"][row] == call.model_call_id
                assert flat(archive, "prompt_token_ids", row) == call.prompt_token_ids
                assert flat(archive, "generation_token_ids", row) == call.generation_token_ids
                assert flat(archive, "generation_log_probs", row) == call.generation_log_probs
                assert json.loads(bytes(flat(archive, "output_items", row))) == call.output_items

    async def test_a_number_that_is_no_float(self, tmp_path: Path) -> None:
        """A reward that no float holds leaves its column empty, and is itself in `extra`."""
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.put(attrs.evolve(entry(), extra={"reward": 10**400}))

        await run(tmp_path / "store", tmp_path / "out", "parquet")

        (row,) = rows_of(tmp_path / "out")
        assert (row["reward"], json.loads(row["extra"])) == (None, {"reward": 10**400})

    async def test_a_text_that_npz_would_cut(self, tmp_path: Path) -> None:
        """A NUL at a text's end, which numpy takes for padding, is refused by npz, with the remedy."""
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.put(attrs.evolve(entry(), extra={"group_id": "g\0"}))

        with pytest.raises(InvalidEntryError, match=r"group_id: ends with a NUL.*export as JSONL or Parquet"):
            await run(tmp_path / "store", tmp_path / "out", "npz")

        assert not (tmp_path / "out").exists()
        await run(tmp_path / "store", tmp_path / "out", "parquet")
        assert rows_of(tmp_path / "out")[0]["group_id"] == "g\0"


class TestTrajectories:
    """What `trajectories.build` makes of them."""

    @pytest.mark.parametrize("format", FORMATS)
    async def test_every_format_holds_what_was_built(self, tmp_path: Path, filled: Path, format: Format) -> None:  # noqa: A002
        """Ids, masks, log probabilities and verdicts are those of `build`."""
        path = tmp_path / "out"
        names = ("append_only", "branches", "retries")

        report = await run(filled, path, format, records="trajectories", rollouts=names)

        wanted = [
            (name, each.token_ids.tolist(), each.loss_mask.tolist(), each.log_probs.tolist())
            for name in names
            for each in build(snapshot_of(ROLLOUTS[name]))
        ]
        assert self.read(path, format) == wanted
        assert (report.rows, report.rollouts) == (len(wanted), 3)

    @staticmethod
    def read(path: Path, format: Format) -> list[tuple[Any, ...]]:  # noqa: A002
        """Read the columns that matter."""
        names = ("token_ids", "loss_mask", "log_probs")
        if format == "npz":
            with np.load(path) as archive:
                ids = archive["rollout_id"]
                return [(str(ids[row]), *(flat(archive, name, row) for name in names)) for row in range(len(ids))]
        rows = rows_of(path) if format == "parquet" else list(map(json.loads, path.read_bytes().splitlines()))
        assert all(row.keys() == COLUMNS["trajectories"].keys() for row in rows)
        return [(row["rollout_id"], *(row[name] for name in names)) for row in rows]

    async def test_options_of_building(self, tmp_path: Path, filled: Path) -> None:
        """Strategy and duplicates are those of `build`, and the schema's metadata names them."""
        options: dict[str, Any] = {"records": "trajectories", "strategy": "per_call", "duplicates": "keep"}

        await run(filled, tmp_path / "out", "parquet", rollouts=["retries"], **options)

        assert len(rows_of(tmp_path / "out")) == len(ROLLOUTS["retries"])
        note = json.loads(pq.read_schema(tmp_path / "out").metadata[b"tokenstore"])
        assert note == options

    async def test_verdicts_stand_beside(self, tmp_path: Path) -> None:
        """Masked rollouts are there too, with the verdict, its reasons, group and reward as columns."""
        await fill(tmp_path / "store", ["single_call", "append_only"])
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.mark_incomplete("append_only", "lost")
            await store.freeze("append_only")

        await run(tmp_path / "store", tmp_path / "out", "parquet", records="trajectories")

        masked, good = rows_of(tmp_path / "out")
        assert (masked["trainable"], masked["reasons"], masked["incomplete"]) == (False, ["incomplete"], True)
        assert (good["trainable"], good["reasons"], good["frozen"], masked["frozen"]) == (True, [], False, True)
        extra = ROLLOUTS["single_call"][-1].extra
        assert (good["reward"], good["group_id"]) == (extra["reward"], extra["group_id"])
        assert good["span_weight_versions"] == [str(extra["weight_version"])]

    @pytest.mark.parametrize("value", [7, "7", "0.5", True, [1.0], {"format": 1, "accuracy": 0.5}, 2**70])
    async def test_group_and_reward_of_any_kind(self, tmp_path: Path, value: Any) -> None:
        """What the columns of texts and numbers cannot hold as it is stands in `extra`."""
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.put(attrs.evolve(entry(), extra={"group_id": value, "reward": value, "other": 1}))

        await run(tmp_path / "store", tmp_path / "out", "parquet", records="trajectories")

        (row,) = rows_of(tmp_path / "out")
        assert json.loads(row["extra"]) == {"group_id": value, "reward": value}
        assert isinstance(row["group_id"], str)
        assert row["reward"] == (value if type(value) is int else None)

    async def test_what_cannot_be_built_is_named(self, tmp_path: Path, filled: Path) -> None:
        """A rollout with an id beyond int32 is listed with the reason, and the others are exported."""
        report = await run(filled, tmp_path / "out", "parquet", records="trajectories")

        assert report.rollouts == len(ROLLOUTS) - 1
        assert report.failed.keys() == {"edge_values"}
        assert "beyond int32" in report.failed["edge_values"]


class TestSelection:
    """Which rollouts are exported."""

    async def test_named_rollouts_only(self, tmp_path: Path) -> None:
        """Named rollouts are exported; those that are not there or retired are listed."""
        await fill(tmp_path / "store", ["single_call", "twins", "padding"])
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.retire(["twins"])

        report = await run(tmp_path / "store", tmp_path / "out", "jsonl", rollouts=["twins", "single_call", "missing"])

        assert report.rollouts == 1
        assert report.failed == {"missing": "there is no such rollout", "twins": "rollout twins is already retired"}

    async def test_retired_rollouts_are_left_out(self, tmp_path: Path) -> None:
        """Without names everything but retired rollouts is exported."""
        await fill(tmp_path / "store", ["single_call", "twins"])
        async with TokenCaptureStore(tmp_path / "store") as store:
            await store.retire(["twins"])

        report = await run(tmp_path / "store", tmp_path / "out", "jsonl")

        assert (report.rollouts, report.failed) == (1, {})

    @pytest.mark.parametrize("format", FORMATS)
    async def test_nothing_to_export(self, tmp_path: Path, format: Format) -> None:  # noqa: A002
        """An empty directory gives a file without rows that can be read."""
        report = await run(tmp_path / "store", tmp_path / "out", format)

        assert (report.rows, report.rollouts) == (0, 0)
        if format == "parquet":
            assert rows_of(tmp_path / "out") == []
        if format == "npz":
            assert np.load(tmp_path / "out")["prompt_token_ids_offsets"].tolist() == [0]


class TestGoingOn:
    """Parts, and runs that were cut off."""

    @pytest.mark.parametrize(
        ("format", "records"), [("jsonl", "entries"), ("parquet", "trajectories"), ("npz", "trajectories")]
    )
    async def test_parts_add_up(
        self,
        tmp_path: Path,
        filled: Path,
        format: Format,  # noqa: A002
        records: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Many small parts give the same rows as one, and no other file is left."""
        await run(filled, tmp_path / "one", format, records=records)
        monkeypatch.setattr(exporting, "PART_BYTES", 100_000)

        await run(filled, tmp_path / "many", format, records=records)

        assert_equal(tmp_path / "one", tmp_path / "many", format)
        assert {path.name for path in tmp_path.iterdir()} == {"one", "many"}

    async def test_progress_ends_with_all(self, tmp_path: Path) -> None:
        """The caller hears of each rollout, and at last of all."""
        await fill(tmp_path / "store", ["single_call", "twins"])
        heard: list[tuple[int, int]] = []

        await run(
            tmp_path / "store", tmp_path / "out", "jsonl", progress=lambda done, total: heard.append((done, total))
        )

        assert heard == [(0, 2), (1, 2), (2, 2)]


class TestRefused:
    """What cannot be done."""

    async def test_a_directory_is_no_file(self, tmp_path: Path) -> None:
        """A directory at the name is told at once."""
        with pytest.raises(IsADirectoryError):
            await run(tmp_path / "store", tmp_path, "jsonl")

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("elsewhere")], ids=["pipe", "link"])
    async def test_what_is_no_file_is_not_replaced(self, tmp_path: Path, make: Callable[[Path], None]) -> None:
        """A pipe, a device or a link at the name stays what it is."""
        make(tmp_path / "out")
        mode = (tmp_path / "out").lstat().st_mode

        with pytest.raises(FileExistsError, match="choose another name"):
            await run(tmp_path / "store", tmp_path / "out", "jsonl")

        assert (tmp_path / "out").lstat().st_mode == mode
        assert {path.name for path in tmp_path.iterdir()} == {"out", "store"}

    async def test_the_files_of_rollouts_are_not_replaced(self, tmp_path: Path) -> None:
        """No export goes into the directory of the store, where its name may be that of a rollout's file."""
        await fill(tmp_path / "store", ["twins"])

        with pytest.raises(PermissionError, match="In the store's own directory"):
            await run(tmp_path / "store", tmp_path / "store" / "twins.tokens.jsonl", "jsonl")

        assert TokenCaptureStore(tmp_path / "store").read_entries("twins") == ROLLOUTS["twins"]

    async def test_a_name_that_cannot_be_written(self, tmp_path: Path) -> None:
        """Where the files of the work cannot be made, the name that was asked for is said."""
        path = tmp_path / ("a" * 250)

        with pytest.raises(OSError, match="File name too long") as caught:
            await run(tmp_path / "store", path, "jsonl")

        assert caught.value.filename == str(path)

    async def test_a_full_disk_names_the_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where there is no room for the file, its whole path is said, and the next run goes on."""
        store, path = tmp_path / "store", tmp_path / "out"
        await fill(store, ["twins"])

        with monkeypatch.context() as patch:
            patch.setattr(jsonl, "write", no_room)
            with pytest.raises(OSError, match="No space left") as caught:
                await run(store, path, "jsonl")

        assert caught.value.filename == str(path)
        assert (await run(store, path, "jsonl")).rollouts == 1

    async def test_a_missing_directory(self, tmp_path: Path) -> None:
        """The directory of the file must be there."""
        with pytest.raises(FileNotFoundError):
            await run(tmp_path / "store", tmp_path / "missing" / "out", "jsonl")

    @pytest.mark.parametrize("choice", [{"format": "xml"}, {"records": "calls"}, {"strategy": "best"}])
    async def test_unknown_choices(self, tmp_path: Path, choice: dict[str, Any]) -> None:
        """A choice that is not there is refused with those that are, before anything is written."""
        options: dict[str, Any] = {"format": "jsonl", "records": "trajectories", **choice}
        (name,) = choice.values()

        with pytest.raises(ValueError, match=f"'{name}' is not known, there are "):
            await run(tmp_path / "store", tmp_path / "out", **options)

        assert [path.name for path in tmp_path.iterdir()] == ["store"]

    @pytest.mark.parametrize(("format", "package"), [("parquet", "pyarrow"), ("npz", "numpy")])
    async def test_missing_packages_say_how_to_get_them(
        self,
        tmp_path: Path,
        format: Format,  # noqa: A002
        package: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Where the package of a format is not installed, the error has the command, and nothing is written."""
        monkeypatch.setitem(sys.modules, package, None)

        with pytest.raises(ModuleNotFoundError, match=r"pip install 'tokenstore\[export\]'") as caught:
            await run(tmp_path / "store", tmp_path / "out", format)

        assert caught.value.name == package
        assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.kernel
def test_a_killed_export_is_gone_on_with(tmp_path: Path) -> None:
    """A process killed at work leaves nothing under the name; the next run exports only what was missing."""
    store = tmp_path / "store"
    anyio.run(fill, store, ("append_only", "branches", "edge_values"))
    anyio.run(run, store, tmp_path / "wanted", "parquet")
    killed_export(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    report = anyio.run(run, store, tmp_path / "out", "parquet")

    assert (report.resumed, report.rollouts) == (2, 3)
    assert rows_of(tmp_path / "wanted") == rows_of(tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "store", "wanted"}


@pytest.mark.parametrize("change", ["an intent", "a mark", "another rollout"])
async def test_what_changed_meanwhile_is_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """An export that is gone on with holds rollouts as they are now, also those whose lines look as they did."""
    monkeypatch.setattr(exporting, "PART_ROLLOUTS", 1)
    first, second = (attrs.evolve(entry(), rollout_id=name) for name in ("a", "b"))
    options: dict[str, Any] = {"format": "parquet", "records": "trajectories"}
    async with TokenCaptureStore(tmp_path / "store") as store:
        for call in (first, second):
            await store.put(call)
            await store.mark_incomplete(call.rollout_id, "lost")
        with pytest.raises(InterruptedError):
            await export(store, tmp_path / "out", progress=interrupt, **options)
        await CHANGES[change](store, first)

        report = await export(store, tmp_path / "out", **options)
        await export(store, tmp_path / "wanted", **options)

    assert report.resumed == 0
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "wanted")


def no_room(*_: Any, **__: Any) -> None:
    """Fail as a file on a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(done: int, _: int) -> None:
    """End an export when one rollout is done."""
    if done:
        raise InterruptedError


async def begin_again(store: TokenCaptureStore, call: TokenEntry) -> None:
    """Replace a rollout by another one, as long, of the same id."""
    await store.delete([call.rollout_id])
    await store.put(attrs.evolve(call, prompt_token_ids=call.prompt_token_ids[::-1]))
    await store.mark_incomplete(call.rollout_id, "lost")


CHANGES: dict[str, Callable[[TokenCaptureStore, TokenEntry], Awaitable[None]]] = {
    "an intent": lambda store, call: store.begin_call(call.rollout_id, "next"),
    "a mark": lambda store, call: store.mark_incomplete(call.rollout_id, "another"),
    "another rollout": begin_again,
}


def test_recordings_come_back(tmp_path: Path) -> None:
    """Every recorded call goes out and in again, in every format, and is the same call for the store."""
    given = recordings(data_folder("TOKENSTORE_RECORDED_DATA") / "recorded")
    anyio.run(fill_with, tmp_path / "store", given)

    anyio.run(run, tmp_path / "store", tmp_path / "out.jsonl", "jsonl")
    anyio.run(run, tmp_path / "store", tmp_path / "out.parquet", "parquet")
    anyio.run(run, tmp_path / "store", tmp_path / "out.npz", "npz")

    lines = [decode_entry(loads(line)) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    rows, archived = entries_of(tmp_path / "out.parquet"), entries_of(tmp_path / "out.npz")
    for name, calls in rollouts_of(given).items():
        for found in (lines, rows, archived):
            assert differences(calls, [call for call in found if call.rollout_id == name]) == []


async def fill_with(root: Path, calls: Sequence[TokenEntry]) -> None:
    """Put recorded calls into a store."""
    async with TokenCaptureStore(root) as store:
        await put_at_once(store, calls)


READERS = {
    "polars": "import polars as pl\nrows = pl.read_parquet(path).to_dicts()",
    "duckdb": (
        "import duckdb\nfound = duckdb.sql(f\"select * from '{path}'\")\n"
        "rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]"
    ),
    "datasets": (
        "import datasets\ndatasets.disable_progress_bars()\n"
        "rows = datasets.Dataset.from_parquet(path, cache_dir=path + '.cache').to_list()"
    ),
}


@pytest.mark.kernel
@pytest.mark.parametrize("reader", READERS)
def test_other_libraries_read_the_parquet(tmp_path: Path, reader: str) -> None:
    """Hugging Face `datasets`, polars and duckdb find the same rows that pyarrow finds."""
    if find_spec(reader) is None:
        pytest.skip(f"{reader} is not installed; the extra 'readers' adds it")
    store = TokenCaptureStore(tmp_path / "store")
    for call in [
        *ROLLOUTS["branches"],
        *ROLLOUTS["no_items"],
        attrs.evolve(entry(), extra={"reward": -1, "group_id": 7}),
    ]:
        store.append(call)
    path = tmp_path / "out.parquet"
    script = f"import json, sys\npath = sys.argv[1]\n{READERS[reader]}\nprint(json.dumps(rows))"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": str(TOP)}
    anyio.run(partial(run, records="trajectories"), tmp_path / "store", path, "parquet")

    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True, env=environment
    )

    rows = json.loads(done.stdout)
    assert rows == rows_of(path)
    assert [(row["group_id"], row["reward"]) for row in rows if row["rollout_id"] == "r"] == [("7", -1.0)]


def test_other_files_are_lines(tmp_path: Path) -> None:
    """JSONL, a short file, a directory, a pipe and a missing file are neither Parquet nor npz."""
    (tmp_path / "short").write_bytes(b"PA")
    (tmp_path / "lines").write_bytes(b"{}\n")
    os.mkfifo(tmp_path / "pipe")

    assert not any(reader_of(tmp_path / name) for name in ("short", "lines", "missing", ".", "pipe"))
