"""What the proxy counts, in the text format of Prometheus: names and numbers, never ids, tokens or text."""

from __future__ import annotations

from collections.abc import Iterator

from tokenstore.metrics import exposition
from tokenstore.records import StoreStatistics

OUTCOMES = ("stored", "refused", "lost", "rejected")
"""What calls come to: in the store; refused by the engine; perhaps masking their rollout, as that of a client that left
while the intent was on its way; turned away before the engine was asked."""


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
        yield from exposition(store)


def _metric(name: str, kind: str, value: float) -> Iterator[str]:
    yield f"# TYPE tokenstore_{name} {kind}\ntokenstore_{name} {value}\n"
