"""Says at the end of a run how much was searched."""

from __future__ import annotations

import pytest

SEARCHED = pytest.StashKey[list[str]]()
"""Lines for the summary."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the searches have counted."""
    for line in config.stash.get(SEARCHED, []):
        terminalreporter.write_line(line)
