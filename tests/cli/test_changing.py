"""`tokenstore freeze`, `mark`, `drop`, `retire`, `delete` and `gc`: what they change, and what they ask before."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import attrs
import pytest

from tests.cli.running import Runner
from tokenstore import TokenCaptureStore


@pytest.fixture
def root(mixed_store: Path, tmp_path: Path) -> Path:
    """A directory with a rollout of every kind."""
    return Path(shutil.copytree(mixed_store, tmp_path / "store"))


def states(run: Runner, root: Path) -> dict[str, str]:
    """Give the state of each rollout."""
    lines = map(json.loads, run("ls", "--json", "--root", root).out.splitlines())
    return {line["rollout_id"]: line["state"] for line in lines}


class Answers(io.StringIO):
    """A terminal at which somebody has typed."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def test_freezing_says_how_each_is(run: Runner, root: Path) -> None:
    """Freezing again is a no-op; a rollout that is not there is an error and is not made."""
    result = run("freeze", "open", "masked", "opne", "--root", root)

    assert result.status == 1
    assert "open: frozen, complete, 3 calls" in result.out
    assert "masked: frozen, incomplete (lost_call:lost)" in result.out
    assert result.err == f"tokenstore: there is no rollout opne in {root}\n"
    found = states(run, root)
    assert found["open"] == "frozen"
    assert "opne" not in found
    again = run("freeze", "open", "--json", "--root", root)
    assert (again.status, json.loads(again.out)["calls"]) == (0, 3)


def test_marking_masks(run: Runner, root: Path) -> None:
    """A mark names its call and counts for a frozen rollout too; a retired one cannot be marked."""
    result = run("mark", "frozen", "--call", "c-9", "--json", "--root", root)

    assert json.loads(result.out) == {"rollout_id": "frozen", "version": 5, "incomplete_reasons": ["marked:c-9"]}
    assert run("mark", "frozen", "--root", root).out == "frozen: incomplete (marked:c-9, marked:), version 6\n"
    assert run("mark", "retired", "--root", root).err == "tokenstore: rollout retired is already retired\n"
    assert run("mark", "nobody", "--root", root).status == 1


@pytest.mark.parametrize("call_id", [" c", "c\n", "c" * 513])
def test_a_mark_names_a_call_or_is_refused(run: Runner, root: Path, call_id: str) -> None:
    """A call id that the store would record as blank is refused before anything is marked for good."""
    result = run("mark", "open", "--call", call_id, "--root", root)

    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert json.loads(run("show", "open", "--json", "--root", root).out)["incomplete"] is False


def test_dropping_what_is_not_there(run: Runner, root: Path) -> None:
    """A rollout that is not there is told as such, with a pair too, and leaves no lock file behind."""
    result = run("drop", "nobody", "--snapshot-id", "s", "--version", 1, "--yes", "--root", root)

    assert (result.status, result.err) == (1, f"tokenstore: there is no rollout nobody in {root}\n")
    assert not list(root.glob("nobody*"))


def test_dropping_wants_the_pair(run: Runner, root: Path) -> None:
    """A pair that is not the rollout's drops nothing, its own does, and without one that of now is taken."""
    stale = run("drop", "frozen", "--snapshot-id", "other", "--version", 4, "--yes", "--root", root)
    assert (stale.status, stale.out) == (1, "")
    assert "nothing was dropped" in stale.err
    assert run("drop", "open", "--yes", "--root", root).err == (
        "tokenstore: rollout open is open; freeze it first, or use retire\n"
    )
    assert run("drop", "frozen", "--version", 4, "--yes", "--root", root).status == 2

    done = run("drop", "frozen", "--yes", "--json", "--root", root)

    assert json.loads(done.out)["dropped"] is True
    assert states(run, root)["frozen"] == "retired"


@pytest.mark.parametrize(("command", "left"), [("retire", "retired"), ("delete", None)])
def test_removing(run: Runner, root: Path, command: str, left: str | None) -> None:
    """What is there is removed, what is not is told and gets no fence."""
    result = run(command, "open", "opne", "--yes", "--root", root)

    assert (result.status, result.out) == (0, "1 removed, 1 had nothing to remove\n")
    assert result.err == "opne: nothing to remove\n"
    found = states(run, root)
    assert found.get("open") == left
    assert "opne" not in found
    gone = json.loads(run(command, "masked", "--yes", "--json", "--root", root).out)
    assert gone == {"removed": ["masked"], "absent": [], "failed": {}}


@pytest.mark.parametrize("command", [("retire", "open"), ("delete", "open"), ("drop", "frozen")])
def test_removal_is_asked_for(
    run: Runner, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, str]
) -> None:
    """On a terminal removal needs a yes; anything else changes nothing."""
    for typed in ("n\n", "", "yo\n"):
        monkeypatch.setattr("sys.stdin", Answers(typed))
        assert run(*command, "--root", root).status == 1
    assert len(TokenCaptureStore(root).read_entries(command[1])) == 3

    monkeypatch.setattr("sys.stdin", Answers("Yes\n"))
    result = run(*command, "--root", root)

    assert result.status == 0
    assert f"{command[0]} {command[1]}" in result.err
    assert TokenCaptureStore(root).read_entries(command[1]) == []


@pytest.mark.parametrize(
    "command", [("retire", "open"), ("delete", "open"), ("drop", "frozen"), ("gc", "--retired-older-than", "0s")]
)
def test_nobody_to_ask(run: Runner, root: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    """Without a terminal and without `--yes` nothing is removed."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    before = states(run, root)

    result = run(*command, "--root", root)

    assert (result.status, result.out) == (1, "")
    assert "give --yes" in result.err
    assert states(run, root) == before


def test_old_fences_are_collected(run: Runner, root: Path) -> None:
    """Only fences older than the age go, by the file system's clock; `--dry-run` changes nothing."""
    store = TokenCaptureStore(root)
    store.retire_now(["masked"])
    day = 86_400
    fence = store.state_path_for("retired")
    os.utime(fence, (fence.stat().st_atime, fence.stat().st_mtime - 3 * day))
    dry = run("gc", "--retired-older-than", "2d", "--dry-run", "--root", root)
    assert (dry.status, dry.out) == (0, "retired\n")
    assert states(run, root)["retired"] == "retired"

    done = run("gc", "--retired-older-than", "2d", "--yes", "--json", "--root", root)

    assert json.loads(done.out) == {"dry_run": False, "deleted": ["retired"], "failed": {}}
    left = states(run, root)
    assert "retired" not in left
    assert (left["masked"], left["frozen"], left["open"]) == ("retired", "frozen", "open")


def test_a_rollout_begun_anew_is_not_collected(run: Runner, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence that another process deletes while gc asks, and a rollout it begins under that id, stays."""
    store = TokenCaptureStore(root)

    def begin_anew(_: str, __: object) -> None:
        store.delete_now(["retired"])
        store.append(attrs.evolve(store.read_entries("open")[0], rollout_id="retired"))

    monkeypatch.setattr("tokenstore.cli.gc.ask", begin_anew)

    result = run("gc", "--retired-older-than", "0s", "--root", root)

    assert result.status == 0
    assert len(store.read_entries("retired")) == 1


@pytest.mark.parametrize("age", ["2", "d", "-1d", "1h 30m", "two days", "", "1e3s", "9" * 400 + "d"])
def test_ages_are_strict(run: Runner, tmp_path: Path, age: str) -> None:
    """What is no age is wrong usage."""
    assert run("gc", f"--retired-older-than={age}", "--yes", "--root", tmp_path).status == 2
