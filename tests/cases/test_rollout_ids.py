"""Case 28: which rollout ids work, and that no other can reach a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases.given import calls, fields
from tokenstore import InvalidRolloutIdError, TokenCaptureStore, TokenEntry

pytestmark = pytest.mark.anyio


def named(value: object) -> str:
    """A short name for a parameter."""
    return ascii(value)[:24]


@pytest.mark.parametrize("rollout_id", ["x" * 237, ".x", "x.", "-", "--", "_", ".-.", "A.b_C-9", "...x", "CON", "0"])
async def test_case_28_rollout_ids_that_name_files_work(rollout_id: str, tmp_path: Path) -> None:
    """The longest id and the oddest ones work for every operation, on a real directory."""
    async with TokenCaptureStore(tmp_path) as store:
        await store.begin_call(rollout_id, "c1")
        await store.put(TokenEntry(**{**fields(1), "rollout_id": rollout_id}))
        await store.refuse_call(rollout_id, model_call_id="c2", code="x")
        await store.mark_incomplete(rollout_id, "c3")
        listed = [status.rollout_id async for status in store.rollouts()]
        snapshot = await store.freeze(rollout_id)
        files = sorted(path.name for path in tmp_path.iterdir())
        removed = await store.delete([rollout_id])

    assert listed == [rollout_id]
    assert calls(snapshot) == ["c1"]
    assert len(files) == 5
    assert all(name.startswith(f"{rollout_id}.tokens.") for name in files)
    assert removed == {"removed": [rollout_id], "absent": []}
    assert list(tmp_path.iterdir()) == []


BAD_ROLLOUT_IDS = [
    "x" * 238,
    "..",
    ".",
    "...",
    "a/b",
    "/etc/passwd",
    "../r",
    "..\\r",
    "a\\b",
    "é",
    "",
    "a b",
    " a",
    "a\n",
    "a\x00b",
    "a*",
    "\uff0e\uff0e",
    "\u0661",
    "%2e%2e",
    7,
    None,
    b"r",
    Path("r"),
]


@pytest.mark.parametrize("rollout_id", BAD_ROLLOUT_IDS, ids=named)
async def test_case_28_rollout_ids_that_cannot_name_files_are_refused(rollout_id: Any, tmp_path: Path) -> None:
    """Every operation refuses an id that could name another file, and nothing is touched."""
    store = TokenCaptureStore(tmp_path / "root")
    operations: list[Callable[[], Any]] = [
        lambda: store.begin_call(rollout_id, "c1"),
        lambda: store.put(TokenEntry(**{**fields(1), "rollout_id": rollout_id})),
        lambda: store.refuse_call(rollout_id, model_call_id="c1", code=None),
        lambda: store.mark_incomplete(rollout_id, "c1"),
        lambda: store.freeze(rollout_id),
        lambda: store.peek(rollout_id),
        lambda: store.drop(rollout_id, snapshot_id="", version=0),
        lambda: store.retire(["good", rollout_id]),
        lambda: store.delete(["good", rollout_id]),
    ]
    blocking: list[Callable[[Any], Any]] = [
        store.path_for,
        store.state_path_for,
        store.intents_path_for,
        store.incomplete_path_for,
        store.lock_path_for,
        store.read_entries,
        store.is_incomplete,
        store.freeze_now,
        lambda bad: store.retire_now(["good", bad]),
        lambda bad: store.delete_now(["good", bad]),
    ]

    for operation in operations:
        with pytest.raises(InvalidRolloutIdError):
            await operation()
    for function in blocking:
        with pytest.raises(InvalidRolloutIdError):
            function(rollout_id)
    with pytest.raises(InvalidRolloutIdError):
        await anext(store.entries(rollout_id))
    with pytest.raises(InvalidRolloutIdError):
        async with store.capture(rollout_id, "c1"):
            pass
    await store.close()

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["root"]
