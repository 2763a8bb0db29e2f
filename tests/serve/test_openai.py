"""The openai client, whole and streamed, blocking and not: nothing of it changes but the base URL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import pytest

from tests.serve.engine import SHORT, calls
from tests.serve.proxies import Running
from tokenstore.serve.settings import EngineKind

openai = pytest.importorskip("openai", reason="the openai client is not installed")
TEXT = SHORT.text()


def fresh() -> str:
    """Give a rollout id that nobody used."""
    return f"r-{uuid4().hex}"


def test_the_blocking_client(proxy_of: Callable[[EngineKind], Running]) -> None:
    """Chat, completions and responses, whole and streamed, give the text, and each is a call of the rollout."""
    chat, gym, rollout_id = proxy_of("vllm"), proxy_of("responses"), fresh()
    with (
        openai.OpenAI(base_url=chat.base(rollout_id), api_key="k", max_retries=0) as client,
        openai.OpenAI(base_url=gym.base(rollout_id), api_key="k", max_retries=0) as other,
    ):
        whole = client.chat.completions.create(model="form/vllm chat/0", messages=[])
        parts = list(client.chat.completions.create(model="form/vllm chat/0", messages=[], stream=True))
        completion = client.completions.create(model="form/vllm completions/0", prompt="p")
        texts = list(client.completions.create(model="form/vllm completions/0", prompt="p", stream=True))
        response = other.responses.create(model="form/responses/0", input="i")
        events = list(other.responses.create(model="form/responses/0", input="i", stream=True))

    assert whole.choices[0].message.content == TEXT
    assert "".join(part.choices[0].delta.content for part in parts) == TEXT
    assert completion.choices[0].text == TEXT
    assert "".join(part.choices[0].text for part in texts) == TEXT
    assert response.output_text == TEXT
    assert events[-1].response.output_text == TEXT
    assert not any("token_ids" in str(given) for given in (whole, *parts, completion, *texts, response, *events))
    for proxy, count in ((chat, 4), (gym, 2)):
        entries = proxy.settled(rollout_id).entries
        assert [SHORT.same(entry) for entry in entries] == [True] * count


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the client is asyncio's
@pytest.mark.parametrize("share", [20, pytest.param(1, marks=[pytest.mark.kernel, pytest.mark.timeout(300)])])
async def test_the_async_client_at_once(share: int, proxy: Running) -> None:
    """Calls that the engine knows, whole and streamed, asked at once: in the store token for token."""
    rollout_id, base, numbers = fresh(), {}, range(0, len(calls()), share)
    async with openai.AsyncOpenAI(base_url=proxy.base(rollout_id), api_key="k", max_retries=0, timeout=60) as client:

        async def ask(number: int) -> None:
            model = f"form/vllm chat/{number}"
            whole = await client.chat.completions.with_raw_response.create(model=model, messages=[])
            stream = await client.chat.completions.with_raw_response.create(model=model, messages=[], stream=True)
            parts = [part async for part in stream.parse()]
            text = "".join(part.choices[0].delta.content for part in parts)
            assert whole.parse().choices[0].message.content == text == calls()[number].text()
            base[number] = {given.headers["x-model-call-id"] for given in (whole, stream)}

        async with anyio.create_task_group() as group:
            for number in numbers:
                group.start_soon(ask, number)

    snapshot = await anyio.to_thread.run_sync(proxy.settled, rollout_id)
    assert not snapshot.incomplete
    assert len(snapshot.entries) == 2 * len(numbers)
    found: dict[str, Any] = {entry.model_call_id: entry for entry in snapshot.entries}
    assert all(calls()[number].same(found[call_id]) for number, ids in base.items() for call_id in ids)


def test_its_retries_cost_nothing(proxy: Running) -> None:
    """What the client repeats by itself after 429 is a call of its own; each refusal is recorded."""
    rollout_id = fresh()
    with (
        openai.OpenAI(base_url=proxy.base(rollout_id), api_key="k", max_retries=1) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.chat.completions.create(model='status/429/{"error": {"code": "busy"}}', messages=[])

    snapshot = proxy.settled(rollout_id)
    assert [refusal.code for refusal in snapshot.refusals] == ["busy", "busy"]
    assert not snapshot.incomplete


@pytest.mark.parametrize("trouble", ["break_off", "end_early", "garbled/{", "fail_later"])
def test_it_raises_before_the_end_of_what_is_not_stored(trouble: str, proxy: Running) -> None:
    """A stream that is not in the store raises in the client, which does not try again."""
    rollout_id = fresh()
    with openai.OpenAI(base_url=proxy.base(rollout_id), api_key="k") as client:
        stream = client.chat.completions.create(model=trouble, messages=[], stream=True)

        with pytest.raises((openai.APIError, openai.OpenAIError)):
            list(stream)

    assert len(proxy.settled(rollout_id).incomplete_reasons) == 2


def test_it_does_not_repeat_what_is_in_vain(proxy: Running) -> None:
    """An answer that cannot be stored, and a frozen rollout, raise at once: the client is told not to try again."""
    rollout_id = fresh()
    with openai.OpenAI(base_url=proxy.base(rollout_id), api_key="k", max_retries=3) as client:
        with pytest.raises(openai.InternalServerError, match="withheld"):
            client.chat.completions.create(model="status/200/[]", messages=[])
        assert len(proxy.settled(rollout_id).incomplete_reasons) == 2

        with pytest.raises(openai.ConflictError, match="already frozen"):
            client.chat.completions.create(model="form/vllm chat/0", messages=[])
