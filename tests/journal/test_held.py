"""How long a process has kept the lock from others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.journal.workbench import Process
from tests.samples import entry
from tokenstore.journal import held
from tokenstore.journal.lockfile import LockBusyError
from tokenstore.testing import SimulatedDisk


class Clock:
    """Tells the given times, one after the other."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def __call__(self) -> float:
        """Tell the next."""
        return next(self._times)


@pytest.mark.parametrize(
    ("times", "turn"),
    [
        ([1.0, 1.03], 0.03),
        ([1.0, 1.03, 1.035, 1.06], 0.055),
        ([1.0, 1.03, 1.04, 1.05], 0.01),
        ([1.0, 1.03, 1.031, 1.04, 2.0, 2.001], 0.001),
    ],
)
def test_sections_with_hardly_a_gap_are_one_turn(
    times: Sequence[float], turn: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how long the lock was held; a gap in which whoever waits has tried begins anew."""
    process = Process(SimulatedDisk())
    monkeypatch.setattr(held, "monotonic", Clock(*times))
    for number in range(len(times) // 2):
        process.put(entry(f"c{number}"))

    assert process.journal.turn_seconds == pytest.approx(turn)


def test_a_lock_that_was_not_taken_was_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try of a busy lock is no part of a turn."""
    disk = SimulatedDisk()
    holder, process = Process(disk), Process(disk)
    holder.put(entry("c0"))
    monkeypatch.setattr(held, "monotonic", Clock(1.0, 1.02, 9.0, 9.03))
    with holder.journal._section(), pytest.raises(LockBusyError):
        process.put(entry("c1"))
    process.put(entry("c1"))

    assert process.journal.turn_seconds == pytest.approx(0.03)
