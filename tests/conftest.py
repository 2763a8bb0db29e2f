"""What every test module shares."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
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


@pytest.fixture(scope="session", autouse=True)
def _bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the processes that tests start share compiled modules, also where Python is told to keep none.

    There are more than a hundred of them, and to compile everything anew takes each longer than all that it is for.
    """
    with pytest.MonkeyPatch.context() as patch:
        if sys.dont_write_bytecode:
            folder = tmp_path_factory.getbasetemp()
            shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
            patch.setenv("PYTHONPYCACHEPREFIX", str(shared / "bytecode"))
            patch.delenv("PYTHONDONTWRITEBYTECODE")
        yield


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory, if the machine has one: for hundreds of syncs where the disk is not the point."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of its own is made there
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _rest() -> Iterator[None]:
    """Look once more, in the end, at what was not looked at after each module."""
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def _garbage() -> Iterator[None]:
    """Let go of what a module's tests have left in cycles, descriptors among it, and look at the rest no more.

    The rest is mostly what they have imported: some libraries are a million objects, and many tests collect garbage.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    """Keep what collecting has made out of later garbage collections: thousands of tests, and many force one."""
    import hypothesis  # noqa: F401, PLC0415 - it looks among the objects that are not frozen yet

    gc.collect()
    gc.freeze()
