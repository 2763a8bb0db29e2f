"""Those who are measured do what is measured, and the instruments see what they should."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import anyio
import pytest

from benchmarks import scale
from benchmarks.contenders import Contender, lightning, ours, plain, reference, sqlite
from benchmarks.harness.baselines import ONE_AFTER_THE_OTHER, bare, disk, in_threads, line_of
from benchmarks.harness.load import check_stored, side_by_side, throughput
from benchmarks.harness.shapes import Shape, named_call, rollouts_of
from benchmarks.harness.suite import installed
from benchmarks.harness.turns import Stream, bytes_written, take_turns
from benchmarks.loop_lag import lags_during
from tokenstore import TokenCaptureStore, TokenEntry
from tokenstore.testing import first_difference

TINY = Shape(12, 4)
EVERYBODY = [contender for module in (ours, plain, sqlite, lightning, reference) for contender in module.CONTENDERS]
NAMES = [contender.name for contender in EVERYBODY]


def needed(contender: Contender) -> None:
    """Skip a test of somebody who is not installed."""
    if missing := [module for module in contender.needs if not installed(module)]:
        pytest.skip(f"{', '.join(missing)} not installed")


@pytest.mark.parametrize("contender", EVERYBODY, ids=NAMES)
def test_contenders_store_read_and_remove(contender: Contender, tmp_path: Path) -> None:
    """What a contender is given is there afterwards, comes back whole, and is gone when it was removed."""
    needed(contender)
    rollouts = rollouts_of(TINY, 3, 4)
    folder = tmp_path / "sink"

    async def put() -> None:
        async with contender.open(folder) as sink:
            await side_by_side(sink, [[contender.convert(entry) for entry in entries] for entries in rollouts])

    anyio.run(put, backend="asyncio")

    assert contender.stored(folder) == 12
    if contender.read and contender.remove:
        first, second, third = (entries[0].rollout_id for entries in rollouts)
        assert contender.read(folder, second) == 4
        contender.remove(folder, [first, third])
        assert contender.stored(folder) == 4


@pytest.mark.parametrize("contender", ONE_AFTER_THE_OTHER, ids=lambda contender: contender.name)
def test_baselines_write_the_lines_of_the_store(contender: Contender, tmp_path: Path) -> None:
    """Both baselines write byte for byte what the store writes."""
    (entries,) = rollouts_of(TINY, 1, 3)

    async def put(into: Contender, folder: Path) -> bytes:
        async with into.open(folder) as sink:
            await side_by_side(sink, [[into.convert(entry) for entry in entries]])
        (file,) = folder.rglob("*.jsonl")
        return file.read_bytes()

    lines = anyio.run(put, ours.PER_FILE, tmp_path / "store", backend="asyncio")
    found = anyio.run(put, contender, tmp_path / "baseline", backend="asyncio")

    assert found.removeprefix(b"{}\n") == lines
    assert contender.stored(tmp_path / "baseline") == 3


def test_threads_write_everything(tmp_path: Path) -> None:
    """The baselines of many rollouts write each line once with each number of threads, never more than rollouts."""
    rollouts = rollouts_of(TINY, 3, 2)
    lines = [[line_of(entry) for entry in entries] for entries in rollouts]

    ready, encoded = disk(tmp_path / "disk", lines, (2, 4, 8)), bare(tmp_path / "bare", rollouts, (1,))

    assert (ready.puts, encoded.puts) == (6, 6)
    assert (tmp_path / "disk" / "1.jsonl").read_bytes() == b"{}\n" + 2 * b"".join(lines[1])
    assert (tmp_path / "bare" / "2.jsonl").read_bytes() == b"{}\n" + b"".join(lines[2])


def test_threads_start_together() -> None:
    """As many threads as wanted are there at once, each with its own number."""
    together = threading.Barrier(3)
    numbers = []

    def work(number: int) -> None:
        together.wait(timeout=30)
        numbers.append(number)

    in_threads(3, work, 1)

    assert sorted(numbers) == [0, 1, 2]


def test_a_contender_that_loses_entries_is_found_out(tmp_path: Path) -> None:
    """Throughput of somebody who acknowledges more than he stores is an error."""
    forgetful = Contender(name="forgetful", open=ours.PER_FILE.open, stored=lambda _: 5)

    with pytest.raises(RuntimeError, match="forgetful acknowledged 6 entries and stored 5"):
        throughput(forgetful, tmp_path / "sink", rollouts_of(TINY, 2, 3))


def test_what_was_checked_is_cleared(tmp_path: Path) -> None:
    """After the check the folder is gone, so that the disk does not fill."""
    (tmp_path / "sink").mkdir()

    check_stored(ours.PER_FILE, tmp_path / "sink", 0)

    assert not (tmp_path / "sink").exists()


@pytest.mark.anyio
async def test_streams_count_bytes_after_warming_up(tmp_path: Path) -> None:
    """Streams put all they have; the bytes of a put are those of its line, the first turn left out."""
    entries = [named_call(TINY, number % 2, "rollout", number) for number in range(6)]
    async with TokenCaptureStore(tmp_path) as store:
        stream = Stream(store, entries)
        await take_turns([stream], 6, 2)

    values = {key.what: value for key, value in stream.values("case", "who").items()}
    lengths = sum(len(line_of(entry)) for entry in entries[2:]) / 4
    assert lengths <= values["bytes/put"] < lengths + 100  # waking a loop and its threads writes a few bytes
    assert (tmp_path / "rollout.tokens.jsonl").read_bytes().count(b"\n") == 6


def test_written_bytes_are_seen(tmp_path: Path) -> None:
    """Bytes given to a system call are counted."""
    before = bytes_written()

    (tmp_path / "file").write_bytes(bytes(10_000))

    assert bytes_written() - before >= 10_000


@pytest.mark.anyio
async def test_a_held_loop_is_late() -> None:
    """A loop that is held for 50 milliseconds has a tick that is late by most of that."""

    async def hold() -> None:
        time.sleep(0.05)  # noqa: ASYNC251 - that is what is to be seen
        await anyio.sleep(0.005)

    lags = await lags_during(hold)

    assert max(lags) > 0.04


def test_calls_of_the_same_content_differ_in_their_names_only() -> None:
    """Calls made of one content have lines of the same length whatever rollout they are in."""
    first, second = named_call(TINY, 1, "rollout-a", 3), named_call(TINY, 1, "rollout-b", 4)

    assert first_difference(first, second) is not None
    assert len(line_of(first)) == len(line_of(second))
    assert first.generation_token_ids == second.generation_token_ids


class ForgetfulStore(TokenCaptureStore):
    """Acknowledges its first entry and does not store it."""

    _forgot = False

    async def put(self, entry: TokenEntry) -> None:
        """Store an entry, but for the first."""
        if self._forgot:
            await super().put(entry)
        self._forgot = True


def test_scale_misses_what_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts that are put to after idling are looked at, and an entry that is not there is told."""
    monkeypatch.setattr(scale, "TokenCaptureStore", ForgetfulStore)

    with pytest.raises(RuntimeError, match="acknowledged 5 entries and stored 4"):
        anyio.run(scale._after_idling, tmp_path / "store", 2, 1, backend="asyncio")
