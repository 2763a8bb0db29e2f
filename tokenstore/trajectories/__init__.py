"""From a snapshot to what a trainer trains on: chains of calls as arrays, with a loss mask and a report.

`build` links the calls of a rollout by their tokens, decides what becomes of each, and gives a `Trajectory` for each
branch; `response` gives a chain in the form that NeMo Gym's trainers read. `prefixes` finds who extends whom, `fates`
holds the rules, `values` what comes out. All of it is pure.

1. Each generated token has exactly one fate: trained in one trajectory, or listed under one reason.
2. What extends what depends on the tokens alone, never on the order of capture. File order decides between equals.
3. Time and memory are linear in the tokens of the calls and of the trajectories given.
"""

from __future__ import annotations

from tokenstore.trajectories.building import build
from tokenstore.trajectories.responses import response
from tokenstore.trajectories.values import (
    Break,
    BuildReport,
    Built,
    CallFate,
    Duplicates,
    Fate,
    Reason,
    Span,
    Strategy,
    Trajectory,
)

__all__ = [
    "Break",
    "BuildReport",
    "Built",
    "CallFate",
    "Duplicates",
    "Fate",
    "Reason",
    "Span",
    "Strategy",
    "Trajectory",
    "build",
    "response",
]
