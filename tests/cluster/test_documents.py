"""CLUSTER.md and the README are true as far as that can be seen without Ray."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.test_readme import examples_of
from tokenstore import cluster, errors
from tokenstore.cli import _parser

TOP = Path(__file__).parents[2]
TEXT = (TOP / "CLUSTER.md").read_text(encoding="utf-8")


def test_the_commands_are_ones() -> None:
    """Each command line in the text is understood."""
    (block,) = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]

    parsed = [_parser().parse_args(command) for command in commands]

    assert [command[1] for command in commands] == ["up", "status", "down", "check-fs"]
    assert all(callable(arguments.run) for arguments in parsed)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`errors\.(\w+)`", TEXT))))
def test_errors_in_the_text_exist(name: str) -> None:
    """Every error that the text names is one."""
    assert hasattr(errors, name)


def test_the_readme_links_the_page_and_has_an_example() -> None:
    """The README leads to this page, and its short example names what the package gives."""
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    [example] = examples_of("Many machines, on Ray")

    [names] = re.findall(r"from tokenstore\.cluster import (.*)", example)

    assert "[CLUSTER.md](CLUSTER.md)" in readme
    assert set(names.split(", ")) <= set(cluster.__all__)
    assert len(example.strip().splitlines()) <= 20
