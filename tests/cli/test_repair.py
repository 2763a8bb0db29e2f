"""`tokenstore repair`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.cli.running import Runner
from tests.cli.test_verify import break_some, fill, image


def test_what_was_mended_and_what_is_left_has_a_row(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """A row says what was mended, damage stays with the exit status 1, and a second repair changes nothing."""
    fill(tmp_path)
    size = break_some(tmp_path)

    result = run("repair", "--root", tmp_path, *backend)
    after = image(tmp_path)
    again = run("repair", "--root", tmp_path, *backend)

    rows = [line.split(maxsplit=3) for line in result.out.splitlines()]
    assert result.status == 1
    assert rows[1:4] == [
        ["damaged", "damaged", "0", f"damaged:0+{size}"],
        ["gone", "stale", "0", "mended; gone.tokens.lock"],
        ["torn", "whole", "1", "mended"],
    ]
    assert "2 mended, 1 still need attention" in result.out
    assert "0 mended, 1 still need attention" in again.out
    assert {name: data for name, (_, data) in image(tmp_path).items()} == {
        name: data for name, (_, data) in after.items()
    }
    assert "gone.tokens.lock" not in after


def test_named_rollouts_alone_are_mended(run: Runner, tmp_path: Path) -> None:
    """Only what is named is touched; all of it well is the exit status 0."""
    fill(tmp_path)
    break_some(tmp_path)
    before = image(tmp_path)

    result = run("repair", "torn", "--root", tmp_path)

    after = image(tmp_path)
    assert result.status == 0
    assert {name for name in before if before[name] != after.get(name)} == {"torn.tokens.jsonl"}
    assert (tmp_path / "gone.tokens.lock").exists()


def test_json_says_how_each_is_afterwards(run: Runner, tmp_path: Path) -> None:
    """With `--json` each object tells whether something was done and how it is then."""
    fill(tmp_path)
    break_some(tmp_path)

    result = run("repair", "--json", "--root", tmp_path)

    found = {line["rollout_id"]: line for line in map(json.loads, result.out.splitlines())}
    assert result.status == 1
    assert {name for name, line in found.items() if line["mended"]} == {"torn", "gone"}
    assert {name for name, line in found.items() if not line["is_well"]} == {"damaged"}
    assert found["torn"]["leftovers"] == []


def test_lock_files_stay_with_whole_prompts(run: Runner, tmp_path: Path) -> None:
    """Where stores write whole prompts, a repair leaves lock files."""
    (tmp_path / "gone.tokens.lock").touch()

    assert run("repair", "--prompt-storage", "full", "--root", tmp_path).status == 0
    assert (tmp_path / "gone.tokens.lock").exists()
