"""No error, repr or log record carries token ids or output text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases.given import as_json, entry, fields, own, planted, rec, store_on, vouched
from tokenstore import CorruptRolloutError, StoreConfig, TokenCaptureStore, TokenEntry, TokenStoreError
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk

pytestmark = pytest.mark.anyio

SENTINEL_ID = 3_141_592_653
SENTINEL_TEXT = "sesame-open-thyself"
SENTINEL_LOG_PROB = -0.271828182845


def _secret(number: int, **other: Any) -> dict[str, Any]:
    known: dict[str, Any] = {
        "prompt_token_ids": [SENTINEL_ID] * 3,
        "generation_token_ids": [SENTINEL_ID, 1],
        "generation_log_probs": [SENTINEL_LOG_PROB, -0.5],
        "output_items": [{"text": SENTINEL_TEXT}],
        "extra": {"note": SENTINEL_TEXT},
    }
    return {**fields(number), **known, **other}


BAD_FIELDS: list[dict[str, Any]] = [
    {"generation_log_probs": [SENTINEL_LOG_PROB]},
    {"generation_log_probs": [SENTINEL_LOG_PROB, float("nan")]},
    {"generation_log_probs": [SENTINEL_LOG_PROB, SENTINEL_TEXT]},
    {"generation_log_probs": SENTINEL_TEXT},
    {"prompt_token_ids": [SENTINEL_ID, SENTINEL_TEXT]},
    {"prompt_token_ids": [SENTINEL_ID, -SENTINEL_ID]},
    {"prompt_token_ids": [SENTINEL_ID, SENTINEL_ID * 2]},
    {"prompt_token_ids": [SENTINEL_ID, [SENTINEL_ID]]},
    {"prompt_token_ids": SENTINEL_TEXT},
    {"prompt_token_ids": {SENTINEL_ID}},
    {"generation_token_ids": [SENTINEL_ID, float(SENTINEL_ID)]},
    {"output_items": [{"text": SENTINEL_TEXT + "\ud800"}]},
    {"output_items": [{"text": SENTINEL_TEXT, "n": float("inf")}]},
    {"output_items": [SENTINEL_TEXT]},
    {"output_items": SENTINEL_TEXT},
    {"output_items": [{"text": {SENTINEL_TEXT}}]},
    {"output_items": [{7: SENTINEL_TEXT}]},
    {"extra": {"x": SENTINEL_TEXT.encode()}},
    {"extra": {"n": 10**5000, "x": SENTINEL_TEXT}},
    {"extra": [SENTINEL_TEXT]},
    {"model": [SENTINEL_TEXT]},
    {"response_id": [SENTINEL_TEXT]},
    {"token_item_index": 9},
    {"token_item_index": SENTINEL_TEXT},
    {"created_at": SENTINEL_TEXT},
    {"schema_version": 99},
]


def _bad_lines() -> list[bytes]:
    good = as_json(_secret(2))
    lines = [good[:cut] for cut in range(10, len(good), 40)]
    lines += [good.replace(b"sesame", b"ses\xffame"), good.replace(b"sesame", b"\\ud800"), good.replace(b":", b"=")]
    lines += [as_json({**_secret(2), name: value}) for name in fields(2) for value in (SENTINEL_TEXT, [SENTINEL_ID], 9)]
    lines += [vouched(line) for line in lines]
    return [*lines, vouched(good).replace(b"sesame", b"Sesame"), as_json([SENTINEL_TEXT]), SENTINEL_TEXT.encode()]


async def _provoke() -> list[BaseException]:
    """Give every bad input to a store, and gather what it raised."""
    errors: list[BaseException] = []

    async def attempt(run: Callable[[], Any]) -> None:
        try:
            await run()
        except (TokenStoreError, TypeError, ValueError) as error:
            errors.append(error)

    disk = SimulatedDisk()
    failing = FailingDisk(disk)
    async with store_on(failing, max_entry_bytes=100_000) as store:
        await store.put(TokenEntry(**_secret(1)))
        for bad in BAD_FIELDS:
            await attempt(lambda bad=bad: store.put(TokenEntry(**_secret(2, **bad))))  # type: ignore[misc]
        await attempt(lambda: store.put(_secret(3)))  # type: ignore[arg-type]
        await attempt(lambda: store.put(TokenEntry(**_secret(3, output_items=[{"text": SENTINEL_TEXT * 9000}]))))
        await attempt(lambda: store.put(TokenEntry(**_secret(1, model="other"))))
        for call in ("write", "datasync", "directory_sync", "open", "lock", "stat", "read"):
            failing.fault = Fault(call=call)
            await attempt(lambda: store.put(TokenEntry(**_secret(4))))
        failing.fault = None
        await store.freeze("r")
        await attempt(lambda: store.put(TokenEntry(**_secret(5))))
    for line in _bad_lines():
        async with store_on(planted(own(1), line, tail=line[:-3])) as store:
            await attempt(lambda store=store: store.put(TokenEntry(**_secret(2))))  # type: ignore[misc]
            await attempt(lambda store=store: store.freeze("r"))  # type: ignore[misc]
    return errors


async def test_no_error_or_log_record_carries_tokens_or_text(caplog: pytest.LogCaptureFixture) -> None:
    """Over a run of bad inputs, faults and damage, nothing that is raised, shown or logged holds an id or a text."""
    with caplog.at_level(logging.DEBUG):
        errors = await _provoke()

    assert len(errors) > len(BAD_FIELDS)
    said = [form for error in errors for form in (str(error), repr(error), repr(error.args), repr(vars(error)))]
    said += [record.getMessage() + str(record.exc_text or record.exc_info or "") for record in caplog.records]
    said += [repr(TokenEntry(**_secret(1)))]
    secrets = (str(SENTINEL_ID), "sesame", "271828")
    assert [text for text in said if any(secret in text.lower() for secret in secrets)] == []


async def test_a_snapshot_shows_neither_tokens_nor_text() -> None:
    """The repr of a snapshot and of its entries holds counts and names alone."""
    async with store_on(SimulatedDisk()) as store:
        await store.put(TokenEntry(**_secret(1)))
        snapshot = await store.freeze("r")

    shown = repr(snapshot) + repr(snapshot.entries) + str(snapshot)
    assert str(SENTINEL_ID) not in shown
    assert "sesame" not in shown


async def test_a_full_disk_error_is_about_the_file_alone(tmp_path: Path) -> None:
    """What an error of the disk says is the operation, the file's name and the reason."""
    async with TokenCaptureStore(tmp_path, config=StoreConfig(prompt_storage="full")) as store:
        await store.put(entry(1))
        (tmp_path / "r.tokens.state.json").mkdir()
        with pytest.raises(CorruptRolloutError) as caught:
            await store.freeze("r")

    assert str(caught.value).startswith("r.tokens.state.json: is no regular file")
    assert (caught.value.file, rec(1) in (tmp_path / "r.tokens.jsonl").read_bytes()) == ("r.tokens.state.json", True)
