"""A store's statistics as metrics: their names, kinds and what they mean, for whatever collects them. Pure.

Names follow Prometheus: `tokenstore_store_`, base units, `_total` for counters. OpenTelemetry's are the same words with
dots, and its units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import attrs

from tokenstore.distribution import Distribution
from tokenstore.records import StoreStatistics

Kind = Literal["counter", "gauge", "histogram"]
PREFIX = "tokenstore_store_"


@attrs.frozen(kw_only=True)
class Metric:
    """One number of a store, or several by a label."""

    name: str
    """Without prefix, and without the `_total` of a counter."""
    kind: Kind
    help: str
    unit: str = ""
    """As UCUM writes it, for OpenTelemetry: `s`, `By`, `{call}`."""
    read: Callable[[StoreStatistics], float | Distribution] = attrs.field(default=lambda _: 0.0)
    """Takes its value out of the statistics."""

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus, with the `_total` of a counter."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    @property
    def opentelemetry(self) -> str:
        """Its name in OpenTelemetry."""
        return f"tokenstore.store.{self.name.removesuffix('_seconds').removesuffix('_bytes')}"


METRICS: tuple[Metric, ...] = (
    Metric(name="puts", kind="counter", unit="{entry}", help="Entries appended.", read=lambda s: s.puts),
    Metric(name="batches", kind="counter", unit="{batch}", help="Batches written.", read=lambda s: s.batches),
    Metric(name="fsyncs", kind="counter", unit="{sync}", help="Syncs of files and names.", read=lambda s: s.fsyncs),
    Metric(name="written_bytes", kind="counter", unit="By", help="Bytes of their lines.", read=lambda s: s.written),
    Metric(
        name="conflicts",
        kind="counter",
        unit="{call}",
        help="Calls recorded twice with different facts.",
        read=lambda s: s.conflicts,
    ),
    Metric(
        name="poisoned",
        kind="counter",
        unit="{actor}",
        help="Actors given up because a file could not be cut back after a failed sync.",
        read=lambda s: s.poisoned,
    ),
    Metric(name="freezes", kind="counter", unit="{rollout}", help="Rollouts frozen.", read=lambda s: s.freezes),
    Metric(name="actors", kind="gauge", unit="{actor}", help="Open actors, one a rollout.", read=lambda s: s.actors),
    Metric(name="queued", kind="gauge", unit="{message}", help="Messages that wait.", read=lambda s: s.queued),
    Metric(
        name="bytes_in_flight",
        kind="gauge",
        unit="By",
        help="Estimated bytes of the batches being written.",
        read=lambda s: s.bytes_in_flight,
    ),
    Metric(name="open_files", kind="gauge", unit="{file}", help="Descriptors kept open.", read=lambda s: s.open_files),
    Metric(
        name="put_seconds",
        kind="histogram",
        unit="s",
        help="Time from the call of a put to its answer.",
        read=lambda s: s.put_seconds,
    ),
    Metric(
        name="batch_size",
        kind="histogram",
        unit="{message}",
        help="Puts and begin_calls of a batch.",
        read=lambda s: s.batch_sizes,
    ),
    Metric(name="fsync_seconds", kind="histogram", unit="s", help="Time of a sync.", read=lambda s: s.fsync_seconds),
)
"""Every metric without labels of its own."""

MASKED = Metric(
    name="masked",
    kind="counter",
    unit="{reason}",
    help="Reasons of rollouts that were incomplete when they were frozen.",
)
"""The one with a label: `reason`, from `StoreStatistics.masked`."""


def exposition(statistics: StoreStatistics) -> Iterator[str]:
    """Give the lines of Prometheus' text format, for servers that have no client library."""
    for metric in METRICS:
        yield from _head(metric)
        value = metric.read(statistics)
        if isinstance(value, Distribution):
            for bound, count in cumulative(value):
                yield f'{metric.prometheus}_bucket{{le="{bound}"}} {count}\n'
            yield f"{metric.prometheus}_sum {value.total}\n{metric.prometheus}_count {value.count}\n"
        else:
            yield f"{metric.prometheus} {value}\n"
    yield from _head(MASKED)
    for reason, count in statistics.masked.items():
        yield f'{MASKED.prometheus}{{reason="{reason}"}} {count}\n'


def cumulative(distribution: Distribution) -> list[tuple[str, int]]:
    """Give for each bound, written as Prometheus does, how many values are up to it."""
    total, buckets = 0, []
    for bound, count in zip((*map(str, distribution.bounds), "+Inf"), distribution.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _head(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.prometheus} {metric.help}\n# TYPE {metric.prometheus} {metric.kind}\n"
