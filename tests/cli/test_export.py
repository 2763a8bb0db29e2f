"""`tokenstore export`, and `ingest` of what it gives."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from tests.cli.running import Runner
from tokenstore import TokenCaptureStore
from tokenstore.testing import first_difference, shaped_rollout

SHAPES = ("append_only", "branches", "edge_values", "empty_ids", "no_items")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a few rollouts, not to be changed."""
    root = tmp_path_factory.mktemp("model") / "store"
    store = TokenCaptureStore(root)
    for shape in SHAPES:
        for call in shaped_rollout(shape, shape):
            store.append(call)
    anyio.run(store.close)
    return root


@pytest.fixture
def root(model: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(model, tmp_path / "store"))


@pytest.mark.parametrize("format", ["jsonl", "parquet", "npz"])
def test_ingest_takes_what_export_gives(
    run: Runner,
    root: Path,
    tmp_path: Path,
    backend: Sequence[str],
    format: str,  # noqa: A002
) -> None:
    """Entries go out and in again, value for value and in order, and are no conflict where they were."""
    file = tmp_path / f"out.{format}"

    out = run("export", "--format", format, "--root", root, "--out", file, *backend)
    into = run("ingest", file, "--root", tmp_path / "copy", *backend)
    again = run("ingest", file, "--root", root, *backend)

    assert (out.status, into.status, again.status) == (0, 0, 0)
    assert (out.err, into.err, again.err) == ("", "", "")
    assert "stored 0, already there 22, refused 0" in again.out
    copy = TokenCaptureStore(tmp_path / "copy")
    for shape in SHAPES:
        given, found = shaped_rollout(shape, shape), copy.read_entries(shape)
        assert len(given) == len(found)
        assert not any(map(first_difference, given, found))


@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_a_masked_rollout_stays_masked(run: Runner, root: Path, tmp_path: Path, format: str) -> None:  # noqa: A002
    """What was incomplete where it was exported is so where it goes in, and nothing else is; nor is it marked twice."""
    store = TokenCaptureStore(root)
    anyio.run(store.mark_incomplete, "branches", "lost")
    before = store.freeze_now("branches")
    run("export", "--format", format, "--root", root, "--out", tmp_path / "out")

    results = [run("ingest", tmp_path / "out", "--root", into) for into in (tmp_path / "copy", root, tmp_path / "copy")]

    assert [result.status for result in results] == [0, 0, 0]
    copy = TokenCaptureStore(tmp_path / "copy")
    assert [shape for shape in SHAPES if copy.is_incomplete(shape)] == ["branches"]
    assert TokenCaptureStore(root).freeze_now("branches") == before


def test_what_was_exported_is_said(run: Runner, root: Path, tmp_path: Path) -> None:
    """A line on stdout counts rows and rollouts and names the file."""
    result = run("export", "--format", "npz", "--root", root, "--out", tmp_path / "out.npz")

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"22 entries of 5 rollouts in {tmp_path / 'out.npz'}, ")


def test_what_failed_is_named(run: Runner, root: Path, tmp_path: Path) -> None:
    """Rollouts that cannot be exported are lines on stderr; the others are in the file; the status is 1."""
    arguments = ("--format", "jsonl", "--records", "trajectories", "--root", root, "--out", tmp_path / "out")

    result = run("export", *arguments, "edge_values", "missing", "branches")

    assert result.status == 1
    assert [line.split(": ")[0] for line in result.err.splitlines()] == ["missing", "edge_values"]
    assert "beyond int32" in result.err
    assert result.out.startswith("3 trajectories of 1 rollouts in ")
    assert result.out.endswith(", 2 rollouts failed\n")
    assert len((tmp_path / "out").read_bytes().splitlines()) == 3


