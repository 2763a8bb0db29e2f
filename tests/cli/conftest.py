"""Fixtures that run the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from tests.cli.running import Run, Runner
from tests.cli.stores import mixed
from tokenstore.cli import main


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No root, and English messages: argparse looks for those of another language at every option."""
    monkeypatch.delenv("TOKENSTORE_ROOT", raising=False)
    monkeypatch.setenv("LANGUAGE", "C")


@pytest.fixture(scope="session")
def mixed_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a rollout of every kind, not to be changed."""
    root = tmp_path_factory.mktemp("mixed") / "store"
    anyio.run(mixed, root)
    return root


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
