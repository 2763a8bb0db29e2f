"""OPERATING.md is true: its tables name what there is, and its example runs as it stands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.test_readme import run_example
from tokenstore import TokenCaptureSnapshot, TokenCaptureStore
from tokenstore.cli import common, main
from tokenstore.metrics import MASKED, METRICS, PREFIX
from tokenstore.view import Note

TEXT = (Path(__file__).parents[1] / "OPERATING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Give a section by its title."""
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_code_is_explained() -> None:
    """Each reason code and each note has a row, and there is no other."""
    codes = re.findall(r"^\| `([a-z_]+)(?::[^`]*)?` \|", section("Reason codes"), re.MULTILINE)
    source = Path(sys.modules[TokenCaptureSnapshot.__module__].__file__ or "").read_text(encoding="utf-8")
    said = source.split('"""Why it is incomplete: ')[1].split('"""')[0]

    known = re.findall(r"`([a-z_]+)(?::[^`]*)?`", said)

    assert sorted(codes) == sorted([*known, *get_args(Note)])


def test_every_metric_is_explained() -> None:
    """Each metric has its place in the table, with its kind, and there is no other."""
    rows = re.findall(r"^\| (`.*?) \| ([a-z, ]+) \|", section("Metrics"), re.MULTILINE)

    named = {name for cells, _ in rows for name in re.findall(r"`([a-z_]+)", cells)}

    assert named == {metric.prometheus.removeprefix(PREFIX) for metric in (*METRICS, MASKED)}


def test_every_exit_status_is_explained() -> None:
    """The table of exit statuses has those of the command line."""
    stated = {int(status) for status in re.findall(r"^\| (\d+) \|", section("At a glance"), re.MULTILINE)}

    assert stated == {value for name, value in vars(common).items() if name.startswith("EXIT_")}


def test_the_example_runs(tmp_path: Path) -> None:
    """The example scrapes a store and writes the dashboard."""
    pytest.importorskip("prometheus_client")
    (example,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)

    assert "tokenstore_store_puts_total 0.0" in run_example(example, tmp_path)
    assert (tmp_path / "dashboard.json").stat().st_size > 1000


def test_the_commands_are_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command line in the text is understood, whatever it finds."""
    (block,) = re.findall(r"^```sh\n(.*?)^```$", section("At a glance"), re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("tokenstore")]
    inline = re.findall(r"`tokenstore (ls [^|`]*?) \|", section("Retention"))
    root = tmp_path / "captures"
    TokenCaptureStore(root).freeze_now("ROLLOUT")

    commands = [words[1:] for words in lines] + [line.split() for line in inline]
    statuses = []
    for command in commands:
        words = [
            str(tmp_path / word) if word.endswith(".html") else word for word in command if "tokenizer" not in word
        ]
        more = ["--count", "1", "--interval", "0.01s"] if command[0] == "top" else []
        statuses.append(main([*words, *more, "--root", str(root)]))

    assert len(commands) == 9
    assert statuses == [0] * 9
    assert capsys.readouterr().err == ""
