"""What the cases stand on: entries by number, their lines as two libraries write them, stores on simulated disks."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tokenstore import InvalidEntryError, StoreConfig, TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.journal.disk import Disk
from tokenstore.testing import PersistencePolicy, SimulatedDisk, first_difference

ROOT = Path("/root-of-the-store")
TOKENS = ROOT / "r.tokens.jsonl"
STATE = ROOT / "r.tokens.state.json"
INTENTS = ROOT / "r.tokens.intents"
MARKER = ROOT / "r.tokens.incomplete"
DURABLE = PersistencePolicy.SYNCED


def fields(number: int, **other: Any) -> dict[str, Any]:
    """The members of the line of call `c<number>`."""
    known: dict[str, Any] = {
        "rollout_id": "r",
        "model_call_id": f"c{number}",
        "prompt_token_ids": [number, 151_644, 2],
        "generation_token_ids": [70_000 + number, 5],
        "generation_log_probs": [-0.1, -0.2],
        "model": "m",
        "routed_experts": None,
        "output_items": [{"type": "message", "text": f"answer {number}"}],
        "token_item_index": 0,
        "response_id": f"resp-{number}",
        "created_at": 1.5,
        "schema_version": 1,
    }
    return {**known, **other}


def entry(number: int, **other: Any) -> TokenEntry:
    """The entry of call `c<number>`."""
    return TokenEntry(**fields(number, **other))


def as_json(value: Any) -> bytes:
    """JSON as the standard library writes it, in the reference's form."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()


def rec(number: int, **other: Any) -> bytes:
    """A valid line for a call, as the reference writes it, without its newline."""
    return as_json(fields(number, **other))


def vouched(line: bytes) -> bytes:
    """The line with the checksum that makes it one of ours, whatever it holds."""
    body = line.removesuffix(b"}")
    return body + b',"crc32":%d}' % zlib.crc32(body)


def own(number: int, **other: Any) -> bytes:
    """A valid line for a call, as this library writes it, without its newline."""
    return vouched(rec(number, **other))


def planted(*lines: bytes, state: bytes | None = None, tail: bytes = b"") -> SimulatedDisk:
    """A disk on which rollout `r` has these lines, then a tail without a newline."""
    disk = SimulatedDisk()
    disk.write_file(TOKENS, b"".join(line + b"\n" for line in lines) + tail)
    if state is not None:
        disk.write_file(STATE, state)
    return disk


def store_on(disk: Disk, **config: Any) -> TokenCaptureStore:
    """A store on a disk."""
    return TokenCaptureStore(ROOT, config=StoreConfig(**config), _disk=disk)


async def frozen(disk: Disk, rollout_id: str = "r") -> TokenCaptureSnapshot:
    """What a trainer with a store of its own gets from a disk."""
    async with store_on(disk) as store:
        return await store.freeze(rollout_id)


def calls(snapshot: TokenCaptureSnapshot) -> list[str]:
    """The calls of a snapshot, in order."""
    return [each.model_call_id for each in snapshot.entries]


def assert_same(given: tuple[TokenEntry, ...] | list[TokenEntry], *expected: TokenEntry) -> None:
    """Hold entries to what was put, to the last bit."""
    assert len(given) == len(expected)
    for one, other in zip(expected, given, strict=True):
        assert first_difference(one, other) is None


async def refused(given: Any, **other: Any) -> InvalidEntryError:
    """Have a put refused beside good ones: those are there, the rollout is complete, and no byte was written."""
    disk = SimulatedDisk()
    async with store_on(disk) as store:
        await store.put(entry(1))
        before = disk.read_file(TOKENS)
        with pytest.raises(InvalidEntryError) as caught:
            await store.put(TokenEntry(**fields(2, **given)))
        after = disk.read_file(TOKENS)
        await store.put(entry(3, **other))
        snapshot = await store.freeze("r")
    assert before == after
    assert_same(snapshot.entries, entry(1), entry(3, **other))
    assert not snapshot.incomplete
    return caught.value
