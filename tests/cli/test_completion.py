"""`tokenstore completion`: what real shells complete."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Runner
from tokenstore.cli import completion
from tokenstore.cli.common import complete_rollouts

pytest.importorskip("argcomplete")

ASK = """
eval "$(tokenstore completion bash)"
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9 COMP_WORDS=($1) COMP_CWORD=1
[[ $1 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_python_argcomplete tokenstore
printf '%s\\n' "${COMPREPLY[@]}"
"""
"""Loads the script into a shell and asks as Tab does."""


def complete(line: str, folder: Path) -> list[str]:
    """Have bash complete a line."""
    command = folder / "tokenstore"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -m tokenstore "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", line], env=environment, capture_output=True, text=True, check=False
    )
    return sorted(word.strip() for word in done.stdout.split())


@pytest.mark.kernel  # each key press starts an interpreter
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tokenstore re", ["repair", "retire"]),
        ("tokenstore show --root {root} fro", ["frozen"]),
        ("tokenstore ls --sort s", ["size", "state"]),
    ],
)
def test_bash_completes(mixed_store: Path, tmp_path: Path, line: str, expected: list[str]) -> None:
    """Bash completes sub-commands, the ids of a directory's rollouts, and the choices of an option."""
    assert complete(line.format(root=mixed_store), tmp_path) == expected


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "compdef"), ("fish", "complete --command")])
def test_each_shell_has_a_script(run: Runner, shell: str, word: str) -> None:
    """There is a script for each shell, also as JSON."""
    result = run("completion", shell)

    assert (result.status, result.err) == (0, "")
    assert word in result.out
    assert run("completion", shell, "--json").out.startswith('{"script":')


@pytest.mark.parametrize(("prefix", "expected"), [("fro", ["frozen"]), ("*", []), ("/fro", []), ("[", [])])
def test_ids_complete_by_their_letters(mixed_store: Path, prefix: str, expected: list[str]) -> None:
    """Ids are found by how they begin, whatever else the letters mean to a shell."""
    action = argparse.ArgumentParser().add_argument("rollout")
    complete_rollouts(action)

    found = action.completer(prefix, argparse.Namespace(root=str(mixed_store)))  # type: ignore[attr-defined]

    assert found == expected
    assert action.completer("", argparse.Namespace(root="~nobody-of-this-name")) == []  # type: ignore[attr-defined]


def test_without_argcomplete(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without argcomplete the command says what to install."""
    monkeypatch.setattr(completion, "find_spec", lambda _: None)

    result = run("completion", "bash")

    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert "pip install 'tokenstore[cli]'" in result.err
