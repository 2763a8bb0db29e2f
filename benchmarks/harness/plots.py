"""Plots of what was measured: bars of the medians with the smallest and largest round, and one of all targets."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness.rounds import Outcome
from benchmarks.harness.statistics import median
from benchmarks.harness.suite import BARE, DISK, OURS, Key, Target, installed
from benchmarks.harness.table import cases, figure, values_of

STORE, LIMITS, OTHERS, MISSED = "#1f6fb2", "#9a9a9a", "#d9a25f", "#b3261e"
"""Colours: the store, what nobody can beat, what a user would pick instead, and what is missed."""
LEGEND = "blue: the store, grey: limits, tan: what a user would pick instead\nwhiskers: smallest and largest round"


def draw(folder: Path, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Draw a file for each benchmark, and one of all targets under the empty name; nothing without matplotlib."""
    if not outcomes or not installed("matplotlib"):
        return {}
    import_module("matplotlib").use("agg")
    figures = {outcome.name: _bars(outcome) for outcome in outcomes}
    figures[""] = _targets(outcomes)
    drawn = {}
    for name, picture in figures.items():
        if picture is not None:
            drawn[name] = f"{name or 'targets'}.png"
            picture.savefig(folder / drawn[name], dpi=110)
            import_module("matplotlib.pyplot").close(picture)
    return drawn


def _bars(outcome: Outcome) -> Any:
    """Small multiples: a row for each kind of work, a column for each quantity worth it."""
    panels = [
        (case, [what for what in outcome.benchmark.PLOTS if _rows(outcome, case, what)]) for case in cases(outcome)
    ]
    panels = [(case, whats) for case, whats in panels if whats]
    if not panels:
        return None
    heights = [1.0 + 0.3 * max(len(_rows(outcome, case, what)) for what in whats) for case, whats in panels]
    columns = max(len(whats) for _, whats in panels)
    picture, axes = import_module("matplotlib.pyplot").subplots(
        len(panels),
        columns,
        squeeze=False,
        figsize=(2.5 + 4.2 * columns, sum(heights) + 0.5),
        height_ratios=heights,
        layout="constrained",
    )
    picture.suptitle(f"{outcome.benchmark.TITLE}\n{LEGEND}", fontsize=9.5)
    for row, (case, whats) in zip(axes, panels, strict=True):
        for axis in row[len(whats) :]:
            axis.set_visible(False)
        for axis, what in zip(row, whats, strict=False):
            _panel(axis, outcome, case, what)
    return picture


def _rows(outcome: Outcome, case: str, what: str) -> list[Key]:
    """What is drawn in a panel, in the order of the tables."""
    whos = [row[0] for row in values_of(outcome, case)[1:]]
    return [key for who in whos if outcome.of(key := Key(case, who, what))]


def _panel(axis: Any, outcome: Outcome, case: str, what: str) -> None:
    keys = _rows(outcome, case, what)
    middles = [outcome.middle(key) for key in keys]
    below = [middle - min(outcome.of(key)) for key, middle in zip(keys, middles, strict=True)]
    above = [max(outcome.of(key)) - middle for key, middle in zip(keys, middles, strict=True)]
    places = range(len(keys))
    axis.barh(places, middles, height=0.7, color=[_colour(key.who) for key in keys])
    axis.errorbar(middles, places, xerr=[below, above], fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
    reach = max(middle + more for middle, more in zip(middles, above, strict=True)) or 1.0
    for place, middle, more in zip(places, middles, above, strict=True):
        axis.text(middle + more + 0.015 * reach, place, figure(middle), va="center", fontsize=7.5, color="#333333")
    axis.set_yticks(places, [key.who for key in keys], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * reach)
    axis.set_title(f"{case}: {what}", fontsize=8.5, loc="left")
    _plain(axis)


def _colour(who: str) -> str:
    if who.startswith(OURS) or who[:1].isdigit():  # a row that begins with a number is the store at that size
        return STORE
    limits = (DISK, BARE, "encoding", "idle", "parsing")
    return LIMITS if who.startswith(limits) else OTHERS


def _plain(axis: Any) -> None:
    axis.tick_params(axis="x", labelsize=7.5)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def used_share(target: Target, figure_of_round: float) -> float:
    """How much of what a target allows is used: above 1 it is missed, whichever way it points."""
    if target.at_most is not None:
        return figure_of_round / target.limit
    return target.limit / figure_of_round if figure_of_round else float("inf")


def _targets(outcomes: Sequence[Outcome]) -> Any:
    """A dot for each target: left of the line it holds."""
    lines = [
        (f"{outcome.name}: {target.text}", sorted(used_share(target, figure) for figure in figures), target)
        for outcome in outcomes
        for target in outcome.targets()
        if (figures := target.figures(outcome.rounds))
    ]
    if not lines:
        return None
    picture, axis = import_module("matplotlib.pyplot").subplots(
        figsize=(10, 1.2 + 0.26 * len(lines)), layout="constrained"
    )
    for place, (_, shares, _) in enumerate(lines):
        colour = STORE if median(shares) <= 1 else MISSED
        axis.plot([shares[0], shares[-1]], [place, place], color=colour, linewidth=1.2)
        axis.plot([median(shares)], [place], "o", color=colour, markersize=5)
    axis.axvline(1.0, color="#333333", linewidth=0.9)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_yticks(range(len(lines)), [name for name, _, _ in lines], fontsize=7.5)
    axis.invert_yaxis()
    axis.set_title(
        "share of the limit that is used: median and range of the rounds; right of the line is missed", fontsize=9
    )
    _plain(axis)
    return picture
