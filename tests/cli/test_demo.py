"""`tokenstore demo`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.running import COMMAND, Runner
from tokenstore import TokenCaptureStore, TokenEntry
from tokenstore.cli import demo
from tokenstore.cli.demo import LATE_CALL, Plan, Report


class ForgetfulStore(TokenCaptureStore):
    """Loses one call of one rollout, and takes late ones."""

    async def put(self, entry: TokenEntry) -> None:
        """Store what it does not forget."""
        if entry.model_call_id != LATE_CALL and not entry.model_call_id.startswith("0002"):
            await super().put(entry)


def test_everything_holds(run: Runner, tmp_path: Path, backend: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo measures and checks, ends with 0, and removes its temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    result = run("demo", "--rollouts", 5, "--json", *backend)

    shown = json.loads(result.out)
    assert (result.status, result.err) == (0, "")
    assert shown["ok"]
    assert shown["rollouts"] == 5
    assert shown["puts"] == 4 + 5 + 6 + 7 + 8
    assert 0 < shown["put_p50_seconds"] <= shown["put_p99_seconds"] <= shown["seconds"]
    assert shown["bytes_on_disk"] < shown["bytes_as_whole_prompts"]
    assert [check["name"] for check in shown["checks"]] == [
        "read back equal",
        "lost call masked",
        "others complete",
        "late write refused",
        "dropped",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_root_of_your_own_is_left_as_it_was(run: Runner, tmp_path: Path) -> None:
    """In a given directory other rollouts are not touched and none of the demo's are left."""
    TokenCaptureStore(tmp_path).freeze_now("mine")

    first = run("demo", "--rollouts", 1, "--root", tmp_path)
    second = run("demo", "--rollouts", 1, "--root", tmp_path)

    assert (first.status, second.status) == (0, 0)
    assert "yes: 4 of 4 calls" in first.out
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"mine"}


def test_a_promise_that_does_not_hold_is_named(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a store that forgets, the exit status is 1 and stderr names what did not hold."""
    monkeypatch.setattr(demo, "TokenCaptureStore", ForgetfulStore)

    result = run("demo", "--rollouts", 2)

    assert result.status == 1
    assert "did not hold: read back equal (0 of 9 calls)" in result.err
    assert "did not hold: others complete (0 of 1 rollouts)" in result.err
    assert "did not hold: late write refused (it was accepted)" in result.err
    assert "NO: 0 of 9 calls" in result.out
    assert "yes: 2 of 2 rollouts, 0 with bytes left" in result.out


def test_many_agents_run_in_waves(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rollouts than run at once are run one wave after the other, none is left out."""
    monkeypatch.setattr(demo, "WAVE", 3)

    assert json.loads(run("demo", "--rollouts", 7, "--json", "--root", tmp_path).out)["puts"] == sum(range(4, 11))


def test_the_seed_decides_what_is_written() -> None:
    """Equal seeds make equal calls but new ids, so that a directory can be used again."""
    one, same, other = Plan(1, 3), Plan(1, 3), Plan(1, 4)

    assert one.rollout_ids() != same.rollout_ids()
    assert one.calls(0)[0].prompt_token_ids == same.calls(0)[0].prompt_token_ids
    assert one.calls(0)[0].prompt_token_ids != other.calls(0)[0].prompt_token_ids


def test_percentiles_are_by_nearest_rank() -> None:
    """Half and 99 of a hundred latencies are the middle and the next to last."""
    report = Report(Plan(1, 0), "", latencies=[number / 100 for number in range(100, 0, -1)])

    assert (report.latency(0.5), report.latency(0.99)) == (0.51, 1.0)


def test_a_terminal_shows_a_bar_and_a_table(tmp_path: Path) -> None:
    """On a terminal the demo draws a progress bar while it runs and a framed table at the end."""
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "TMPDIR": str(tmp_path)}

    process = subprocess.Popen([*COMMAND, "demo", "--rollouts", "3"], stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    shown = b""
    try:
        while chunk := os.read(terminal, 4096):
            shown += chunk
    except OSError:  # a terminal whose other side has closed answers EIO
        pass
    os.close(terminal)

    assert process.wait() == 0
    assert b"agents" in shown
    assert "━".encode() in shown
    assert b"read back equal" in shown
    assert b"15 of 15 calls" in shown
