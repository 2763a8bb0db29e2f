"""A process that exports a store and stands still when some rollouts are done, to be killed there."""

from __future__ import annotations

import signal
import sys

import anyio

from tokenstore import TokenCaptureStore
from tokenstore.export import export, exporting


async def stop_at(root: str, path: str, count: str) -> None:
    """Export as Parquet with a part for each rollout, and stand still when so many are done."""
    exporting.PART_BYTES = 1

    def progress(done: int, _: int) -> None:
        if done == int(count):
            print("stopped", flush=True)  # noqa: T201
            signal.pause()

    async with TokenCaptureStore(root) as store:
        await export(store, path, format="parquet", progress=progress)


async def main() -> None:
    """Take the arguments of the process."""
    root, path, count = sys.argv[1:]
    await stop_at(root, path, count)


if __name__ == "__main__":
    anyio.run(main)
