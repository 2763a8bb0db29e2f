"""Says at the end of a run how much was searched."""

from __future__ import annotations

import pytest

SEARCHED = "searched"
"""The property of a test that is printed; properties come home from the workers of xdist too."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the searches have counted."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == SEARCHED:
                    terminalreporter.write_line(str(value))
