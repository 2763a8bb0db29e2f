"""SIGTERM and Ctrl-C in the middle of 64 puts: what was acknowledged is there."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.loops import LOOPS
from tests.processes.children import calls_in, start

HOWS = [*(f"entered-{loop}" for loop in LOOPS), *(f"open-{loop}" for loop in LOOPS), "threads"]
CASES = [*(("SIGINT", how) for how in HOWS), ("SIGTERM", "entered-asyncio"), ("SIGTERM", "open-trio")]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_interrupted_puts(name: str, how: str, tmp_path: Path) -> None:
    """A process that is ended or interrupted while it puts ends at once, has lost nothing acked and holds no lock."""
    with start("put_until_stopped", tmp_path, how) as child:
        acked = {child.line() for _ in range(100)}
        child.process.send_signal(getattr(signal, name))
        status, lines = child.last_words()

    acked |= {line for line in lines if line.startswith("acked ")}
    calls = calls_in(tmp_path)
    assert {line.removeprefix("acked ") for line in acked} <= set(calls)
    assert len(calls) == len(set(calls))
    assert (status, lines[-1:]) == (0, ["interrupted"]) if name == "SIGINT" else status == -signal.SIGTERM


def test_a_handler_that_puts(tmp_path: Path) -> None:
    """A signal handler may put between any two lines of a put on the same thread, the first one included."""
    with start("put_between_any_two_lines", tmp_path) as child:
        lines, calls = map(int, child.finish()[-1].split())

    assert lines > 50
    assert len(calls_in(tmp_path)) == calls == 3 * lines - 1


def test_a_handler_that_puts_at_the_start(tmp_path: Path) -> None:
    """A signal handler that puts whenever a thread was started uses the thread that starts, and not ever more."""
    with start("put_whenever_a_thread_starts", tmp_path) as child:
        acked = child.finish()

    assert len(acked) > 1
    assert acked[-1] == "acked first"
    assert sorted(f"acked {call_id}" for call_id in calls_in(tmp_path)) == sorted(acked)
