"""What every test module shares."""

from __future__ import annotations

import os
from typing import Any

import pytest

LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("trio", {}), id="trio"),
]
if os.environ.get("TOKENSTORE_LOOPS") == "all":  # what runs on asyncio rarely differs on uvloop; `.ci/run` looks
    LOOPS.insert(1, pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop"))


@pytest.fixture(params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each async test on every event loop that callers use."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend
