"""`tokenstore ingest`."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Self

import anyio
import pytest

from tests.cli.running import COMMAND, Runner
from tokenstore import DurabilityError, TokenCaptureStore, TokenEntry
from tokenstore.cli import ingest
from tokenstore.codec import dumps, encode_entry
from tokenstore.testing import SHAPES, agent_rollout, first_difference, shaped_rollout


def write(path: Path, entries: Iterable[TokenEntry]) -> Path:
    """Write entries as JSONL."""
    path.write_bytes(b"".join(line + b"\n" for line in lines_of(entries)))
    return path


def lines_of(entries: Iterable[TokenEntry]) -> list[bytes]:
    """Give entries as lines without their newline."""
    return [dumps(encode_entry(entry)) for entry in entries]


def stored(root: Path, rollout_id: str, entries: Sequence[TokenEntry]) -> bool:
    """Tell whether a rollout holds these entries to the last bit, in this order."""
    found = TokenCaptureStore(root).read_entries(rollout_id)
    return len(found) == len(entries) and not any(map(first_difference, entries, found))


def summary(out: str) -> dict[str, Any]:
    """Read the last line of the JSON output, without what depends on the clock."""
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert last.pop("seconds") >= 0
    assert last.pop("event") == "summary"
    return last


def test_every_kind_of_rollout_goes_in(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Each shape of the generator comes back value for value, in the order of the file."""
    rollouts = {shape: shaped_rollout(shape, shape) for shape in SHAPES}
    file = write(tmp_path / "all.jsonl", chain.from_iterable(rollouts.values()))
    count = sum(map(len, rollouts.values()))

    result = run("ingest", file, "--root", tmp_path / "store", *backend)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"lines {count}, stored {count}, already there 0, refused 0, in ")
    assert all(stored(tmp_path / "store", shape, entries) for shape, entries in rollouts.items())


def test_again_stores_nothing_twice(run: Runner, tmp_path: Path) -> None:
    """A second run finds everything there already and ends well."""
    file = write(tmp_path / "a.jsonl", shaped_rollout("append_only", "r"))
    run("ingest", file, "--root", tmp_path / "store")

    result = run("ingest", file, file, "--json", "--root", tmp_path / "store")

    assert result.status == 0
    counts = {"lines": 10, "stored": 0, "already_there": 10, "refused": 0, "unreadable_files": 0, "stopped": False}
    assert summary(result.out) == counts


