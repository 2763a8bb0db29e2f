"""The README is true: its examples run as they stand, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import tokenstore
from tokenstore import StoreConfig, TokenCaptureStore
from tokenstore.cli import main

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def run_example(number: int, folder: Path) -> str:
    """Run an example as a script of its own and give what it printed."""
    script = folder / f"example{number}.py"
    script.write_text(EXAMPLES[number], encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(TOP)}  # the checkout's package, also if it is not installed
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_are_four_short_examples() -> None:
    """A server and a trainer, under asyncio and under trio, about fifteen lines each."""
    assert ["asyncio" in example for example in EXAMPLES] == [True, True, False, False]
    assert ["trio" in example for example in EXAMPLES] == [False, False, True, True]
    assert max(len(example.strip().splitlines()) for example in EXAMPLES) <= 16


@pytest.mark.parametrize(
    ("server", "rollout", "printed"), [(0, "rollout-1", "call-1 [151644"), (2, "rollout-2", "1 call")]
)
def test_examples_run_as_they_stand(tmp_path: Path, server: int, rollout: str, printed: str) -> None:
    """The server's example stores a call, the trainer's reads it in another process and drops it."""
    assert run_example(server, tmp_path) == ""
    assert len(TokenCaptureStore(tmp_path / "captures").read_entries(rollout)) == 1

    assert run_example(server + 1, tmp_path).startswith(printed)
    assert TokenCaptureStore(tmp_path / "captures").read_entries(rollout) == []


def test_both_commands_are_one_line_each() -> None:
    """The commands to try and to test are one line to copy, from a fresh environment on."""
    commands = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

    assert [command.count("\n") for command in commands] == [1, 1]
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]


def test_the_configuration_table_is_complete() -> None:
    """Each field of the configuration has a row in the table, and there is no other."""
    section = README.split("## Configuration")[1].split("\n## ")[0]

    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [field.name for field in attrs.fields(StoreConfig)]


def test_the_command_table_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """Each sub-command has a row in the table, and there is no other."""
    section = README.split("## Command line")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `tokenstore (\w+)", section, re.MULTILINE)

    main(["--help"])

    offered = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert rows == offered


def test_names_in_the_text_exist() -> None:
    """Every error that the README names is one of the package's."""
    names = set(re.findall(r"`(\w+Error)`", README))

    assert names
    assert [name for name in names if not hasattr(tokenstore, name)] == []


def test_source_files_in_the_text_exist() -> None:
    """Every file and folder in the reading order is there."""
    section = README.split("## Reading the source")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_]+(?:\.py|/))`", section)

    assert files
    assert [file for file in files if not (TOP / "tokenstore" / file).exists()] == []
