"""A shard in a process of its own, without Ray: `python -m tests.cluster.fenced ROOT fenced|unfenced`.

It says `up` when it has the shard. For each line of its input, the name of a call, it puts that call into the shard and
says `acked CALL` when the shard has answered.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from tests.cluster.given import shard_plan
from tests.samples import entry
from tokenstore.cluster.claim import Claim, Unfenced
from tokenstore.cluster.shard import MakeFence, Shard, opened
from tokenstore.cluster.wire import Operation, Value, cut, decode_outcome, encode_operation, pack, unpack
from tokenstore.codec import prepare

FENCES: dict[str, MakeFence] = {
    "fenced": lambda directory: Claim(directory, "here"),
    "unfenced": lambda _: Unfenced(),
}


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def put(shard: Shard, call: str) -> None:
    """Put a call, and say when it was acknowledged."""
    blob = encode_operation(Operation("put", (prepare(entry(call)),)))
    [outcome] = unpack(await shard.call(*cut(pack([blob]))))
    if isinstance(decode_outcome(outcome), Value):
        say(f"acked {call}")


async def main(root: str, fence: str) -> None:
    """Run the shard until the input ends."""
    plan = shard_plan(Path(root), placement="floating")
    async with (
        opened(plan, FENCES[fence], create=True, waiting=lambda: say("waiting")) as shard,
        anyio.create_task_group() as tasks,
    ):
        say("up")
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            tasks.start_soon(put, shard, line.strip())


if __name__ == "__main__":
    folder, kind = sys.argv[1:]
    anyio.run(main, folder, kind)
