"""A program of its own that writes into a cluster store and says what was acknowledged.

Its arguments are the address of the Ray cluster, the name of the store, the event loop, a prefix of its rollouts, and
the file of its ledger.
Each of its agents puts one call after the other, and asks again whenever the outcome is unknown, as an agent's server
would. A line `acked ROLLOUT CALL` is written only after the put has returned; it ends when its input does.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import anyio

from tests.cluster.nodes import HEAD
from tests.samples import entry
from tokenstore import TokenCaptureFrozenError
from tokenstore.cluster import ClusterStore, connect
from tokenstore.errors import ShardUnavailableError

AGENTS = 6
"""Rollouts that are written at once."""
TURNS = 40
"""Calls of a rollout, after which it is frozen and the agent goes on with the next."""
DEADLINE = 20.0
"""Shorter than a node takes to come back, so that asking again is part of what is tried."""


ledger = os.open(os.devnull, os.O_WRONLY)


def say(*words: object) -> None:
    """Write a line of the ledger, whole."""
    os.write(ledger, (" ".join(map(str, words)) + "\n").encode())


async def insist(function: Any, *arguments: Any) -> Any:
    """Do a call until it is answered."""
    while True:
        try:
            return await function(*arguments)
        except ShardUnavailableError as error:
            say("unavailable", "unknown" if error.outcome_unknown else "not-done")


async def agent(store: ClusterStore, prefix: str, number: int, over: threading.Event) -> None:
    """Write rollouts until it is over."""
    count = 0
    while not over.is_set():
        rollout = f"{prefix}-{number}-{count}"
        for turn in range(TURNS):
            call = f"c{turn}"
            await insist(store.begin_call, rollout, call)
            await insist(store.put, entry(call, rollout_id=rollout, prompt_token_ids=[number, count, turn] * 100))
            say("acked", rollout, call)
            if over.is_set():
                return
        snapshot = await insist(store.freeze, rollout)
        say("frozen", rollout, snapshot.snapshot_id, len(snapshot.entries), snapshot.incomplete)
        try:
            await insist(store.put, entry("late", rollout_id=rollout))
            say("wrong", rollout, "took a late put")
        except TokenCaptureFrozenError:
            pass
        count += 1


async def main(name: str, prefix: str, over: threading.Event) -> None:
    """Run all agents."""
    async with connect(name, deadline=DEADLINE) as store, anyio.create_task_group() as tasks:
        say("begins")
        for number in range(AGENTS):
            tasks.start_soon(agent, store, prefix, number, over)


def stop_with_input(over: threading.Event) -> None:
    """Say that it is over when the input ends."""
    sys.stdin.read()
    over.set()


def run() -> None:
    """Join the cluster and write until the input ends."""
    import ray  # noqa: PLC0415 - optional

    global ledger  # noqa: PLW0603 - what Ray says goes to stdout, so that is no ledger
    address, name, backend, prefix, file = sys.argv[1:]
    ledger = os.open(file, os.O_WRONLY | os.O_APPEND)
    ray.init(address=address, _node_ip_address=HEAD, namespace="test", log_to_driver=False, logging_level="error")
    over = threading.Event()
    threading.Thread(target=stop_with_input, args=[over], daemon=True).start()
    anyio.run(main, name, prefix, over, backend=backend)
    say("ends")
    os._exit(0)  # a driver whose cluster is in ruins may take long to say goodbye


if __name__ == "__main__":
    run()
