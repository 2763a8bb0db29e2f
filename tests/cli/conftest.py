"""Fixtures that run the command line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.cli.running import Run, Runner
from tokenstore.cli import main


@pytest.fixture(autouse=True)
def _no_root_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENSTORE_ROOT", raising=False)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    """Run a command line in this process."""

    def run(*arguments: object) -> Run:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Run(status, captured.out, captured.err)

    return run


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> Sequence[str]:
    """Options that run a command on each event loop."""
    return ["--backend", request.param]
