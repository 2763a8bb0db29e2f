"""An engine in a process of its own, and proxies before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.children import start_module
from tests.serve.proxies import Running, running
from tokenstore.serve.settings import EngineKind

pytest.importorskip("starlette", reason="the extra `serve` is not installed")


@pytest.fixture(scope="session")
def engine() -> Iterator[str]:
    """Give the URL of an engine in a process of its own."""
    with start_module("tests.serve.engine") as child:
        yield child.line()


@pytest.fixture(scope="session", params=["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
def proxy_of(
    request: pytest.FixtureRequest, engine: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[EngineKind], Running]]:
    """Give the proxy for a kind of engine, on either server; each is started once."""
    with ExitStack() as stack:
        started: dict[EngineKind, Running] = {}

        def proxy_of(kind: EngineKind) -> Running:
            if kind not in started:
                root: Path = tmp_path_factory.mktemp("captures")
                started[kind] = stack.enter_context(running(request.param, engine, root, engine_kind=kind))
            return started[kind]

        yield proxy_of


@pytest.fixture
def proxy(proxy_of: Callable[[EngineKind], Running]) -> Running:
    """Give a proxy before vLLM."""
    return proxy_of("vllm")
