"""What a call counts as, by how far its intent had come when it ended."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.loops import HeldDisk, store_on
from tokenstore import TokenCaptureStore
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.settling import InFlight

pytestmark = pytest.mark.anyio


@pytest.fixture
def call() -> InFlight:
    """A call that was planned."""
    call = InFlight("r")
    call.call_id = "c1"
    return call


async def test_a_client_that_leaves_during_the_intent_counts_as_a_loss(call: InFlight) -> None:
    """A call that is cancelled while its intent is being written counts as lost: it masks its rollout."""
    disk = HeldDisk()

    async def ask() -> None:
        async with call.captured(store):
            pytest.fail("the engine would be asked")

    async with store_on(disk) as store:
        disk.hold("datasync", ".intents")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await disk.reached()
            tasks.cancel_scope.cancel()
        disk.free()
        reasons = (await store.freeze("r")).incomplete_reasons

    assert call.outcome == "lost"
    assert reasons == ("lost_call:c1",)


async def test_a_call_whose_intent_was_refused_counts_as_rejected(call: InFlight, tmp_path: Path) -> None:
    """A call of a frozen rollout is rejected, with a problem for the client."""
    async with TokenCaptureStore(tmp_path) as store:
        await store.freeze("r")
        with pytest.raises(ProxyError) as caught:
            async with call.captured(store):
                pytest.fail("the engine would be asked")

    assert (call.outcome, caught.value.status) == ("rejected", 409)


async def test_an_error_of_the_body_is_its_own(call: InFlight, tmp_path: Path) -> None:
    """What the body raises passes as it is, and the call is lost."""
    async with TokenCaptureStore(tmp_path) as store:
        with pytest.raises(LookupError):
            async with call.captured(store):
                raise LookupError
        incomplete = (await store.peek("r")).incomplete

    assert (call.outcome, incomplete) == ("lost", True)
