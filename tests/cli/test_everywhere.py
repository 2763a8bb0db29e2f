"""Every sub-command on every kind of directory: the right status, no traceback, nothing on stdout but the result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.cli.running import Run, Runner
from tests.cli.stores import recorded, reference, without_rights
from tokenstore import TokenCaptureStore, TokenEntry

READING = {
    "ls": ["ls", "--sort", "size"],
    "stats": ["stats"],
    "top": ["top", "--count", "1", "--interval", "0.01s"],
    "verify": ["verify"],
    "view --all": ["view", "--all", "-o", "{out}"],
}
"""Commands that look at a whole directory."""
CHANGING = {
    "freeze": ["freeze", "{rollout}"],
    "mark": ["mark", "{rollout}"],
    "drop": ["drop", "{rollout}", "--yes"],
    "retire": ["retire", "{rollout}", "--yes"],
    "delete": ["delete", "{rollout}", "--yes"],
    "gc": ["gc", "--retired-older-than", "0s", "--yes"],
    "repair": ["repair"],
}
ONE = {"show": ["show", "{rollout}"], "view": ["view", "{rollout}", "-o", "{out}"]}
ALL = {**READING, **ONE, **CHANGING}


@pytest.fixture
def go(run: Runner, tmp_path: Path) -> Callable[..., Run]:
    """Run a command on a directory, with and without JSON, and see that it behaves."""

    def go(command: list[str], root: Path, rollout: str = "r", *options: str) -> Run:
        words = [word.format(rollout=rollout, out=tmp_path / "page.html") for word in command]
        result = run(*words, *options, "--root", root)
        assert "Traceback" not in result.err
        assert result.status in (0, 1)
        if "--json" in options:
            for line in result.out.splitlines():
                json.loads(line)
        return result

    return go


def small(number: int) -> TokenEntry:
    """Make a small call of a rollout of its own."""
    return TokenEntry(
        rollout_id=f"r{number:05d}",
        model_call_id="c",
        prompt_token_ids=[1, 2, 3],
        generation_token_ids=[4],
        generation_log_probs=[-0.5],
    )


@pytest.mark.kernel  # twelve commands on 58 rollouts, twice
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_recorded_data(go: Callable[..., Run], run: Runner, tmp_path: Path, options: tuple[str, ...]) -> None:
    """What real engines left is listed, shown, pictured, frozen and removed."""
    root = tmp_path / "store"
    assert run("ingest", *recorded(root), "--root", root).status == 0
    for command in [*READING.values(), *ONE.values()]:
        assert go(command, root, "workplace-3-0", *options).status == 0
    shown = json.loads(go(ONE["show"], root, "workplace-3-0", "--json").out)

    assert len(shown["calls"]) == 6
    assert [go(CHANGING[name], root, "workplace-3-0", *options).status for name in ("freeze", "mark", "drop")] == [
        0
    ] * 3
    assert [go(CHANGING[name], root, "miniswe-0", *options).status for name in ("retire", "delete", "gc")] == [0] * 3
    assert json.loads(go(READING["stats"], root, "", "--json").out)["states"]["retired"]["rollouts"] == 0


@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.kernel), ("--json",)])
def test_a_directory_of_the_reference(go: Callable[..., Run], tmp_path: Path, options: tuple[str, ...]) -> None:
    """What the reference wrote is read and changed; its fences are an answer and its torn tails are told."""
    root = tmp_path / "store"
    reference(root)
    for name, command in READING.items():
        assert go(command, root, "", *options).status == (1 if name == "verify" else 0), name
    statuses = {name: go(ONE["show"], root, name, *options).status for name in ("open", "torn", "dropped", "marked")}
    pages = {name: go(ONE["view"], root, name, *options).status for name in ("open", "torn", "dropped", "marked")}

    assert set(statuses.values()) == {0}
    assert pages == {"open": 0, "torn": 0, "dropped": 1, "marked": 0}
    assert go(CHANGING["repair"], root, "", *options).status == 0
    assert go(READING["verify"], root, "", *options).status == 0
    done = {name: go(CHANGING[name], root, "frozen", *options).status for name in ("freeze", "mark", "drop", "delete")}
    assert set(done.values()) == {0}
    assert go(CHANGING["freeze"], root, "retired", *options).status == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_empty_directory(go: Callable[..., Run], tmp_path: Path, options: tuple[str, ...]) -> None:
    """In an empty directory looking is well, and what names a rollout is told that there is none; none is made."""
    root = tmp_path / "store"
    root.mkdir()
    named = {"freeze", "mark", "drop", "show", "view"}

    statuses = {name: go(command, root, "r", *options).status for name, command in ALL.items()}

    assert statuses == {name: int(name in named) for name in ALL}
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_directory_without_permission(go: Callable[..., Run], tmp_path: Path, options: tuple[str, ...]) -> None:
    """A directory that may not be entered is an error of one line for every command, and is left as it was."""
    root = tmp_path / "store"
    TokenCaptureStore(root).append(small(1))
    root.chmod(0o000)
    tmp_path.chmod(0o755)

    with without_rights():
        results = {name: go(command, root, "r00001", *options) for name, command in ALL.items()}

    root.chmod(0o700)
    assert {name: (result.status, result.out) for name, result in results.items()} == dict.fromkeys(ALL, (1, ""))
    assert {result.err.count("\n") for result in results.values()} == {1}
    assert len(TokenCaptureStore(root).read_entries("r00001")) == 1


async def many(root: Path, count: int) -> None:
    """Make many rollouts of one call, a hundredth of them masked."""
    async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
        limit = anyio.CapacityLimiter(256)

        async def one(number: int) -> None:
            async with limit:
                await store.put(small(number))
                if number % 100 == 0:
                    await store.mark_incomplete(f"r{number:05d}", "c")

        for number in range(count):
            tasks.start_soon(one, number)


@pytest.mark.kernel
@pytest.mark.timeout(600)
def test_10_000_rollouts(
    go: Callable[..., Run], run: Runner, memory_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 10,000 rollouts every command gives the right numbers, and says how long it took."""
    root = memory_path / "store"
    anyio.run(many, root, 10_000)
    took = {}
    for name, command in ALL.items():
        began = time.perf_counter()
        assert go(command, root, "r00007", "--json").status == 0, name
        took[name] = f"{time.perf_counter() - began:.2f} s"
    with capsys.disabled():
        print(f"10,000 rollouts: {took}")  # noqa: T201 - a measurement

    stats = json.loads(run("stats", "--json", "--root", root).out)
    assert (stats["states"]["open"]["rollouts"], stats["states"]["open"]["incomplete"]) == (9_999, 100)
    assert stats["incomplete_reasons"] == {"marked": 100}
    chosen = run("ls", "--ids", "--incomplete", "--root", root).out.split()
    assert chosen == [f"r{number:05d}" for number in range(0, 10_000, 100)]
    assert run("retire", *chosen, "--yes", "--root", root).out == "100 removed, 0 had nothing to remove\n"
    assert (
        len(json.loads(run("gc", "--retired-older-than", "0s", "--yes", "--json", "--root", root).out)["deleted"])
        == 100
    )
