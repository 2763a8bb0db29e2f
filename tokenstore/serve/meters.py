"""What the proxy counts, in the text format of Prometheus: names and numbers, never ids, tokens or text."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from tokenstore.records import StoreStatistics

OUTCOMES = ("stored", "refused", "lost", "rejected")
"""What calls come to; the last is turned away before anything is recorded."""
_GAUGES = frozenset({"actors", "queued", "bytes_in_flight", "open_files", "put_p50", "put_p99"})
_SECONDS = {"put_p50": "put_seconds_p50", "put_p99": "put_seconds_p99"}


class Meters:
    """Counts of one proxy since it was started."""

    def __init__(self) -> None:
        self.calls = dict.fromkeys(OUTCOMES, 0)
        """Calls by what they came to."""
        self.in_flight = 0
        """Calls that have not ended."""
        self.passed = 0
        """Requests that do not generate and were passed through."""

    def text(self, store: StoreStatistics) -> str:
        """Write everything, with the counters of the store."""
        return "".join(self._lines(store))

    def _lines(self, store: StoreStatistics) -> Iterator[str]:
        yield "# TYPE tokenstore_proxy_calls_total counter\n"
        for outcome, count in self.calls.items():
            yield f'tokenstore_proxy_calls_total{{outcome="{outcome}"}} {count}\n'
        yield from _metric("proxy_passed_through_total", "counter", self.passed)
        yield from _metric("proxy_calls_in_flight", "gauge", self.in_flight)
        for name, value in attrs.asdict(store).items():
            if name in _GAUGES:
                yield from _metric(f"store_{_SECONDS.get(name, name)}", "gauge", value)
            else:
                yield from _metric(f"store_{name}_total", "counter", value)


def _metric(name: str, kind: str, value: float) -> Iterator[str]:
    yield f"# TYPE tokenstore_{name} {kind}\ntokenstore_{name} {value}\n"
