"""Targets, and the modules that are benchmarks."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

import benchmarks
from benchmarks.harness import suite
from benchmarks.harness.suite import Run, Target
from tests.benchmarks.given import DISK, OURS, RATIO, ROUNDS

FOLDER = Path(benchmarks.__file__).parent


def test_the_median_of_paired_ratios_counts() -> None:
    """A target holds by the median of the rounds' own ratios, not by a ratio of medians."""
    assert RATIO.figures(ROUNDS) == [1.5, 3.0, 1.25]

    assert attrs.evolve(RATIO, at_most=1.5).holds(ROUNDS) is True
    assert attrs.evolve(RATIO, at_most=1.49).holds(ROUNDS) is False


def test_a_target_points_one_way() -> None:
    """At least means that more is better, also on the limit itself."""
    assert Target(text="", value=OURS, at_least=5.0).holds(ROUNDS) is True
    assert Target(text="", value=OURS, at_least=5.1).holds(ROUNDS) is False


@pytest.mark.parametrize("values", [{OURS: 3.0}, {DISK: 3.0}, {}, {OURS: 3.0, DISK: 0.0}])
def test_what_was_not_measured_neither_holds_nor_misses(values: suite.Values) -> None:
    """Without both of its values a target has no figure and no verdict."""
    assert RATIO.figures([values]) == []
    assert RATIO.holds([values]) is None


def test_a_target_without_a_limit_is_a_mistake() -> None:
    """A target must have one of the limits."""
    with pytest.raises(ValueError, match="has no limit"):
        Target(text="", value=OURS).holds(ROUNDS)


@pytest.mark.parametrize("name", suite.BENCHMARKS)
def test_every_benchmark_states_its_targets(name: str) -> None:
    """Each registered module has a title, quantities to plot, and targets that name the store and differ."""
    module = suite.load(name)
    targets = module.targets()

    assert module.TITLE
    assert module.PLOTS
    assert targets
    assert all(target.limit > 0 for target in targets)
    assert len({target.text for target in targets}) == len(targets)


def test_every_module_is_registered_and_explained() -> None:
    """Each module of the folder is registered, and has a line in the README's table."""
    modules = {path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_")}
    explained = re.findall(r"^\| `(\w+)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(suite.BENCHMARKS) == modules
    assert set(explained) == modules


def test_nobody_always_comes_first() -> None:
    """Over as many rounds as there are contenders, each comes first once."""
    rounds = [Run(folder=Path(), number=number, quick=False, contenders=()) for number in range(3)]

    assert [run.turn("abc") for run in rounds] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]


def test_places_are_different() -> None:
    """Each place to write is another one."""
    run = Run(folder=Path("folder"), number=0, quick=True, contenders=())

    assert run.place() != run.place()
