"""The values of a benchmark: what was measured, and what is demanded of it.

1. One call of a benchmark's `measure` is one round. It measures every contender once, close together in time, so that
   a slow moment of the machine hits all of them.
2. A target is a figure of one round, mostly the ratio of two things measured in it. The median of the rounds' figures
   is held against the limit, never a ratio of medians of different rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

import attrs

from benchmarks.contenders import Contender
from benchmarks.harness.statistics import median

T = TypeVar("T")

BENCHMARKS = (
    "latency",
    "throughput",
    "one_rollout",
    "growth",
    "agent_rollout",
    "loop_lag",
    "freeze",
    "trajectories",
    "removal",
    "scale",
    "loops",
    "proxy",
    "cluster",
)
"""The modules of this package that are benchmarks, in the order in which they run."""

OURS = "tokenstore"
"""The store with its defaults."""
OURS_FILESYSTEM = "tokenstore, filesystem"
"""The store with `sync="filesystem"`."""
DISK = "disk"
"""The first baseline: ready bytes, written and synced by bare threads."""
BARE = "bare"
"""The second: the same encoding, checksum, write and sync in bare threads; no loop, no lock, no state."""
PLAIN = "to_thread + json"
"""What a user would write first."""


class Key(NamedTuple):
    """Names one measured value of a round."""

    case: str
    """The work, for example `512/128, C = 64`."""
    who: str
    """The contender or baseline."""
    what: str
    """The quantity with its unit, for example `puts/s`."""


Values = dict[Key, float]
"""What one round measured."""


@attrs.frozen(kw_only=True)
class Target:
    """A figure that is demanded: a value of a round, or its ratio to another of the same round."""

    text: str
    """What is demanded, without the limit."""
    value: Key
    over: Key | None = None
    """What the value is divided by."""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def limit(self) -> float:
        """The demanded figure."""
        limit = self.at_most if self.at_most is not None else self.at_least
        if limit is None:
            raise ValueError(f"the target {self.text!r} has no limit")
        return limit

    def figure(self, values: Mapping[Key, float]) -> float | None:
        """The figure of one round, None if it was not measured."""
        value = values.get(self.value)
        over = 1.0 if self.over is None else values.get(self.over)
        return value / over if value is not None and over else None

    def figures(self, rounds: Sequence[Mapping[Key, float]]) -> list[float]:
        """The figures of those rounds that measured it."""
        return [figure for values in rounds if (figure := self.figure(values)) is not None]

    def holds(self, rounds: Sequence[Mapping[Key, float]]) -> bool | None:
        """Whether the median of the rounds keeps the limit, None if it was not measured."""
        figures = self.figures(rounds)
        if not figures:
            return None
        return median(figures) <= self.limit if self.at_most is not None else median(figures) >= self.limit


@attrs.frozen(kw_only=True)
class Run:
    """One round as a benchmark sees it."""

    folder: Path
    """Where to write; empty, and removed afterwards."""
    number: int
    """Which round it is, from 0 on."""
    quick: bool
    """Whether only the exit status counts."""
    contenders: tuple[Contender, ...]
    """The store, and what is compared with it."""
    _numbers: Iterator[int] = attrs.field(factory=count, init=False)

    def place(self) -> Path:
        """Give a name in the folder that is not taken."""
        return self.folder / str(next(self._numbers))

    def size(self, full: T, quick: T) -> T:
        """How much to do; in a quick run names and targets stay those of the full size, so that all are tried."""
        return quick if self.quick else full

    def turn(self, items: Sequence[T]) -> list[T]:
        """The items in an order that is another in the next round, so that nobody always comes first."""
        start = self.number % len(items) if items else 0
        return [*items[start:], *items[:start]]


class Benchmark(Protocol):
    """A module of this package that measures something."""

    TITLE: str
    """What it measures, in one line."""
    PLOTS: tuple[str, ...]
    """Those of its quantities that are worth a plot."""

    def targets(self) -> list[Target]:
        """State what is demanded."""

    def measure(self, run: Run, /) -> Values:
        """Measure one round."""


def load(name: str) -> Benchmark:
    """Give a benchmark by its name."""
    return cast("Benchmark", import_module(f"benchmarks.{name}"))


def installed(name: str) -> bool:
    """Whether a module can be imported, without importing more than its parents."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
