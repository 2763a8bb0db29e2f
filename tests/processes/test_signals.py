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
