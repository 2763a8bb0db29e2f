"""One report in a folder: `report.md` with tables and plots, `results.json` with every value of every round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import plots
from benchmarks.harness.rounds import Outcome
from benchmarks.harness.statistics import median
from benchmarks.harness.table import as_markdown, cases, targets_of, values_of


def write(folder: Path, machine: Mapping[str, str], outcomes: Sequence[Outcome], *, quick: bool) -> Path:
    """Write the report and give the file to open."""
    results = json.dumps(document(machine, outcomes, quick=quick), indent=1, ensure_ascii=False)
    (folder / "results.json").write_text(results + "\n", encoding="utf-8")
    drawn = plots.draw(folder, outcomes[:1] if quick else outcomes)  # drawing takes longer than a quick run
    report = folder / "report.md"
    report.write_text(text(machine, outcomes, drawn, quick=quick), encoding="utf-8")
    return report


def document(machine: Mapping[str, str], outcomes: Sequence[Outcome], *, quick: bool) -> dict[str, Any]:
    """Everything that was measured, as JSON."""
    return {
        "machine": dict(machine),
        "quick": quick,
        "benchmarks": {outcome.name: _one(outcome) for outcome in outcomes},
    }


def _one(outcome: Outcome) -> dict[str, Any]:
    return {
        "title": outcome.benchmark.TITLE,
        "rounds": len(outcome.rounds),
        "values": [{**key._asdict(), "median": outcome.middle(key), "rounds": outcome.of(key)} for key in outcome.keys],
        "targets": [
            {
                "text": target.text,
                "at_most" if target.at_most is not None else "at_least": target.limit,
                "holds": target.holds(outcome.rounds),
                "median": median(figures) if figures else None,
                "rounds": figures,
            }
            for target in outcome.targets()
            for figures in [target.figures(outcome.rounds)]
        ],
    }


def text(machine: Mapping[str, str], outcomes: Sequence[Outcome], drawn: Mapping[str, str], *, quick: bool) -> str:
    """The report in Markdown.

    Args:
        machine: What `machine.describe` says.
        outcomes: What was measured.
        drawn: File names of plots by the benchmark that they show; the empty name shows all targets.
        quick: Whether the figures mean nothing.
    """
    parts = ["# Benchmarks of tokenstore"]
    if quick:
        parts.append("**A quick run: it shows that everything runs, its figures mean nothing.**")
    parts.append(as_markdown([("machine", ""), *machine.items()]))
    if "" in drawn:
        parts.append(f"![targets]({drawn['']})")
    for outcome in outcomes:
        parts.append(f"## {outcome.benchmark.TITLE}")
        parts.append(f"Rounds: {len(outcome.rounds)}. Values are their medians.")
        parts.append(as_markdown(targets_of(outcome)))
        if outcome.name in drawn:
            parts.append(f"![{outcome.name}]({drawn[outcome.name]})")
        parts += [f"{case}\n\n{as_markdown(values_of(outcome, case))}" for case in cases(outcome)]
    return "\n\n".join(parts) + "\n"
