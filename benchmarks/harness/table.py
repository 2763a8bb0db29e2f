"""Tables and figures as text."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.rounds import Outcome
from benchmarks.harness.statistics import median
from benchmarks.harness.suite import Key, Target

Row = tuple[str, ...]


def figure(value: float) -> str:
    """Write a number with three digits that count, at least."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.2g}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def cases(outcome: Outcome) -> list[str]:
    """The kinds of work, in their order."""
    return list(dict.fromkeys(key.case for key in outcome.keys))


def values_of(outcome: Outcome, case: str) -> list[Row]:
    """A table of one kind of work: a row for each contender, a column for each quantity."""
    keys = [key for key in outcome.keys if key.case == case]
    whats = list(dict.fromkeys(key.what for key in keys))
    rows: list[Row] = [("", *whats)]
    for who in dict.fromkeys(key.who for key in keys):
        cells = [Key(case, who, what) for what in whats]
        rows.append((who, *[figure(outcome.middle(key)) if key in keys else "" for key in cells]))
    return [rows[0], *sorted(rows[1:], key=lambda row: _rank(row[0]))]


def _rank(who: str) -> int:
    """Baselines first, then the store, then the others in alphabetical order."""
    known = ("disk", "bare", "tokenstore")
    return next((place for place, name in enumerate(known) if who.startswith(name)), len(known))


def verdict(target: Target, outcome: Outcome) -> str:
    """Say whether a target holds."""
    return {True: "holds", False: "MISSED", None: "not measured"}[target.holds(outcome.rounds)]


def targets_of(outcome: Outcome) -> list[Row]:
    """A table of what is demanded and what was measured."""
    rows: list[Row] = [("target", "limit", "median", "smallest", "largest", "")]
    for target in outcome.targets():
        figures = target.figures(outcome.rounds)
        found = [figure(part(figures)) for part in (median, min, max)] if figures else ["", "", ""]
        limit = f"{'<=' if target.at_most is not None else '>='} {figure(target.limit)}"
        rows.append((target.text, limit, *found, verdict(target, outcome)))
    return rows


def as_text(rows: Sequence[Row]) -> str:
    """Lay a table out in columns, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0]), *[cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Row]) -> str:
    """The same as a table of Markdown."""
    head, *body = rows
    rule = ("---", *["---:"] * (len(head) - 1))
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in [head, rule, *body])


def show(outcome: Outcome) -> str:
    """All of a benchmark, for a terminal."""
    parts = [f"\n## {outcome.benchmark.TITLE}"]
    parts += [f"\n{case}\n{as_text(values_of(outcome, case))}" for case in cases(outcome)]
    parts.append(f"\n{as_text(targets_of(outcome))}")
    return "\n".join(parts)
