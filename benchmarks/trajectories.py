"""From a snapshot to sequences to train on: 200 turns of an agent, the last with 100,000 tokens of context.

What it is measured against is the least that anybody must do: *packing* every prompt and generation once. `build`
packs them too, and finds out who extends whom, masks, copies log probabilities, and reports.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from time import perf_counter

from benchmarks.harness.shapes import work_out_of_sight
from benchmarks.harness.suite import OURS, Key, Run, Target, Values
from tokenstore import TokenCaptureSnapshot, TokenEntry
from tokenstore.testing.rollouts import agent_rollout
from tokenstore.trajectories import build

TITLE = "Trajectories: 200 turns of an agent, up to 100,000 tokens of context"
PLOTS = ("ms",)
CASE = "200 turns up to 100,000 tokens"
BACKWARDS = "the same, captured backwards"
BROKEN = "200 turns up to 100,000 tokens, every prefix broken"
PACKING = "packing every call"
ROLLOUT = "rollout"
FIRST_PROMPT, GENERATED, ADDED = 2000, 192, 300


def targets() -> list[Target]:
    """Building costs a small multiple of touching every token once, whatever the rollout looks like."""
    return [
        Target(
            text=f"build over packing, {case}", value=Key(case, OURS, "ms"), over=Key(case, PACKING, "ms"), at_most=5.0
        )
        for case in (CASE, BACKWARDS, BROKEN)
    ]


def measure(run: Run) -> Values:
    """Measure building three rollouts."""
    values: Values = {}
    turns = run.size(200, 20)
    for case, entries, chains in (
        (CASE, _turns(turns), 1),
        (BACKWARDS, _turns(turns)[::-1], 1),
        (BROKEN, _broken(turns), turns),
    ):
        steps: dict[str, Callable[[], int]] = {
            PACKING: partial(_pack, entries, chains),
            OURS: partial(_build, entries),
        }
        for who, step in run.turn(list(steps.items())):
            values[Key(case, who, "ms")] = _timed(step, chains)
    return values


@lru_cache(maxsize=1)
def _turns(count: int) -> list[TokenEntry]:
    return agent_rollout(ROLLOUT, turns=count, first_prompt=FIRST_PROMPT, generated=GENERATED, added=ADDED)


@lru_cache(maxsize=1)
def _broken(count: int) -> list[TokenEntry]:
    """Make turns whose prompts leave out what the turn before generated but for its first token."""
    history: list[int] = []
    broken = []
    for turn in _turns(count):
        fresh = turn.prompt_token_ids[-(GENERATED + ADDED) :] if history else turn.prompt_token_ids
        history = history + fresh
        broken.append(
            TokenEntry(
                rollout_id=ROLLOUT,
                model_call_id=turn.model_call_id,
                prompt_token_ids=history,
                generation_token_ids=turn.generation_token_ids,
                generation_log_probs=turn.generation_log_probs,
            )
        )
        history = history + turn.generation_token_ids[:1]
    return broken


def _pack(entries: Sequence[TokenEntry], chains: int) -> int:
    for entry in entries:
        array("I", entry.prompt_token_ids + entry.generation_token_ids)
    return chains


def _build(entries: Sequence[TokenEntry]) -> int:
    snapshot = TokenCaptureSnapshot(
        rollout_id=ROLLOUT, entries=tuple(entries), incomplete=False, snapshot_id="snapshot", version=1
    )
    return len(build(snapshot))


def _timed(step: Callable[[], int], expected: int) -> float:
    """Milliseconds of a step that must find that many chains."""
    with work_out_of_sight():
        started = perf_counter()
        found = step()
        seconds = perf_counter() - started
    if found != expected:
        raise RuntimeError(f"{found} of {expected} chains came out")
    return seconds * 1e3


if __name__ == "__main__":
    from benchmarks.__main__ import main

    sys.exit(main(["trajectories", *sys.argv[1:]]))
