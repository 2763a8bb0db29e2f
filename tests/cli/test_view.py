"""`tokenstore view`: the page as a file."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.running import Runner


def test_a_page_of_a_rollout(run: Runner, mixed_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page appears under the rollout's name, whole, readable by its owner alone, and nothing else is left."""
    monkeypatch.chdir(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in mixed_store.iterdir()}

    result = run("view", "frozen", "--root", mixed_store)

    page = tmp_path / "frozen.html"
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("frozen.html, ")
    assert page.read_text("utf-8").endswith("</html>\n")
    assert page.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [page]
    assert {path.name: path.stat().st_mtime_ns for path in mixed_store.iterdir()} == before


def test_a_page_of_a_directory(run: Runner, mixed_store: Path, tmp_path: Path) -> None:
    """The overview names what is masked and why."""
    target = tmp_path / "all.html"

    shown = json.loads(run("view", "--all", "-o", target, "--json", "--root", mixed_store).out)

    text = target.read_text("utf-8")
    assert shown == {"path": str(target), "bytes": target.stat().st_size}
    assert "lost_call:lost" in text
    assert "marked:broken" in text


def test_a_page_on_stdout(run: Runner, mixed_store: Path) -> None:
    """With `-o -` the page is all of stdout."""
    result = run("view", "frozen", "-o", "-", "--root", mixed_store)

    assert result.out.startswith("<!doctype html>")
    assert result.out.endswith("</html>\n")


def test_a_page_into_a_pipe(run: Runner, mixed_store: Path, tmp_path: Path) -> None:
    """What is there and is no file, as a named pipe or /dev/null, is written to and not replaced."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_text, "utf-8")
        assert run("view", "frozen", "-o", pipe, "--root", mixed_store).status == 0

    assert read.result().endswith("</html>\n")
    assert list(tmp_path.iterdir()) == [pipe]
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a rollout, or --all"),
        (["frozen", "--all"], "give a rollout, or --all"),
        (["--all", "--tokenizer", "x"], "--tokenizer is for"),
        (["frozen", "--json", "-o", "-"], "both want stdout"),
    ],
)
def test_wrong_usage(run: Runner, mixed_store: Path, options: list[str], said: str) -> None:
    """Options that do not go together are wrong usage, told in one line."""
    result = run("view", *options, "--root", mixed_store)

    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nobody"], "there is no rollout nobody"),
        (["retired"], "only its fence is left"),
        (["frozen", "-o", "/nowhere/x.html"], "/nowhere/x.html cannot be written: No such file"),
        (["frozen", "-o", "/proc"], "/proc cannot be written: Is a directory"),
        (["frozen", "-o", "{root}/masked.tokens.jsonl"], "give -o a path outside"),
        (["--all", "-o", "{root}/../store/x.html"], "give -o a path outside"),
        (["frozen", "--tokenizer", "missing/tokenizer.json"], "does not exist"),
        (["frozen", "--tokenizer", __file__], "is no tokenizer.json"),
    ],
)
def test_what_cannot_be_shown(run: Runner, mixed_store: Path, options: list[str], said: str) -> None:
    """What cannot be shown is an error of one line."""
    if "--tokenizer" in options:
        pytest.importorskip("tokenizers")

    result = run("view", *(option.format(root=mixed_store) for option in options), "--root", mixed_store)

    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert said in result.err
