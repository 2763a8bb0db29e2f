"""The command line of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import suite
from benchmarks.harness.suite import Benchmark, Run, Values
from tests.benchmarks.given import OURS, RATIO, benchmark


def failing(_: Run) -> Values:
    """Fail as a contender does that loses entries."""
    raise RuntimeError("an entry was lost")


def loader(**measures: Callable[[Run], Values]) -> Callable[[str], Benchmark]:
    """Give benchmarks by their names."""

    def load(name: str) -> Benchmark:
        made: Any = benchmark(RATIO)
        made.measure = measures[name]
        return made  # type: ignore[no-any-return]

    return load


def test_a_failure_is_told_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a benchmark fails, its error is shown, the others still run, and the exit status is 1."""
    monkeypatch.setattr(suite, "load", loader(latency=failing, growth=lambda _: {OURS: 1.0}))

    status = main(["latency", "growth", "--quick", "--baselines", "--out", str(tmp_path)])

    assert status == 1
    shown = capfd.readouterr()
    assert "an entry was lost" in shown.err
    assert "tokenstore    1.00" in shown.out
    assert list(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["benchmarks"]) == ["growth"]


def test_a_missed_target_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status is 0 if everything ran."""
    monkeypatch.setattr(suite, "load", loader(growth=lambda _: {OURS: 1e9, RATIO.over or OURS: 1.0}))

    assert main(["growth", "--rounds", "2", "--baselines", "--out", str(tmp_path / "new" / "folder")]) == 0


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_to_is_named(
    folder: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where no report can be written, nothing is measured; the folder and the reason are told, and the status is 1."""
    (tmp_path / "file").touch()

    status = main(["growth", "--quick", "--baselines", "--out", str(tmp_path / folder)])

    assert status == 1
    told = capfd.readouterr().err
    assert f"cannot write to {tmp_path / folder} (" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("arguments", [["nonsense"], ["--rounds", "0"], ["--rounds", "x"], ["--nonsense"]])
def test_wrong_usage(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    """An unknown name or option, or no number of rounds, ends with status 2 and says what there is."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage" in capfd.readouterr().err
