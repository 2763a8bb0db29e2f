"""A store's metrics for OpenTelemetry: the only module that imports `opentelemetry`.

```python
instrument(store)  # the global meter provider, or instrument(store, meter)
```

Numbers are read when they are collected. OpenTelemetry has no instrument that observes a whole histogram, so of those
the count and the sum are observed, as counters; the quantiles of puts are gauges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tokenstore.distribution import Distribution
from tokenstore.extras import needed
from tokenstore.metrics import MASKED, METRICS, Metric
from tokenstore.records import StoreStatistics

if TYPE_CHECKING:
    from tokenstore.store import TokenCaptureStore

Observed = Callable[[StoreStatistics], Iterable[tuple[float, Mapping[str, str]]]]


def instrument(store: TokenCaptureStore, meter: Any = None, *, attributes: Mapping[str, str] | None = None) -> None:
    """Have a store's metrics observed at each collection.

    Args:
        store: The store; or anything with its `statistics`.
        meter: A meter of `opentelemetry.metrics`; that of the global provider if not given.
        attributes: Attributes of every metric, where a process has several stores.

    Raises:
        ModuleNotFoundError: `opentelemetry-api` is not installed; the message has the command.
    """
    metrics = _metrics()
    meter = meter or metrics.get_meter("tokenstore")
    own = dict(attributes or {})

    def observe(name: str, kind: str, unit: str, about: str, read: Observed) -> None:
        def callback(_: object) -> list[Any]:
            return [metrics.Observation(value, {**own, **more}) for value, more in read(store.statistics())]

        create = meter.create_observable_gauge if kind == "gauge" else meter.create_observable_counter
        create(name, [callback], unit=unit, description=about)

    for metric in METRICS:
        for name, unit, read in _instruments(metric):
            observe(name, metric.kind, unit, metric.help, read)
    observe(MASKED.opentelemetry, "counter", MASKED.unit, MASKED.help, _masked)
    for share, read in (("p50", lambda given: given.put_p50), ("p99", lambda given: given.put_p99)):
        observe(f"tokenstore.store.put.{share}", "gauge", "s", "Of the latest puts.", _plain(read))


def _metrics() -> Any:
    with needed("opentelemetry", "opentelemetry", "opentelemetry is not installed"):
        from opentelemetry import metrics  # noqa: PLC0415 - optional
    return metrics


def _instruments(metric: Metric) -> list[tuple[str, str, Observed]]:
    """Give name, unit and reader of the instruments of a metric: two for a histogram."""
    if metric.kind != "histogram":
        return [(metric.opentelemetry, metric.unit, _plain(metric.read))]
    return [
        (f"{metric.opentelemetry}.count", "{value}", _plain(lambda given: _distribution(metric, given).count)),
        (f"{metric.opentelemetry}.sum", metric.unit, _plain(lambda given: _distribution(metric, given).total)),
    ]


def _distribution(metric: Metric, statistics: StoreStatistics) -> Distribution:
    value = metric.read(statistics)
    return value if isinstance(value, Distribution) else Distribution()


def _plain(read: Callable[[StoreStatistics], Any]) -> Observed:
    return lambda statistics: [(read(statistics), {})]


def _masked(statistics: StoreStatistics) -> Iterable[tuple[float, Mapping[str, str]]]:
    return [(count, {"reason": reason}) for reason, count in statistics.masked.items()]
