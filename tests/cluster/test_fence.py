"""A shard that was stopped and revived cannot write: seen with real processes, and that it could without the fence."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.given import shard_plan
from tests.cluster.nodes import TOP
from tokenstore import TokenCaptureStore


class Child:
    """A shard in a process of its own.

    Args:
        root: The root of the store.
        fence: `fenced` or `unfenced`.
    """

    def __init__(self, root: Path, fence: str) -> None:
        command = [sys.executable, "-m", "tests.cluster.fenced", str(root), fence]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TOP
        )

    def line(self) -> str:
        """Give what it says next; nothing if it has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, call: str) -> None:
        """Have it put a call."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{call}\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, list[str]]:
        """End its input, and give its status and what it still said."""
        said, _ = self.process.communicate(timeout=30)
        return self.process.returncode, said.split("\n")


@contextmanager
def child(root: Path, fence: str) -> Iterator[Child]:
    """Run a shard in a process of its own, which does not outlive the block."""
    there = Child(root, fence)
    try:
        yield there
    finally:
        there.process.send_signal(signal.SIGCONT)
        there.process.kill()
        there.process.communicate()


def acknowledged_after_revival(root: Path, fence: str) -> tuple[list[str], int, list[str]]:
    """Stop a shard, let another process take it over, revive the first: what does it acknowledge, and how does it end?

    Returns:
        Calls that the first acknowledged after it was revived, its exit status, and the calls that are in the files.
    """
    with child(root, fence) as first:
        assert first.line() == "up"
        first.ask("before")
        assert first.line() == "acked before"
        first.process.send_signal(signal.SIGSTOP)
        first.ask("late")
        with child(root, fence) as second:
            taken = second.line()  # with the fence it has claimed the shard, and waits for the stopped one to be gone
            first.process.send_signal(signal.SIGCONT)
            if taken == "waiting":
                taken = second.line()
            assert taken == "up"
            second.ask("after")
            assert second.line() == "acked after"
            status, said = first.end()
            assert second.end()[0] == 0
    there = TokenCaptureStore(shard_plan(root).directory).read_entries("r")
    acked = [line.removeprefix("acked ") for line in said if line.startswith("acked ")]
    return acked, status, [call.model_call_id for call in there]


def test_a_revived_shard_cannot_write(tmp_path: Path) -> None:
    """A process whose shard was taken over while it was stopped writes nothing, acknowledges nothing, and ends."""
    acked, status, calls = acknowledged_after_revival(tmp_path, "fenced")

    assert (acked, status) == ([], 3)
    assert calls == ["before", "after"]


def test_without_the_fence_it_could(tmp_path: Path) -> None:
    """With the fence off the same process writes and acknowledges after another had taken over: the test can fail."""
    acked, status, calls = acknowledged_after_revival(tmp_path, "unfenced")

    assert (acked, status) == (["late"], 0)
    assert sorted(calls) == ["after", "before", "late"]


def test_a_killed_shard_is_taken_over_at_once(tmp_path: Path) -> None:
    """A process that was killed has let its lock go: the next one does not wait."""
    with child(tmp_path, "fenced") as first:
        assert first.line() == "up"
        first.process.kill()
        first.process.wait()
        with child(tmp_path, "fenced") as second:
            assert second.line() == "up"
            second.ask("c")
            assert second.line() == "acked c"
