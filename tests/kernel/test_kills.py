"""SIGKILL at every system call of a script and at random times, and the calls themselves, by strace."""

from __future__ import annotations

import random
import re
import signal
from pathlib import Path

import pytest

from tests.children import entry, opened, start
from tests.kernel import needs
from tests.kernel.accounting import problems
from tokenstore.testing import first_difference

STRACE = ("strace", "-f", "-qq", "-o")


def _killed_at(folder: Path, call: str, number: int) -> tuple[bool, list[str]]:
    """Run the script, kill it at a call, and account for it; tell whether it was killed, and what is wrong."""
    trace = {"rename": "rename,renameat,renameat2", "unlink": "unlink,unlinkat"}.get(call, call)
    root = folder / f"{call}{number}"
    inject = f"inject={trace}:signal=SIGKILL:when={number}"
    wrap = [*STRACE, "/dev/null", "-e", f"trace={trace}", "-e", inject]
    root.mkdir()
    with start("script", root, wrap=wrap) as child:
        status, said = child.last_words()
    assert status in (0, -signal.SIGKILL, 128 + signal.SIGKILL)
    return status != 0, problems(root, said)


@pytest.mark.kernel
@pytest.mark.timeout(600)
@pytest.mark.parametrize("call", ["fdatasync", "fsync", "rename", "unlink", "flock", "pwrite64"])
def test_a_kill_at_any_call_loses_nothing_acked(call: str, tmp_path: Path) -> None:
    """Killed at the first, second, and every further such call, a process leaves all that it had acknowledged."""
    needs.programs("strace")
    kills = 0
    for number in range(1, 200):
        killed, wrong = _killed_at(tmp_path, call, number)
        assert wrong == [], f"{call} {number}"
        if not killed:
            break
        kills += 1

    print(f"{kills} kills at {call}")  # noqa: T201
    assert kills > 2


def test_a_kill_at_a_sync_loses_nothing_acked(tmp_path: Path) -> None:
    """The same at the third fdatasync alone, to see at every run that the layer works."""
    needs.programs("strace")

    killed, wrong = _killed_at(tmp_path, "fdatasync", 3)

    assert (killed, wrong) == (True, [])


def test_the_directory_is_synced_before_the_first_ack(tmp_path: Path) -> None:
    """Case 7 on a real kernel: before a first begin_call or put is acknowledged its file, then the directory, is."""
    needs.programs("strace")
    log = tmp_path / "log"
    wrap = [*STRACE, str(log), "-y", "-e", "trace=fsync,fdatasync,write"]
    with start("script", tmp_path / "root", wrap=wrap) as child:
        child.finish()

    calls = re.findall(r"(fsync|fdatasync)\(\d+<([^>]*)>|write\(1<[^>]*>, \"([^\"]*)", log.read_text(encoding="utf-8"))
    said = [text.replace("\\n", "") for _, _, text in calls]
    before_begin = [(call, Path(path).name) for call, path, _ in calls[: said.index("begin r c1")] if call]
    before_put = [(call, Path(path).name) for call, path, _ in calls[said.index("begin r c1") :] if call]
    assert before_begin[-2:] == [("fdatasync", "r.tokens.intents"), ("fsync", "root")]
    assert before_put[:2] == [("fdatasync", "r.tokens.jsonl"), ("fsync", "root")]


@pytest.mark.parametrize("code", ["ENOLCK", "ENOSYS"])
def test_a_file_system_without_locks_is_refused(code: str, tmp_path: Path) -> None:
    """Case 34 on a real kernel: where flock fails the store does not open, and says so."""
    needs.programs("strace")
    wrap = [*STRACE, "/dev/null", "-e", "trace=flock", "-e", f"inject=flock:error={code}"]
    with start("script", tmp_path / "root", wrap=wrap) as child:
        _, complaint = child.process.communicate()

    assert child.process.returncode == 1
    assert b"no working flock" in complaint
    assert list((tmp_path / "root").iterdir()) == []


def _random_kills(folder: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Kill a writer at random times; give how many entries were acked and how many were there."""
    print(f"seed {seed}")  # noqa: T201 - shown when the test fails
    chance = random.Random(seed)  # noqa: S311 - replayable, not secret
    acked: set[str] = set()
    there = 0
    for life in range(rounds):
        with start("put_batches", folder, f"l{life}n", 64, 4) as child:
            said = [child.line() for _ in range(chance.randrange(1, 40))]
            child.process.send_signal(signal.SIGKILL)
            said += child.last_words()[1]
        acked |= {line.split()[1] for line in said if line.startswith("acked")}
        there = _check_all_there(folder, acked)
    return len(acked), there


def _check_all_there(folder: Path, acked: set[str]) -> int:
    with opened(folder) as store:
        there = {each.model_call_id: each for each in store.read_entries("r")}
    assert acked - there.keys() == set()
    for call_id, each in there.items():
        number = int(call_id.split("n")[-1])
        assert first_difference(entry("r", call_id, number=number), each) is None
    return len(there)


def test_random_kills_lose_nothing_acked(tmp_path: Path) -> None:
    """Three writers killed at random times, one after the other, lose nothing of what they had acknowledged."""
    acked, there = _random_kills(tmp_path, 3, seed=1)

    assert there >= acked > 0


@pytest.mark.kernel
@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_kills_with_many_syncs_in_flight_lose_nothing_acked(backend: str, tmp_path: Path) -> None:
    """Killed while the kernel makes the syncs of many rollouts, a writer leaves all that it had acknowledged, whole."""
    chance = random.Random(3)  # noqa: S311 - replayable, not secret
    acked: set[tuple[str, ...]] = set()
    for life in range(8):
        with start("put_to_all", backend, tmp_path, f"l{life}n", 64) as child:
            said = [child.line() for _ in range(chance.randrange(100, 600))]
            child.process.send_signal(signal.SIGKILL)
            said += child.last_words()[1]
        acked |= {tuple(line.split()[1:]) for line in said if line.startswith("acked")}

    with opened(tmp_path) as store:
        snapshots = {rollout_id: store.freeze_now(rollout_id) for rollout_id in sorted({name for name, _ in acked})}
    there = {(name, each.model_call_id) for name, snapshot in snapshots.items() for each in snapshot.entries}
    print(f"{len(acked)} acked, {len(there)} there")  # noqa: T201
    assert acked - there == set()
    assert [name for name, snapshot in snapshots.items() if snapshot.incomplete] == []
    assert len(acked) > 800


@pytest.mark.kernel
@pytest.mark.timeout(300)
def test_forty_random_kills_lose_nothing_acked(tmp_path: Path) -> None:
    """The same forty times."""
    acked, there = _random_kills(tmp_path, 40, seed=2)

    print(f"{acked} acked, {there} there")  # noqa: T201
    assert there >= acked > 40
