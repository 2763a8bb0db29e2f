"""Repeating a benchmark."""

from __future__ import annotations

from pathlib import Path

import attrs

from benchmarks.harness.rounds import repeat
from benchmarks.harness.suite import Run, Target, Values
from tests.benchmarks.given import DISK, OURS, RATIO, outcome


@attrs.define
class Recorder:
    """A benchmark that leaves a file behind and notes what it was given."""

    TITLE: str = ""
    PLOTS: tuple[str, ...] = ()
    runs: list[Run] = attrs.field(factory=list)
    found: list[list[Path]] = attrs.field(factory=list)

    def targets(self) -> list[Target]:
        """State one target."""
        return [RATIO]

    def measure(self, run: Run) -> Values:
        """Note the run and what was in its folder."""
        self.runs.append(run)
        self.found.append(list(run.folder.iterdir()))
        run.place().write_bytes(b"left behind")
        return {OURS: float(run.number)}


def test_each_round_has_an_empty_folder(tmp_path: Path) -> None:
    """Rounds are numbered, each has an empty folder of its own, and nothing is left of it."""
    recorder = Recorder()

    result = repeat("name", recorder, [], folder=tmp_path, rounds=3, quick=True, say=str)

    assert result.of(OURS) == [0.0, 1.0, 2.0]
    assert recorder.found == [[], [], []]
    assert len({run.folder for run in recorder.runs}) == 3
    assert list(tmp_path.iterdir()) == []


def test_an_outcome_gives_medians() -> None:
    """Of each quantity that any round measured, the median over those that did."""
    result = outcome(rounds=({OURS: 1.0}, {OURS: 3.0, DISK: 7.0}))

    assert {key: result.middle(key) for key in result.keys} == {OURS: 2.0, DISK: 7.0}