def test_json(run: Runner, root: Path, tmp_path: Path) -> None:
    """With `--json` stdout holds one document with exact numbers, and stderr is silent."""
    file = tmp_path / "out"

    result = run("export", "--format", "jsonl", "--root", root, "--out", file, "--json", "branches", "missing")

    assert (result.status, result.err) == (1, "")
    assert json.loads(result.out) == {
        "path": str(file),
        "bytes": file.stat().st_size,
        "rollouts": 1,
        "rows": 10,
        "resumed": 0,
        "failed": {"missing": "there is no such rollout"},
    }


def test_options_reach_the_builder(run: Runner, root: Path, tmp_path: Path) -> None:
    """`--strategy per_call` gives a row for each call that generated something."""
    options = ("--records", "trajectories", "--strategy", "per_call", "--duplicates", "keep")

    result = run("export", "--format", "jsonl", *options, "--root", root, "--out", tmp_path / "out", "branches")

    assert result.out.startswith("10 trajectories of 1 rollouts")


@pytest.mark.parametrize(
    ("arguments", "status", "problem"),
    [
        ("--format jsonl --root {missing} --out {out}", 1, "does not exist"),
        ("--format jsonl --root {root} --out {root}", 1, "Is a directory"),
        ("--format jsonl --root {root} --out {root}/branches.tokens.jsonl", 1, "In the store's own directory"),
        ("--format jsonl --root {root} --out {missing}/out", 1, "No such file or directory"),
        ("--format jsonl --root {root} --out {out} ../x", 1, "rollout id '../x'"),
        ("--format xml --root {root} --out {out}", 2, "invalid choice: 'xml'"),
        ("--format jsonl --root {root}", 2, "--out"),
    ],
)
def test_mistakes(run: Runner, root: Path, arguments: str, status: int, problem: str) -> None:
    """What cannot be done is one line on stderr, without a traceback, and leaves no file."""
    places = {"root": root, "missing": root.parent / "missing", "out": root.parent / "out"}

    result = run("export", *(argument.format_map(places) for argument in arguments.split()))

    assert result.status == status
    assert problem in result.err
    assert "Traceback" not in result.err
    assert {path.name for path in root.parent.iterdir()} == {"store"}


def test_a_missing_package(run: Runner, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the one line has the command that adds it, for `export` and for `ingest`."""
    run("export", "--format", "parquet", "--root", root, "--out", tmp_path / "there")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    out = run("export", "--format", "parquet", "--root", root, "--out", tmp_path / "out")
    into = run("ingest", tmp_path / "there", "--root", tmp_path / "copy")

    assert out.err == "tokenstore: Parquet needs pyarrow; \"pip install 'tokenstore[export]'\" adds it\n"
    assert into.err == f"{tmp_path / 'there'}: Parquet needs pyarrow; \"pip install 'tokenstore[export]'\" adds it\n"
    assert (out.status, into.status) == (1, 1)


@pytest.mark.parametrize(("format", "called"), [("parquet", "Parquet"), ("npz", "npz")])
def test_what_is_no_export_of_entries(run: Runner, root: Path, tmp_path: Path, format: str, called: str) -> None:  # noqa: A002
    """Trajectories and torn files are named and refused as a whole; other files go in."""
    options = ("export", "--format", format, "--root", root, "--out")
    run(*options, tmp_path / "good")
    run(*options, tmp_path / "other", "--records", "trajectories", "branches", "no_items")
    (tmp_path / "torn").write_bytes((tmp_path / "good").read_bytes()[:-9])

    result = run("ingest", *(tmp_path / name for name in ("other", "torn", "good")), "--root", tmp_path / "copy")

    assert result.status == 1
    other, torn = result.err.splitlines()
    assert other.startswith(f"{tmp_path / 'other'}: model_call_id: is no ")
    assert f"of this {called} file, which is no export of entries" in other
    assert torn.startswith(f"{tmp_path / 'torn'}: not a whole {called} file")
    assert "lines 22, stored 22, already there 0, refused 0, unreadable files 2" in result.out
