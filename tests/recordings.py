"""Recorded rollouts of real engines, read by the standard library, and a process that stores them.

Run as a module it puts every recording into a store, says each call that was acknowledged, and waits to be killed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import anyio

from tests.loops import run_in
from tokenstore import TokenCaptureStore, TokenEntry
from tokenstore.testing import first_difference

PUTTERS = 64
"""Puts that are made at the same time."""


def recording(path: Path) -> list[TokenEntry]:
    """Read the calls of a file, in order."""
    return [TokenEntry(**json.loads(line)) for line in path.read_bytes().splitlines()]


def recordings(folder: Path) -> list[TokenEntry]:
    """Read the calls of all files of a folder."""
    return [made for path in sorted(folder.glob("*.jsonl")) for made in recording(path)]


def rollouts_of(entries: Iterable[TokenEntry]) -> dict[str, list[TokenEntry]]:
    """Sort calls by their rollouts."""
    rollouts: dict[str, list[TokenEntry]] = {}
    for made in entries:
        rollouts.setdefault(made.rollout_id, []).append(made)
    return rollouts


async def put_at_once(store: TokenCaptureStore, entries: Sequence[TokenEntry], *, aloud: bool = False) -> None:
    """Put calls, 64 at a time: where there are fewer, each again and again, which must change nothing."""
    waiting = list(entries)
    while len(waiting) < PUTTERS:
        waiting += entries
    waiting.reverse()

    async def work() -> None:
        while waiting:
            made = waiting.pop()
            await store.put(made)
            if aloud:
                print(made.rollout_id, made.model_call_id, flush=True)  # noqa: T201 - what was acknowledged

    async with anyio.create_task_group() as tasks:
        for _ in range(PUTTERS):
            tasks.start_soon(work)


def differences(expected: Iterable[TokenEntry], given: Iterable[TokenEntry]) -> list[str]:
    """Name what differs between calls, whatever their order."""
    wanted, found = ({made.model_call_id: made for made in entries} for entries in (expected, given))
    if wanted.keys() != found.keys():
        return [f"calls {sorted(wanted.keys() ^ found.keys())}"]
    return [place for call_id in wanted if (place := first_difference(wanted[call_id], found[call_id]))]


async def compare_frozen(store: TokenCaptureStore, entries: Iterable[TokenEntry]) -> list[str]:
    """Freeze every rollout and name what differs from what was put."""
    found = []
    for rollout_id, calls in rollouts_of(entries).items():
        snapshot = await store.freeze(rollout_id)
        found += [f"{rollout_id}: {place}" for place in differences(calls, snapshot.entries)]
        found += [f"{rollout_id}: {reason}" for reason in snapshot.incomplete_reasons]
        if snapshot.version != len(calls) + 1:
            found.append(f"{rollout_id}: version {snapshot.version}")
    return found


async def store_and_wait(folder: str, root: str) -> None:
    """Put every recording, saying what was acknowledged, and wait for the end."""
    async with TokenCaptureStore(root) as store:
        await put_at_once(store, recordings(Path(folder)), aloud=True)
        print("all", flush=True)  # noqa: T201 - the parent waits for it
        await anyio.sleep_forever()


if __name__ == "__main__":
    run_in(sys.argv[1], store_and_wait, *sys.argv[2:])
