"""What `top` computes: rates between two looks at a directory, and between two scrapes of a store's metrics. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from tokenstore.records import RolloutStatus

Samples = Mapping[str, float]
"""Metrics of one scrape: the name, with its labels if it has some, to the value."""


@attrs.frozen
class Look:
    """A directory at one moment."""

    at: float
    """Seconds, of a clock that does not jump."""
    states: Mapping[str, int]
    incomplete: int
    calls: Mapping[str, int]
    """Calls of each rollout."""
    sizes: Mapping[str, int]
    """Bytes of each rollout."""

    @classmethod
    def of(cls, at: float, statuses: Iterable[RolloutStatus]) -> Look:
        """Gather the statuses of a directory."""
        states: Counter[str] = Counter()
        calls, sizes, incomplete = {}, {}, 0
        for status in statuses:
            states[status.state] += 1
            incomplete += status.incomplete
            calls[status.rollout_id] = status.calls
            sizes[status.rollout_id] = status.bytes
        return cls(at, states, incomplete, calls, sizes)


@attrs.frozen
class Change:
    """What happened between two looks."""

    seconds: float
    rollouts: int
    """Those there now."""
    states: Mapping[str, int]
    incomplete: int
    began: int
    """Rollouts that were not there before."""
    calls_per_second: float
    bytes_per_second: float
    busiest: Sequence[tuple[str, int]]
    """The rollouts with the most new calls, and how many."""


def change(before: Look, now: Look, *, most: int = 10) -> Change:
    """Compare two looks; what was removed between them counts as nothing, not as less."""
    seconds = max(now.at - before.at, 1e-9)
    grown = {
        rollout_id: more
        for rollout_id, calls in now.calls.items()
        if (more := calls - before.calls.get(rollout_id, 0)) > 0
    }
    written = sum(max(0, size - before.sizes.get(rollout_id, 0)) for rollout_id, size in now.sizes.items())
    return Change(
        seconds=seconds,
        rollouts=len(now.calls),
        states=now.states,
        incomplete=now.incomplete,
        began=len(now.calls.keys() - before.calls.keys()),
        calls_per_second=sum(grown.values()) / seconds,
        bytes_per_second=written / seconds,
        busiest=sorted(grown.items(), key=lambda item: (-item[1], item[0]))[:most],
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Read the samples of a store out of Prometheus' text format, adding up stores of one process.

    Raises:
        ValueError: It is not that format, or no store gives such numbers.
    """
    samples: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("tokenstore_store_"):
            key = _without_store(name)
            samples[key] = samples.get(key, 0.0) + _finite(value)
    return samples


def _finite(text: str) -> float:
    """Read a number as stores give it: rates of others would be no JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of a store")
    return value


def _without_store(name: str) -> str:
    """Leave only the label of a bucket: whose store it is, or which reason, is added up."""
    metric, _, labels = name.partition("{")
    bucket = next((label for label in labels.rstrip("}").split(",") if label.startswith("le=")), "")
    if bucket:
        float(bucket[3:].strip('"'))  # or it is no bound
    return f"{metric}{{{bucket}}}" if bucket else metric


def rate(before: Samples, now: Samples, name: str, seconds: float) -> float:
    """How much a counter grew in a second; from 0 if the process was started anew."""
    value, earlier = now.get(name, 0.0), before.get(name, 0.0)
    return (value - earlier if value >= earlier else value) / seconds


def quantile(before: Samples, now: Samples, name: str, share: float) -> float | None:
    """The bound of the bucket in which a share of the new observations lies; None if there are none."""
    buckets = []
    for key, value in now.items():
        if key.startswith(f'{name}_bucket{{le="'):
            bound = float(key.split('"')[1])
            earlier = before.get(key, 0.0)
            buckets.append((bound, value - earlier if value >= earlier else value))
    buckets.sort()
    if not buckets or not buckets[-1][1]:
        return None
    wanted = share * buckets[-1][1]
    return next(bound for bound, count in buckets if count >= wanted)
