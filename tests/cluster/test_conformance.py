"""A cluster store keeps every promise of a token store, without Ray: shards and clients in one event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.inprocess import cluster
from tokenstore.testing import check_token_store

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.kernel)])
async def test_a_cluster_keeps_every_promise(memory_path: Path) -> None:
    """Three shards behind channels are one store, whichever of its clients does what."""
    async with cluster(memory_path / "root") as there:
        await check_token_store(there.client, there.client)

    assert len(there.transports) > 3 * 4
    assert sum(bool(transport.events) for transport in there.transports) > len(there.transports) / 4
