"""Forks and spawned workers: a child has no store of its parent's, and no lock of its."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from tests.loops import PATIENCE
from tests.processes.children import calls_in, start


def is_locked(path: Path) -> bool:
    """Whether some process holds a lock file."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("how", ["thread", "loop"])
def test_a_child_is_told(how: str, tmp_path: Path) -> None:
    """A child that uses its parent's store is told to build one of its own, which works; the parent's goes on."""
    with start("fork_and_use", tmp_path, how) as child:
        lines = child.finish()

    assert lines[1].startswith("child: the store belongs to the process that forked this one; build one of your own")
    assert [lines[0], *lines[2:]] == ["acked before", "acked own", "acked after"]
    assert calls_in(tmp_path) == ["before", "own", "after"]


def test_a_childs_end_does_not_give_the_parents_lock_back(tmp_path: Path) -> None:
    """A child that was forked in the middle of a critical section and ends leaves the parent its lock."""
    lock = tmp_path / "r.tokens.lock"
    with start("fork_in_a_section", tmp_path) as parent:
        assert parent.line() == "acked before"
        assert parent.line().startswith("child ")
        parent.say()
        assert parent.line() == "child ended"
        held = is_locked(lock)
        parent.say()
        lines = parent.finish()

    assert held
    assert lines == ["acked held"]
    assert calls_in(tmp_path) == ["before", "held"]
    assert not is_locked(lock)


@pytest.mark.parametrize("how", ["fork_in_a_section", "fork_while_opening"])
def test_a_child_does_not_keep_a_dead_parents_lock(how: str, tmp_path: Path) -> None:
    """A child that lives on after its parent was killed in a critical section does not hold the lock."""
    lock = tmp_path / "r.tokens.lock"
    with start(how, tmp_path) as parent:
        assert parent.line() == "acked before"
        pid = int(parent.line().split()[1])
        held = is_locked(lock)
        parent.process.kill()
        parent.process.wait()
        end = time.monotonic() + PATIENCE
        while is_locked(lock) and time.monotonic() < end:
            time.sleep(0.001)
        alive = Path(f"/proc/{pid}").exists()
        calls = calls_in(tmp_path)
        parent.say()

    assert held
    assert alive
    assert calls in (["before"], ["before", "held"])
    assert not is_locked(lock)
    assert os.getpid() != pid


def test_spawned_workers(tmp_path: Path) -> None:
    """Workers that multiprocessing spawns build stores of their own on the same directory."""
    with start("spawn", tmp_path) as child:
        lines = child.finish()

    calls = calls_in(tmp_path)
    assert len(lines) == len(calls) == 12
    assert {line.removeprefix("acked ") for line in lines} == set(calls)


def test_the_first_call_imports_nothing(tmp_path: Path) -> None:
    """The store's thread imports nothing: a child forked meanwhile would wait for ever for the lock of that import."""
    with start("first_imports", tmp_path) as child:
        lines = child.finish()

    assert lines == ["acked first", "imported"]
