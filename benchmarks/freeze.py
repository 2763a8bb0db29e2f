"""A trainer takes over a finished rollout: 200 turns of an agent, the last with 100,000 tokens of context.

All bytes are in the page cache, as they are when an episode has just ended; what costs is making Python objects.
*Parsing whole lines* is ujson alone, without a check, on lines that hold every prompt whole.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import ujson

from benchmarks.contenders import Contender
from benchmarks.contenders.ours import PER_FILE
from benchmarks.harness.baselines import line_of
from benchmarks.harness.load import one_after_the_other
from benchmarks.harness.shapes import SMALL, rollout_of, work_out_of_sight
from benchmarks.harness.suite import OURS, Key, Run, Target, Values, installed
from tokenstore import TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.codec import decode_line
from tokenstore.testing.rollouts import agent_rollout

TITLE = "Freeze: 200 turns of an agent, up to 100,000 tokens of context"
PLOTS = ("ms",)
CASE = "200 turns up to 100,000 tokens"
PARSING = "parsing whole lines"
AGAIN_HELD = f"{OURS}, again while held"
STREAM = f"{SMALL}, entries() of a rollout"
ROLLOUT = "rollout"
FIRST_PROMPT, GENERATED, ADDED = 2000, 192, 300
FEW, MANY = 1000, 4000
"""Entries of the two rollouts that are streamed."""


def targets() -> list[Target]:
    """Shared prompts are built once, and a snapshot that the caller still holds is given again."""
    parsing, ms = Key(CASE, PARSING, "ms"), partial(Key, CASE, what="ms")
    few, many = (Key(STREAM, f"{count:,} entries", "peak KB") for count in (FEW, MANY))
    return [
        Target(text="parsing whole lines over the first freeze", value=parsing, over=ms(OURS), at_least=6.0),
        Target(text="parsing whole lines over a freeze while held", value=parsing, over=ms(AGAIN_HELD), at_least=20.0),
        Target(text="bytes of the snapshot a prompt token", value=Key(CASE, OURS, "bytes/token"), at_most=12.0),
        Target(text=f"entries(): peak with {MANY:,} entries over {FEW}", value=many, over=few, at_most=1.2),
    ]


def measure(run: Run) -> Values:
    """Measure reading the same rollout in every way."""
    entries = _turns(run.size(200, 20))
    ours, lines = run.place(), run.place()
    _fill(PER_FILE, ours, entries)
    lines.write_bytes(b"".join(map(line_of, entries)))
    (ours_file,) = ours.glob("*.tokens.jsonl")
    steps: dict[str, Callable[[], int]] = {
        PARSING: partial(_parse, lines, ujson.loads),
        "parsing whole lines, json": partial(_parse, lines, json.loads),
        "parsing and checking whole lines": partial(_parse, lines, partial(decode_line, rollout_id=ROLLOUT)),
        "disk, whole lines": partial(_read_only, lines, len(entries)),
        "disk": partial(_read_only, ours_file, len(entries)),
    }
    if installed("orjson"):
        steps["parsing whole lines, orjson"] = partial(_parse, lines, import_module("orjson").loads)
    for contender in run.contenders:
        if contender.read is not None:
            place = run.place()
            _fill(contender, place, entries)
            steps[contender.name] = partial(contender.read, place, ROLLOUT)
    values: Values = {}
    for who, step in run.turn(list(steps.items())):
        values[Key(CASE, who, "ms")] = _timed(step, len(entries))
    values.update(anyio.run(_freeze, ours, len(entries), backend="asyncio"))
    values.update(anyio.run(_stream, run.place(), run.size(1.0, 0.05), backend="asyncio"))
    return values


@lru_cache(maxsize=1)
def _turns(count: int) -> list[TokenEntry]:
    return agent_rollout(ROLLOUT, turns=count, first_prompt=FIRST_PROMPT, generated=GENERATED, added=ADDED)


def _parse(path: Path, loads: Callable[[bytes], Any]) -> int:
    with path.open("rb") as file:
        return len([loads(line.rstrip(b"\n")) for line in file])


def _read_only(path: Path, count: int) -> int:
    path.read_bytes()
    return count


def _fill(contender: Contender, root: Path, entries: list[TokenEntry]) -> None:
    """Store the rollout with a contender."""

    async def fill() -> None:
        async with contender.open(root) as sink:
            await one_after_the_other(sink, [contender.convert(entry) for entry in entries])

    anyio.run(fill, backend="asyncio")


def _timed(step: Callable[[], int], expected: int) -> float:
    """Milliseconds of a step that must find that many entries."""
    with work_out_of_sight():
        started = perf_counter()
        found = step()
        seconds = perf_counter() - started
    if found != expected:
        raise RuntimeError(f"{found} of {expected} entries came back")
    return seconds * 1e3


async def _freeze(root: Path, count: int) -> Values:
    """Freeze as a process does that has not written the rollout; then again, held and not; then for its memory."""
    values: Values = {}
    async with TokenCaptureStore(root) as store:
        with work_out_of_sight():
            snapshot = await _note(values, OURS, store, count)
            tokens = sum(len(entry.prompt_token_ids) for entry in snapshot.entries)
            again = await _note(values, AGAIN_HELD, store, count)
            del snapshot, again
            await _note(values, f"{OURS}, again after letting go", store, count)
    async with TokenCaptureStore(root) as store:
        with traced() as kept:
            snapshot = await store.freeze(ROLLOUT)
        values[Key(CASE, OURS, "bytes/token")] = kept[0] / tokens
        del snapshot
    return values


async def _note(values: Values, who: str, store: TokenCaptureStore, count: int) -> TokenCaptureSnapshot:
    started = perf_counter()
    snapshot = await store.freeze(ROLLOUT)
    values[Key(CASE, who, "ms")] = (perf_counter() - started) * 1e3
    if len(snapshot.entries) != count or snapshot.incomplete:
        raise RuntimeError(f"{snapshot!r} should hold {count} entries")
    return snapshot


@contextmanager
def traced() -> Iterator[list[int]]:
    """Give the bytes that are kept, and the most that there were, when the body has ended."""
    found: list[int] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield found
        kept, peak = tracemalloc.get_traced_memory()
        found += [kept - before, peak - before]
    finally:
        tracemalloc.stop()


async def _stream(root: Path, share: float) -> Values:
    """Memory of reading one by one, of a short and of a long rollout."""
    counts = {f"{count:,} entries": int(count * share) for count in (FEW, MANY)}
    values: Values = {}
    async with TokenCaptureStore(root) as store:
        for count in counts.values():
            rollout_id = f"streamed-{count}"
            async with anyio.create_task_group() as tasks:
                for entry in rollout_of(SMALL, rollout_id, count):
                    tasks.start_soon(store.put, entry)
    async with TokenCaptureStore(root) as store:
        for who, count in counts.items():
            with traced() as kept:
                found = [1 async for _ in store.entries(f"streamed-{count}")]
            if len(found) != count:
                raise RuntimeError(f"{len(found)} of {count} entries came back")
            values[Key(STREAM, who, "peak KB")] = kept[1] / 1e3
    return values
