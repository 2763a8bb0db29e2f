"""What a rollout of an agent costs: bytes on the disk, syncs, and nothing at all for what is refused."""

from __future__ import annotations

import random
from array import array
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from tests.conftest import LOOPS
from tests.samples import entry, nested
from tokenstore import InvalidEntryError, StoreConfig, TokenCaptureStore, TokenEntry
from tokenstore.testing import agent_rollout, first_difference

pytestmark = pytest.mark.anyio

MAX_BYTES = 1_700_000
"""What 200 turns may take."""
MAX_SYNCS = 10
"""What 256 puts at once into one rollout may need."""


@cache
def long_rollout() -> list[TokenEntry]:
    """Make 200 turns of an agent whose log probabilities are float32 values and, what takes most, none is zero."""
    chance = random.Random(200)  # noqa: S311 - test data

    def log_probs(count: int) -> list[float]:
        return array("f", [-4.0 * chance.random() - 1e-7 for _ in range(count)]).tolist()

    turns = agent_rollout(
        "r", turns=200, first_prompt=2000, generated=200, added=300, vocabulary=150_000, item_chars=200
    )
    return [attrs.evolve(turn, generation_log_probs=log_probs(len(turn.generation_token_ids))) for turn in turns]


@pytest.mark.parametrize("anyio_backend", LOOPS[:1], indirect=True)  # bytes on the disk know no loop
async def test_200_turns_of_an_agent(tmp_path: Path, record_testsuite_property: Any, anyio_backend: Any) -> None:
    """200 turns of 200 generated and 300 added ids take at most 1.7 MB, and freeze gives whole prompts back."""
    made = long_rollout()
    async with TokenCaptureStore(tmp_path) as store:
        for turn in made:
            await store.put(turn)
        size = store.path_for("r").stat().st_size
        snapshot = await store.freeze("r")

    record_testsuite_property(f"bytes of 200 turns on {anyio_backend[0]}", size)
    print(f"200 turns take {size:,} bytes of jsonl")  # noqa: T201 - the figure is asked for
    assert size <= MAX_BYTES
    assert len(snapshot.entries[-1].prompt_token_ids) == 2000 + 199 * 500
    assert [first_difference(*pair) for pair in zip(made, snapshot.entries, strict=True)] == [None] * 200
    assert (snapshot.version, snapshot.incomplete) == (201, False)


async def test_256_puts_at_once(tmp_path: Path) -> None:
    """256 puts at once into one rollout are durable with at most ten syncs, the first ones of its files included."""
    async with TokenCaptureStore(tmp_path) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(256):
                tasks.start_soon(store.put, entry(f"c{number}", prompt_token_ids=[number]))
        statistics = store.statistics()
        snapshot = await store.freeze("r")

    print(f"256 puts at once needed {statistics.fsyncs} syncs in {statistics.batches} batches")  # noqa: T201
    assert statistics.fsyncs <= MAX_SYNCS
    assert statistics.puts == len(snapshot.entries) == 256


def twice_itself() -> list[Any]:
    """Make a list that holds itself twice."""
    cycle: list[Any] = []
    cycle += [cycle, cycle]
    return cycle


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "lengths": ({"generation_token_ids": [1] * 1000, "generation_log_probs": [0.0] * 999}, "999 values for 1000"),
    "id: true": ({"prompt_token_ids": [1, True]}, "prompt_token_ids: position 1 holds a value of type bool"),
    "id: text": ({"prompt_token_ids": ["12"]}, "prompt_token_ids: position 0 holds a value of type str"),
    "id: fraction": (
        {"generation_token_ids": [4, 1.9]},
        "generation_token_ids: position 1 holds a value of type float",
    ),
    "id: negative": ({"generation_token_ids": [-1, 4]}, "generation_token_ids: position 0 is outside"),
    "id: too large": ({"prompt_token_ids": [1] * 9000 + [2**32]}, "prompt_token_ids: position 9000 is outside"),
    "ids: text": ({"prompt_token_ids": "123"}, "prompt_token_ids: is of type str"),
    "ids: bytes": ({"prompt_token_ids": b"123"}, "prompt_token_ids: is of type bytes"),
    "log prob: nan": ({"generation_log_probs": [0.0, float("nan")]}, "generation_log_probs: position 1 holds nan"),
    "log prob: none": ({"generation_log_probs": [None, 0.0]}, "generation_log_probs: position 0 holds None"),
    "log prob: infinite": ({"generation_log_probs": [0.0, float("-inf")]}, "position 1 holds -inf"),
    "item index": ({"token_item_index": 1}, "token_item_index: is 1, but there are 1 output_items"),
    "schema": ({"schema_version": 2}, "schema_version: is 2, this library knows up to 1"),
    "surrogate": ({"output_items": [{"text": "secret \ud800"}]}, r"output_items\[0\]: holds a lone surrogate"),
    "key": ({"extra": {"a": {7: "secret"}}}, "extra: holds an object key of type int"),
    "nesting": ({"output_items": [{"a": nested(1025)}]}, r"output_items\[0\]: is nested deeper than 512"),
    "cycle": ({"extra": {"a": twice_itself()}}, "extra: is nested deeper than 512"),
    "size": ({"model": "secret" * 200}, "takes .* bytes as a line, max_entry_bytes allows 1000"),
    "no json": ({"routed_experts": {"secret"}}, "routed_experts: holds a value of type set"),
    "reserved": ({"extra": {"crc32": 1}}, "extra: holds the key 'crc32'"),
}
"""Every kind of bad input of the contract, and what the message says."""


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
async def test_bad_input_costs_nothing(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A bad entry is refused with field, position and numbers, without its text, and before a byte is written."""
    async with TokenCaptureStore(tmp_path, config=StoreConfig(max_entry_bytes=1000)) as store:
        with pytest.raises(InvalidEntryError, match=message) as refusal:
            await store.put(entry("bad", **fields))
        assert "secret" not in str(refusal.value)
        assert [path.name for path in tmp_path.iterdir() if path.stat().st_size] == []
        await store.put(entry("good"))
        assert store.statistics().puts == 1
        with pytest.raises(InvalidEntryError, match=message):
            await store.put(entry("bad", **fields))
        snapshot = await store.freeze("r")

    assert list(snapshot.entries) == [entry("good")]
    assert snapshot.version == 2
