"""Directories to run the command line on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tokenstore import TokenCaptureStore
from tokenstore.testing import SHAPES, agent_rollout, shaped_rollout

NOBODY = 65_534
"""A user who owns nothing."""


async def mixed(root: Path) -> None:
    """Make a rollout of every kind, one masked, one frozen with a lost call, one retired."""
    async with TokenCaptureStore(root) as store:
        for shape in SHAPES:
            for entry in shaped_rollout(shape, f"shape-{shape}"):
                await store.put(entry)
        for rollout_id in ("open", "frozen", "masked", "retired"):
            for entry in agent_rollout(rollout_id, turns=3, first_prompt=300):
                await store.put(entry)
        await store.begin_call("masked", "lost")
        for rollout_id in ("frozen", "masked"):
            await store.freeze(rollout_id)
        await store.mark_incomplete("shape-branches", "broken")
        await store.retire(["retired"])


def recorded(root: Path) -> list[str]:
    """Name the files of recordings, skipping where there are none."""
    folder = os.environ.get("TOKENSTORE_RECORDED_DATA")
    if not folder:
        pytest.skip("TOKENSTORE_RECORDED_DATA is not set")
    root.mkdir()
    return [str(path) for path in sorted(Path(folder, "recorded").glob("*.jsonl"))]


def reference(root: Path) -> None:
    """Copy the directory that the reference wrote, skipping where there is none."""
    folder = os.environ.get("TOKENSTORE_REFERENCE_DATA")
    if not folder:
        pytest.skip("TOKENSTORE_REFERENCE_DATA is not set")
    shutil.copytree(folder, root, copy_function=partial(shutil.copyfile))
    root.chmod(0o700)


@contextmanager
def without_rights() -> Iterator[None]:
    """Let the block run as a user who may not do what root may."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
