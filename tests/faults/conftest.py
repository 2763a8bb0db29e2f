"""Says at the end of a run how much was searched."""

from __future__ import annotations

from typing import Any

import pytest

SEARCHED = "searched"
"""A test's property with the counts of its search; properties come home from the workers of xdist too."""
CAUGHT = "caught"
"""A test's property with the mutant that it caught, and how long that took."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add up what the tests have counted, each with another script, and print it."""
    reports = [each for outcome in ("passed", "failed") for each in terminalreporter.getreports(outcome)]
    if searched := _values(reports, SEARCHED):
        total = {name: sum(counts[name] for counts in searched) for name in searched[0] if name != "seed"}
        terminalreporter.write_line(
            "fault search: {states} states, {distinct} of them distinct, of {runs} runs of {scripts} scripts, "
            "{findings} findings, seed {seed}, {seconds:.0f} s of one core".format(
                **total, scripts=len(searched), seed=searched[0]["seed"]
            )
        )
    if caught := _values(reports, CAUGHT):
        slowest = max(caught, key=lambda each: each["seconds"])
        terminalreporter.write_line(
            f"mutants: {len({each['mutant'] for each in caught})} looked for in {len(caught)} searches, "
            f"the slowest {slowest['mutant']}, {slowest['seconds']:.1f} s"
        )


def _values(reports: list[Any], wanted: str) -> list[dict[str, Any]]:
    return [value for report in reports for name, value in report.user_properties if name == wanted]
