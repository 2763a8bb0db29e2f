"""A store's metrics for Prometheus: the only module that imports `prometheus_client`.

```python
registry.register(StoreCollector(store))  # prometheus_client.REGISTRY, or one of your own
```

Numbers are read when they are scraped; nothing runs beside the store. A Grafana dashboard for them lies beside this
file, `dashboard()` gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tokenstore.distribution import Distribution
from tokenstore.extras import needed
from tokenstore.metrics import MASKED, METRICS, PREFIX, cumulative
from tokenstore.records import StoreStatistics

if TYPE_CHECKING:
    from tokenstore.store import TokenCaptureStore


def _core() -> Any:
    """Import the client library, or say how to get it."""
    with needed("prometheus", "prometheus_client", "prometheus_client is not installed"):
        from prometheus_client import core  # noqa: PLC0415 - optional
    return core


class StoreCollector:
    """Gives the metrics of a store, or of several, to a registry of `prometheus_client`.

    Args:
        stores: The store, or several by their names, which become the label `store`. A registry takes one collector,
            since no two may give the same metric.

    Raises:
        ModuleNotFoundError: `prometheus_client` is not installed; the message has the command.
    """

    def __init__(self, stores: TokenCaptureStore | Mapping[str, TokenCaptureStore]) -> None:
        named = stores if isinstance(stores, Mapping) else {"": stores}
        self._sources = {name: store.statistics for name, store in named.items()}
        self._names = ["store"] if isinstance(stores, Mapping) else []
        self._core = _core()

    def describe(self) -> Iterator[Any]:
        """Name the metrics without reading them, so that registering is cheap."""
        return self._families({})

    def collect(self) -> Iterator[Any]:
        """Give all metrics as they are now."""
        return self._families({name: statistics() for name, statistics in self._sources.items()})

    def _families(self, given: Mapping[str, StoreStatistics]) -> Iterator[Any]:
        kinds = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        for metric in METRICS:
            family = kinds[metric.kind](f"{PREFIX}{metric.name}", metric.help, labels=self._names)
            for name, statistics in given.items():
                value = metric.read(statistics)
                sample = (cumulative(value), value.total) if isinstance(value, Distribution) else (value,)
                family.add_metric(self._labels(name), *sample)
            yield family
        family = self._core.CounterMetricFamily(f"{PREFIX}{MASKED.name}", MASKED.help, labels=[*self._names, "reason"])
        for name, statistics in given.items():
            for reason, count in statistics.masked.items():
                family.add_metric([*self._labels(name), reason], count)
        yield family

    def _labels(self, name: str) -> list[str]:
        return [name] if self._names else []


def dashboard() -> str:
    """Give a Grafana dashboard of these metrics as JSON, to be imported there; it asks for the Prometheus to use."""
    return files(__package__).joinpath("grafana.json").read_text(encoding="utf-8")
