"""Leaving a process without closing its store never hangs, and loses only what was not acknowledged."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.loops import LOOPS
from tests.processes.children import calls_in, start

FROM = pytest.mark.parametrize("loop", LOOPS)


def acked(lines: list[str]) -> list[str]:
    """The calls that a process has said were acknowledged."""
    return [line.removeprefix("acked ") for line in lines if line.startswith("acked ")]


def test_used_by_threads(tmp_path: Path) -> None:
    """A program that has used the blocking twins ends at once and in silence, and all is there."""
    with start("exit_after_twins", tmp_path) as child:
        calls = acked(child.finish())

    assert calls_in(tmp_path) == calls == [f"c{number}" for number in range(10)]


@FROM
def test_used_by_a_loop(loop: str, tmp_path: Path) -> None:
    """A program whose loops have used a store that nobody entered ends at once and in silence."""
    with start("exit_after_a_loop", tmp_path, loop) as child:
        calls = acked(child.finish())

    assert calls_in(tmp_path) == calls == ["c0", "c1", "c2"]


def test_with_puts_in_flight(tmp_path: Path) -> None:
    """A program that ends in the middle of puts from daemon threads does not hang, and what was acked is there."""
    with start("exit_in_flight", tmp_path) as child:
        status, lines = child.last_words()

    calls = calls_in(tmp_path)
    assert status == 0
    assert len(acked(lines)) > 5
    assert set(acked(lines)) <= set(calls)
    assert len(calls) == len(set(calls))


@FROM
def test_with_a_loops_puts_in_flight(loop: str, tmp_path: Path) -> None:
    """A loop that ends with its process while puts are on their way to the daemon thread does not hang."""
    with start("exit_a_loop_in_flight", tmp_path, loop) as child:
        calls = acked(child.finish())

    assert "first" in calls
    assert set(calls) <= set(calls_in(tmp_path))


def test_entered_and_never_left(tmp_path: Path) -> None:
    """A program that entered its store and ends its loop without leaving it does not hang."""
    with start("exit_entered", tmp_path) as child:
        calls = acked(child.finish())

    assert "first" in calls
    assert set(calls) <= set(calls_in(tmp_path))


def test_while_a_put_waits_for_a_lock(tmp_path: Path) -> None:
    """A program does not wait at its end for a put that waits for another process."""
    with (tmp_path / "r.tokens.lock").open("a") as file, start("exit_blocked", tmp_path) as child:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = child.finish()

    assert lines == ["waiting"]


def test_after_the_main_thread(tmp_path: Path) -> None:
    """A thread that outlives the main one, and an exit handler, still put."""
    with start("exit_later", tmp_path) as child:
        calls = acked(child.finish())

    assert calls_in(tmp_path) == calls == ["first", *(f"c{number}" for number in range(10)), "last"]


def test_with_a_destructor(tmp_path: Path) -> None:
    """A put in a destructor that runs while the interpreter shuts down raises at once, and the process ends."""
    with start("exit_with_a_destructor", tmp_path) as child:
        lines = child.finish()

    assert lines[0] == "acked first"
    assert lines[1].startswith("late: the interpreter is shutting down")
    assert calls_in(tmp_path) == ["first"]
