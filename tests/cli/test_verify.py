"""`tokenstore verify`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, Runner
from tests.samples import entry
from tokenstore import TokenCaptureStore


def fill(root: Path) -> None:
    """Make a whole, a masked and a retired rollout, all well."""
    store = TokenCaptureStore(root)
    for rollout_id in ("whole", "masked", "retired"):
        store.append(entry(rollout_id=rollout_id))
    store.retire_now(["retired"])
    (root / "masked.tokens.incomplete").write_text("lost\n", encoding="utf-8")


def break_some(root: Path) -> int:
    """Damage a rollout, leave a torn line in another, and the lock of one that is gone; tell a line's length."""
    store = TokenCaptureStore(root)
    for rollout_id in ("damaged", "torn"):
        store.append(entry(rollout_id=rollout_id))
    damaged = root / "damaged.tokens.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b"hello", b"hellO"))
    with (root / "torn.tokens.jsonl").open("ab") as file:
        file.write(b"{")
    (root / "gone.tokens.lock").touch()
    return damaged.stat().st_size


def image(root: Path) -> dict[str, tuple[int, bytes]]:
    """All files with their times and bytes."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.iterdir()}


def test_a_directory_that_is_well_is_one_line(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Where nothing needs attention, only the totals are shown, and the exit status is 0."""
    fill(tmp_path)

    result = run("verify", "--root", tmp_path, *backend)

    assert result == (0, f"1 whole, 1 masked, 1 retired; 2 calls in {tmp_path}: all well\n", "")


def test_what_needs_attention_has_a_row(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Each rollout or file that needs attention has a row with reasons and offsets, and the exit status is 1."""
    fill(tmp_path)
    size = break_some(tmp_path)
    length = len((tmp_path / "torn.tokens.jsonl").read_bytes()) - 1

    result = run("verify", "--root", tmp_path, *backend)

    rows = [line.split(maxsplit=3) for line in result.out.splitlines()]
    assert (result.status, result.err) == (1, "")
    assert rows[1:4] == [
        ["damaged", "damaged", "0", f"damaged:0+{size}"],
        ["gone", "stale", "0", "gone.tokens.lock"],
        ["torn", "whole", "1", f"left over: unterminated:{length}+1"],
    ]
    assert result.out.endswith(
        f"2 whole, 1 masked, 1 damaged, 1 retired, 1 stale; 3 calls in {tmp_path}: 3 need attention\n"
    )


def test_json_has_an_object_for_everything(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """With `--json` each rollout and each stale file is one object, well or not."""
    fill(tmp_path)
    break_some(tmp_path)

    result = run("verify", "--json", "--root", tmp_path, *backend)

    found = {line["rollout_id"]: line for line in map(json.loads, result.out.splitlines())}
    assert (result.status, result.err) == (1, "")
    assert found["masked"] == {
        "health": "masked",
        "rollout_id": "masked",
        "file": None,
        "calls": 1,
        "reasons": ["marked:lost"],
        "leftovers": [],
        "mended": False,
        "is_well": True,
    }
    assert {name for name, line in found.items() if not line["is_well"]} == {"damaged", "torn", "gone"}
    assert found["gone"]["file"] == "gone.tokens.lock"


def test_nothing_is_changed(run: Runner, tmp_path: Path) -> None:
    """No file is made, changed or removed."""
    fill(tmp_path)
    break_some(tmp_path)
    before = image(tmp_path)

    run("verify", "--root", tmp_path)
    run("verify", "unknown", "torn", "--root", tmp_path)

    assert image(tmp_path) == before


def test_rollouts_may_be_named(run: Runner, tmp_path: Path) -> None:
    """Only the rollouts that are named count, and one that is not there needs attention."""
    fill(tmp_path)
    break_some(tmp_path)

    assert run("verify", "whole", "masked", "--root", tmp_path).status == 0
    assert run("verify", "whole", "torn", "--root", tmp_path).status == 1
    unknown = run("verify", "unknown", "--root", tmp_path)
    assert unknown.status == 1
    assert "absent" in unknown.out


def test_lock_files_stay_out_with_whole_prompts(run: Runner, tmp_path: Path) -> None:
    """Where stores write whole prompts, a lock file without a rollout is in order."""
    (tmp_path / "gone.tokens.lock").touch()

    assert run("verify", "--root", tmp_path).status == 1
    assert run("verify", "--prompt-storage", "full", "--root", tmp_path).status == 0


def test_an_empty_directory_is_well(run: Runner, tmp_path: Path) -> None:
    """Nothing is well; as JSON it is nothing."""
    assert run("verify", "--root", tmp_path) == (0, f"nothing; 0 calls in {tmp_path}: all well\n", "")
    assert run("verify", "--json", "--root", tmp_path) == (0, "", "")


@pytest.mark.parametrize("command", ["verify", "repair"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["a/b"], (1, "rollout id")),
        (["r", "--root", "/nowhere/at/all"], (1, "does not exist")),
        (["--bad"], (2, "--bad")),
    ],
)
def test_wrong_usage_is_told(
    run: Runner, tmp_path: Path, command: str, arguments: Sequence[str], told: tuple[int, str]
) -> None:
    """An id that cannot be one, a root that is not there and an unknown option are told, and nothing is made."""
    result = run(command, "--root", tmp_path, *arguments)

    status, said = told
    assert (result.status, result.out) == (status, "")
    assert said in result.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["verify", pytest.param("repair", marks=pytest.mark.kernel)])
def test_a_terminal_shows_a_bar_and_a_table(tmp_path: Path, command: str) -> None:
    """On a terminal a progress bar runs, and the rows stand in a framed table."""
    fill(tmp_path)
    break_some(tmp_path)
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}

    process = subprocess.Popen([*COMMAND, command, "--root", tmp_path], stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # a terminal whose other side has closed answers EIO
        pass
    os.close(terminal)

    assert process.wait() == 1
    assert f"{command.removesuffix('y')}".encode() in shown
    assert "━".encode() in shown
    assert b"damaged:0+" in shown
