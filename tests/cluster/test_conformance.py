"""A cluster store keeps every promise of a token store, without Ray: shards and clients in one event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.inprocess import cluster
from tokenstore.testing import CHECKS, run_check

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS)
async def test_a_cluster_keeps_the_promises(check: str, memory_path: Path) -> None:
    """Three shards behind channels are one store."""
    async with cluster(memory_path / "root") as there:
        await run_check(check, there.client, there.client)
