"""The command line as a whole: usage, exit statuses, and errors that a user may meet."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, Runner
from tokenstore import TokenCaptureStore, TokenEntry
from tokenstore.cli import common
from tokenstore.cli.common import CommandError, explain


def test_version_and_help(run: Runner) -> None:
    """`--version` and `--help` answer on stdout and end well; the help names the exit statuses."""
    assert run("--version").out.startswith("tokenstore ")

    result = run("--help")

    assert result.status == 0
    assert "exit status" in result.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["ls"],
        ["ls", "--root"],
        ["ls", "--root", ""],
        ["show", "--root", "d"],
        ["ingest", "--root", "d"],
        ["demo", "--rollouts", "0"],
    ],
)
def test_wrong_usage_is_status_2(run: Runner, arguments: list[str]) -> None:
    """A wrong command line says how to use it on stderr and changes nothing."""
    result = run(*arguments)

    assert result.status == 2
    assert "usage:" in result.err
    assert result.out == ""


def test_the_module_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`python -m tokenstore` runs the command line and exits with its status."""
    monkeypatch.setattr(sys, "argv", ["tokenstore", "--version"])

    with pytest.raises(SystemExit) as stop:
        runpy.run_module("tokenstore", run_name="__main__")

    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("tokenstore ")


@pytest.mark.parametrize("arguments", [["ls"], ["show", "r"]])
def test_reading_makes_no_root(run: Runner, tmp_path: Path, arguments: list[str]) -> None:
    """A missing root is an error of one line, and stays missing."""
    root = tmp_path / "nowhere"

    result = run(*arguments, "--root", root)

    assert (result.status, result.out) == (1, "")
    assert result.err == f"tokenstore: the root {root} does not exist\n"
    assert not root.exists()


@pytest.mark.parametrize("arguments", [["ls"], ["show", "r"], ["ingest", "/dev/null"], ["demo"]])
def test_a_root_that_is_a_file_is_an_error(run: Runner, tmp_path: Path, arguments: list[str]) -> None:
    """A root that is no directory is an error of one line for every command."""
    root = tmp_path / "file"
    root.write_text("text")

    result = run(*arguments, "--root", root)

    assert (result.status, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert str(root) in result.err
    assert root.read_text() == "text"


def test_a_root_that_cannot_be_made_is_an_error(run: Runner) -> None:
    """A root that the system refuses to make is an error of one line."""
    result = run("ingest", "/dev/null", "--root", "/proc/nowhere/store")

    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "/proc/nowhere" in result.err


def test_the_environment_names_the_root(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TOKENSTORE_ROOT` stands in for `--root`, and `--root` wins over it."""
    monkeypatch.setenv("TOKENSTORE_ROOT", str(tmp_path))
    assert run("ls").status == 0

    monkeypatch.setenv("TOKENSTORE_ROOT", str(tmp_path / "nowhere"))
    assert run("ls").status == 1
    assert run("ls", "--root", tmp_path).status == 0


def test_a_missing_event_loop_is_named(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without trio `--backend trio` says what to install."""
    monkeypatch.setattr(common, "find_spec", lambda _: None)

    result = run("ls", "--root", tmp_path, "--backend", "trio")

    assert (result.status, result.err.count("\n")) == (1, 1)
    assert "pip install trio" in result.err


def test_a_reader_that_left_is_no_error_message(tmp_path: Path) -> None:
    """When the reader of the pipe has gone, the command ends silently with 141."""
    store_one(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [*COMMAND, "ls", "--json", "--root", tmp_path], check=False, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_output_that_cannot_be_written_is_an_error(tmp_path: Path, options: list[str]) -> None:
    """When stdout is on a full disk, the command says so in one line and ends with 1."""
    store_one(tmp_path)

    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "ls", "--root", str(tmp_path), *options]
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE)

    assert (done.returncode, done.stderr) == (1, b"tokenstore: No space left on device\n")


def closed(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line of a shell, which may close streams before it starts `$@`."""
    words = ["sh", "-c", command, "sh", *COMMAND]
    environment = {**os.environ, "TOKENSTORE_ROOT": str(root)}
    return subprocess.run(words, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("command", "status", "err"),
    [
        ('"$@" stats >&-', 1, "tokenstore: stdout is closed\n"),
        pytest.param('"$@" stats --json >&- 2>&-', 1, "", marks=pytest.mark.kernel),
        pytest.param(
            '"$@" delete r <&-',
            1,
            "tokenstore: would ask: delete r in {root}?; there is no terminal, give --yes\n",
            marks=pytest.mark.kernel,
        ),
        pytest.param('"$@" show nobody 2>&-', 1, "", marks=pytest.mark.kernel),
        pytest.param('"$@" ingest - <&-', 0, "", marks=pytest.mark.kernel),
    ],
)
def test_closed_streams(tmp_path: Path, command: str, status: int, err: str) -> None:
    """Without stdout a command says so and ends with 1; without stdin nothing comes; no traceback is seen."""
    store_one(tmp_path)

    done = closed(command, tmp_path)

    assert (done.returncode, done.stderr) == (status, err.format(root=tmp_path))
    assert TokenCaptureStore(tmp_path).read_entries("r")


def store_one(root: Path) -> None:
    """Store one call."""
    store = TokenCaptureStore(root)
    store.append(
        TokenEntry(
            rollout_id="r",
            model_call_id="c",
            prompt_token_ids=[1],
            generation_token_ids=[2],
            generation_log_probs=[0.0],
        )
    )


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()]), 130, "interrupted"),
        (ExceptionGroup("g", [ExceptionGroup("h", [OSError(28, "No space left on device", "f")])]), 1, "f: No space"),
        (OSError("odd"), 1, "odd"),
        (CommandError("no such thing"), 1, "no such thing"),
    ],
)
def test_expected_errors_are_one_line(
    error: BaseException, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An expected error, also inside the groups of task groups, becomes one line and a status."""
    assert explain(error) == status

    message = capsys.readouterr().err
    assert message.startswith("tokenstore: ")
    assert said in message
    assert message.count("\n") == 1


def test_ctrl_c_with_a_reader_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C a stdout whose reader has gone is given up, so that the interpreter does not complain of it."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    stream.write("a line")
    monkeypatch.setattr(sys, "stdout", stream)

    assert explain(KeyboardInterrupt()) == 130
    assert stream.closed


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error is told as a bug, and shows where it is if that is asked for."""
    error = ExceptionGroup("g", [ZeroDivisionError("by zero")])

    assert explain(error) == 70
    assert capsys.readouterr().err.startswith("tokenstore: a bug, please report it (ZeroDivisionError: by zero)")

    monkeypatch.setenv("TOKENSTORE_TRACEBACK", "1")
    with pytest.raises(ExceptionGroup):
        explain(error)
