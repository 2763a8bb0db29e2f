"""`tokenstore ls`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.cli.running import Runner
from tokenstore import TokenCaptureStore
from tokenstore.testing.rollouts import agent_rollout


def fill(root: Path) -> None:
    """Make an open, a frozen, a masked and a retired rollout."""
    store = TokenCaptureStore(root)
    for rollout_id in ("open", "frozen", "masked", "retired"):
        for entry in agent_rollout(rollout_id, turns=3, first_prompt=300):
            store.append(entry)
    store.freeze_now("frozen")
    store.retire_now(["retired"])
    store.incomplete_path_for("masked").write_text("lost\n")


def test_a_table_names_every_rollout(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Each rollout has a line with its state, sorted by id, and a last line adds up."""
    fill(tmp_path)

    result = run("ls", "--root", tmp_path, *backend)

    rows = [line.split() for line in result.out.splitlines()]
    assert (result.status, result.err) == (0, "")
    assert rows[0] == ["rollout", "state", "incomplete", "calls", "size", "age"]
    assert [row[:4] for row in rows[1:5]] == [
        ["frozen", "frozen", "no", "3"],
        ["masked", "open", "yes", "3"],
        ["open", "open", "no", "3"],
        ["retired", "retired", "no", "0"],
    ]
    assert "4 rollouts" in result.out
    assert "2 open, 1 frozen, 1 retired" in result.out


def test_json_has_exact_numbers(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """With `--json` each rollout is one object with the bytes of its file."""
    fill(tmp_path)

    result = run("ls", "--json", "--root", tmp_path, *backend)

    found = {line["rollout_id"]: line for line in map(json.loads, result.out.splitlines())}
    size = (tmp_path / "open.tokens.jsonl").stat().st_size
    assert found.keys() == {"open", "frozen", "masked", "retired"}
    assert found["open"] | {"age": 0} == {
        "rollout_id": "open",
        "state": "open",
        "incomplete": False,
        "calls": 3,
        "bytes": size,
        "age": 0,
    }
    assert found["masked"]["incomplete"]


def test_listing_changes_nothing(run: Runner, tmp_path: Path) -> None:
    """No file is made, changed or removed by a listing."""
    fill(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    run("ls", "--root", tmp_path)

    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_an_empty_root_is_no_error(run: Runner, tmp_path: Path) -> None:
    """A directory without rollouts says so; as JSON it is nothing."""
    assert run("ls", "--root", tmp_path).out == f"0 rollouts in {tmp_path}: 0 open, 0 frozen, 0 retired, 0 B\n"
    assert run("ls", "--json", "--root", tmp_path) == (0, "", "")