def test_interleaved_rollouts_keep_their_order(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Lines of one rollout are stored in the order of the file, also when many rollouts go in at once."""
    rollouts = [agent_rollout(f"r{number}", turns=30, first_prompt=20, generated=3, added=2) for number in range(7)]
    file = write(tmp_path / "mixed.jsonl", filter(None, chain.from_iterable(zip_longest(*rollouts))))

    assert run("ingest", file, "--root", tmp_path / "store", *backend).status == 0

    assert all(stored(tmp_path / "store", entries[0].rollout_id, entries) for entries in rollouts)


def test_bad_lines_are_named_and_good_ones_kept(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Each refused line is one line on stderr with file, number and problem; the rest is stored; status 1."""
    entries = shaped_rollout("append_only", "r")
    good = lines_of(entries)
    conflict = good[0].replace(b'"model":"demo/agent-8b"', b'"model":"other"')
    own = good[1][:-1] + b',"crc32":5}'
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\n".join([good[0], b"{not json", b"", good[1], own, b"[1]", conflict, good[2]]))

    result = run("ingest", file, "--root", tmp_path / "store", *backend)

    assert result.status == 1
    assert [line.split(": ")[0] for line in result.err.splitlines()] == [f"{file}:{number}" for number in (2, 5, 6, 7)]
    assert "not JSON" in result.err
    assert "crc32" in result.err
    assert "lines 7, stored 3, already there 0, refused 4" in result.out
    assert stored(tmp_path / "store", "r", entries[:3])


def test_json_names_refused_lines_too(run: Runner, tmp_path: Path) -> None:
    """With `--json` a refusal is an object with file, line, error and problem, and stderr is silent."""
    file = tmp_path / "bad.jsonl"
    file.write_bytes(b"\n\n{}\n")

    result = run("ingest", file, tmp_path / "missing", "--json", "--root", tmp_path / "store")

    refused, missing, _ = map(json.loads, result.out.splitlines())
    assert (result.status, result.err) == (1, "")
    assert refused["event"] == "refused"
    assert (refused["file"], refused["line"], refused["error"]) == (str(file), 3, "InvalidEntryError")
    assert (missing["line"], missing["problem"]) == (None, "No such file or directory")
    assert summary(result.out)["unreadable_files"] == 1


def test_a_missing_file_does_not_stop_the_others(run: Runner, tmp_path: Path) -> None:
    """Files that cannot be read are named, the others go in, and the status is 1."""
    file = write(tmp_path / "a.jsonl", shaped_rollout("single_call", "r"))

    result = run("ingest", tmp_path / "missing", tmp_path, file, "--root", tmp_path / "store")

    assert result.status == 1
    assert f"{tmp_path / 'missing'}: No such file or directory" in result.err
    assert f"{tmp_path}: Is a directory" in result.err
    assert "stored 1, already there 0, refused 0, unreadable files 2" in result.out


def test_stdin_is_a_file_too(tmp_path: Path, backend: Sequence[str]) -> None:
    """`-` reads a pipe, in pieces that end anywhere."""
    text = b"\n".join(lines_of(agent_rollout("r", turns=20)))
    process = subprocess.Popen(
        [*COMMAND, "ingest", "-", "--json", "--root", str(tmp_path), *backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    for start in range(0, len(text), 50_001):
        process.stdin.write(text[start : start + 50_001])
        process.stdin.flush()

    out, _ = process.communicate()

    assert process.returncode == 0
    assert summary(out.decode())["stored"] == 20


def test_stdin_of_this_process(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stdin without a descriptor is read too, and stays open."""
    stdin = io.TextIOWrapper(io.BytesIO(b"{}\n"))
    monkeypatch.setattr(sys, "stdin", stdin)

    result = run("ingest", "-", "--root", tmp_path)

    assert result.err.startswith("<stdin>:1: ")
    assert not stdin.closed


def test_ctrl_c_while_waiting_for_input(tmp_path: Path, backend: Sequence[str]) -> None:
    """Ctrl-C ends a run that waits for its input at once, with 130 and one line; what was stored is there."""
    entries = shaped_rollout("append_only", "r")
    command = [*COMMAND, "ingest", "-", "--root", str(tmp_path), *backend]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(lines_of(entries)[0] + b"\n")
    process.stdin.flush()
    store = TokenCaptureStore(tmp_path)
    while not store.read_entries("r"):
        time.sleep(0.02)

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)

    assert (process.returncode, errors) == (130, b"tokenstore: interrupted; what was acknowledged is safe\n")
    assert stored(tmp_path, "r", entries[:1])


class CountingStore:
    """Counts how many puts run at once, and fails from one call on, as a full disk does."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.most = self.running = self.puts = 0
        self._fails_at = fails_at

    def __call__(self, _: str) -> Self:
        """Stand in for the class itself."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def statistics(self) -> Self:
        """Give the counters; `puts` is one of them."""
        return self

    async def put(self, _: TokenEntry) -> None:
        """Wait a moment as a disk does."""
        self.running += 1
        self.most = max(self.most, self.running)
        await anyio.sleep(0.001)
        self.running -= 1
        if self.puts == self._fails_at:
            raise DurabilityError("append", "r.tokens.jsonl", OSError(28, "No space left on device"))
        self.puts += 1


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 300 small calls, each of a rollout of its own."""
    calls = chain.from_iterable(agent_rollout(f"r{number}", turns=1, first_prompt=1) for number in range(300))
    return write(tmp_path_factory.mktemp("many") / "many.jsonl", calls)


def test_at_most_64_puts_run_at_once(
    run: Runner, many: Path, tmp_path: Path, backend: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rollouts go in concurrently, but no more than the bound."""
    store = CountingStore()
    monkeypatch.setattr(ingest, "TokenCaptureStore", store)

    assert run("ingest", many, "--root", tmp_path, *backend).status == 0

    assert store.most == ingest.MAX_PUTS
    assert store.puts == 300


def test_a_failing_disk_ends_the_run(
    run: Runner, many: Path, tmp_path: Path, backend: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a put that the disk failed no further line is tried, in no file; the summary says that it stopped."""
    store = CountingStore(fails_at=100)
    monkeypatch.setattr(ingest, "TokenCaptureStore", store)

    result = run("ingest", many, many, "--json", "--root", tmp_path, *backend)

    counts = summary(result.out)
    assert result.status == 1
    assert counts["stopped"]
    assert counts["lines"] == 300
    assert counts["stored"] < 200
    assert '"error":"DurabilityError"' in result.out


def test_recordings_go_in(run: Runner, tmp_path: Path) -> None:
    """Every recorded rollout is stored, and of the odd files only the two that must be are refused."""
    folder = os.environ.get("TOKENSTORE_RECORDED_DATA")
    if not folder:
        pytest.skip("TOKENSTORE_RECORDED_DATA is not set")
    recorded = sorted(Path(folder, "recorded").glob("*.jsonl"))
    odd = sorted(Path(folder, "odd").glob("*.jsonl"))

    good = run("ingest", *recorded, "--root", tmp_path / "recorded")
    mixed = run("ingest", *odd, "--root", tmp_path / "odd")

    assert (good.status, good.err) == (0, "")
    assert mixed.status == 1
    refused = {line.rsplit("/", 1)[-1].split(":")[0] for line in mixed.err.splitlines()}
    assert refused == {"len_mismatch_megatron.jsonl", "null_logprobs_agl.jsonl"}
