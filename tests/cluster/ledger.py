"""Accounts for what writers were told: everything acknowledged must be there, in the same snapshot every time."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from tests.cluster.nodes import TOP, until
from tokenstore import TokenCaptureSnapshot


@attrs.frozen
class Ledger:
    """What writers said."""

    acked: dict[str, set[str]]
    """Acknowledged calls of each rollout."""
    frozen: dict[str, str]
    """Snapshot ids of rollouts that were frozen."""
    wrong: tuple[str, ...]
    """What should never have happened."""
    counts: Counter[str]
    """How often each word began a line."""

    @property
    def puts(self) -> int:
        """How many puts were acknowledged."""
        return sum(map(len, self.acked.values()))


def read(files: list[Path]) -> Ledger:
    """Read ledgers; a line that was not finished counts for nothing."""
    acked: dict[str, set[str]] = {}
    frozen: dict[str, str] = {}
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
            words = line.split()
            counts[words[0]] += 1
            if words[0] == "acked" and line.endswith("\n"):
                acked.setdefault(words[1], set()).add(words[2])
            elif words[0] == "frozen":
                frozen[words[1]] = words[2]
                if int(words[3]) != len(acked[words[1]]) or words[4] != "False":
                    wrong.append(line)
            elif words[0] == "wrong":
                wrong.append(line)
    return Ledger(acked, frozen, tuple(wrong), counts)


def problems(ledger: Ledger, freeze: Callable[[str], TokenCaptureSnapshot]) -> list[str]:
    """Freeze every rollout twice and name all that is wrong.

    Args:
        ledger: What writers were told.
        freeze: Gives the snapshot of a rollout, wherever it is.
    """
    found = list(ledger.wrong)
    for rollout, calls in ledger.acked.items():
        snapshot = freeze(rollout)
        there = {call.model_call_id for call in snapshot.entries}
        found += [f"{rollout} lost {call}" for call in sorted(calls - there)]
        if len(there) != len(snapshot.entries):
            found.append(f"{rollout} has a call twice")
        if freeze(rollout) != snapshot:
            found.append(f"{rollout} froze differently the second time")
        if ledger.frozen.get(rollout, snapshot.snapshot_id) != snapshot.snapshot_id:
            found.append(f"{rollout} has another snapshot id than it had")
    return found


class Writers:
    """Two writer programs at work, one on each event loop.

    Args:
        address: Of the Ray cluster.
        name: The cluster store.
        folder: For their ledgers.
        prefix: Of their rollouts.
    """

    def __init__(self, address: str, name: str, folder: Path, prefix: str) -> None:
        self.files = [folder / f"{prefix}-{backend}.ledger" for backend in ("asyncio", "trio")]
        self._children = []
        for backend, file in zip(("asyncio", "trio"), self.files, strict=True):
            file.touch()
            words = [address, name, backend, f"{prefix}-{backend}", str(file)]
            command = [sys.executable, "-m", "tests.cluster.writer", *words]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=TOP)
            self._children.append(child)

    def acked(self) -> int:
        """How many puts were acknowledged so far."""
        return read(self.files).puts

    def more(self, count: int, seconds: float = 90.0) -> None:
        """Wait until so many more puts were acknowledged to each writer."""
        before = [read([file]).puts for file in self.files]
        for file, had in zip(self.files, before, strict=True):
            until(lambda file=file, had=had: read([file]).puts >= had + count, seconds)

    def stop(self, seconds: float = 60.0) -> None:
        """Let them finish what they are at, or end them."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.close()
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            child.kill()
            child.wait()


@contextlib.contextmanager
def writing(address: str, name: str, folder: Path, prefix: str) -> Iterator[Writers]:
    """Run two writers while the block runs."""
    writers = Writers(address, name, folder, prefix)
    try:
        writers.more(20)
        yield writers
    finally:
        writers.stop()
