"""Counters of a store, gathered from its hosts."""

from __future__ import annotations

from collections.abc import Sequence

from tokenstore.hosting import Host
from tokenstore.journal.root import Counters
from tokenstore.records import StoreStatistics


def gather(counters: Counters, hosts: Sequence[Host]) -> StoreStatistics:
    """Sum up what the hosts are doing, beside what all of them have done."""
    latencies = sorted(seconds for host in hosts for seconds in list(host.latencies))
    return StoreStatistics(
        actors=sum(host.actors for host in hosts),
        queued=sum(host.queued for host in hosts),
        bytes_in_flight=sum(host.budget.taken for host in hosts),
        open_files=sum(host.root.handles.total for host in hosts),
        puts=counters.puts,
        batches=counters.batches,
        fsyncs=counters.fsyncs,
        conflicts=counters.conflicts,
        poisoned=counters.poisoned,
        put_p50=_percentile(latencies, 50),
        put_p99=_percentile(latencies, 99),
        written=counters.written,
        freezes=counters.freezes,
        masked=dict(counters.masked),
        put_seconds=counters.put_seconds.read(),
        batch_sizes=counters.batch_sizes.read(),
        fsync_seconds=counters.fsync_seconds.read(),
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of ordered values, 0 of none."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
