"""Several processes, loops and hosts on one directory: serialised, idempotent, nothing lost, nobody starved."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.processes.children import calls_in, start

CALLS = 12


@pytest.mark.parametrize(("one", "other"), [("asyncio", "trio"), ("uvloop", "asyncio")])
def test_two_processes_two_hosts(one: str, other: str, tmp_path: Path) -> None:
    """Two processes, each with both hosts of one object, put the same and other entries: each is there once."""
    with start("share", tmp_path, one, "a", CALLS) as first, start("share", tmp_path, other, "b", CALLS) as second:
        assert first.finish() == second.finish() == []

    calls = calls_in(tmp_path)
    expected = {f"everybody-{number}" for number in range(CALLS)}
    for name, number in product("ab", range(CALLS)):
        expected |= {f"{name}-{number}", f"{name}-thread-{number}"}
    assert len(calls) == len(set(calls))
    assert set(calls) == expected


def test_nobody_starves(tmp_path: Path) -> None:
    """Two processes that put into one rollout without a pause both get on."""
    with start("hammer", tmp_path, "trio", "a") as first, start("hammer", tmp_path, "asyncio", "b") as second:
        assert [child.line() for child in (first, second)] == ["ready", "ready"]
        for child in (first, second):
            child.say()
        lines = [child.line() for _ in range(24) for child in (first, second)]
        for child in (first, second):
            child.say()
        lines += first.finish() + second.finish()

    calls = calls_in(tmp_path)
    assert {line.removeprefix("acked ") for line in lines} <= set(calls)
    assert len(calls) == len(set(calls))
