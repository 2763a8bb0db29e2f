"""A store's metrics, as Prometheus and OpenTelemetry collect them."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tokenstore import ConflictingEntryError, StoreStatistics, TokenCaptureStore, TokenEntry
from tokenstore.codec import dumps, loads, to_plain
from tokenstore.integrations.opentelemetry import instrument
from tokenstore.integrations.prometheus import StoreCollector, dashboard
from tokenstore.metrics import MASKED, METRICS, exposition

prometheus_client = pytest.importorskip("prometheus_client")
pytestmark = pytest.mark.anyio
PARSER = pytest.importorskip("prometheus_client.parser")


def call(number: int, token: int = 7) -> TokenEntry:
    """Make a small call."""
    return TokenEntry(
        rollout_id="r",
        model_call_id=f"c{number}",
        prompt_token_ids=[1, 2],
        generation_token_ids=[token],
        generation_log_probs=[-0.5],
    )


async def work(store: TokenCaptureStore) -> None:
    """Put three calls, one of them again and one with other content, lose one, and freeze."""
    for number in range(3):
        await store.put(call(number))
    await store.put(call(0))
    with pytest.raises(ConflictingEntryError):
        await store.put(call(1, token=8))
    await store.begin_call("r", "lost")
    await store.freeze("r")
    await store.freeze("r")


def samples(text: str) -> dict[tuple[str, str], float]:
    """Parse a scrape with the client library; of labels keep the value of the only one."""
    families = PARSER.text_string_to_metric_families(text)
    return {(s.name, next(iter(s.labels.values()), "")): s.value for family in families for s in family.samples}


def expected(statistics: StoreStatistics) -> dict[tuple[str, str], float]:
    """Say what a scrape must hold."""
    plain = {
        "puts_total": statistics.puts,
        "batches_total": statistics.batches,
        "fsyncs_total": statistics.fsyncs,
        "written_bytes_total": statistics.written,
        "conflicts_total": statistics.conflicts,
        "poisoned_total": 0,
        "freezes_total": 1,
        "put_seconds_count": 5,
        "put_seconds_sum": statistics.put_seconds.total,
        "batch_size_count": statistics.batches,
        "fsync_seconds_count": statistics.fsyncs,
        "actors": statistics.actors,
    }
    wanted: dict[tuple[str, str], float] = {(f"tokenstore_store_{name}", ""): value for name, value in plain.items()}
    wanted["tokenstore_store_put_seconds_bucket", "+Inf"] = 5
    return wanted | {("tokenstore_store_masked_total", reason): 1 for reason in ("conflict", "lost_call")}


async def test_a_scrape_adds_up(tmp_path: Path) -> None:
    """What the client library parses of a scrape is what `statistics` says and what was done; our own text too."""
    async with TokenCaptureStore(tmp_path) as store:
        registry = prometheus_client.CollectorRegistry()
        registry.register(StoreCollector(store))
        await work(store)
        given = store.statistics()
        scraped = samples(prometheus_client.generate_latest(registry).decode())
        ours = samples("".join(exposition(given)))

    assert (given.puts, given.conflicts, given.freezes) == (3, 1, 1)
    assert given.written == (tmp_path / "r.tokens.jsonl").stat().st_size
    assert scraped.items() >= expected(given).items()
    assert ours == scraped


def test_labels_tell_stores_apart(tmp_path: Path) -> None:
    """Two stores of one process are told apart by their names."""
    registry = prometheus_client.CollectorRegistry()
    stores = {name: TokenCaptureStore(tmp_path / name) for name in ("train", "eval")}
    for store in stores.values():
        store.append(call(1))
    registry.register(StoreCollector(stores))

    scraped = samples(prometheus_client.generate_latest(registry).decode())

    assert scraped["tokenstore_store_puts_total", "train"] == scraped["tokenstore_store_puts_total", "eval"] == 1


async def test_opentelemetry_observes_the_same(tmp_path: Path) -> None:
    """The same numbers come out of OpenTelemetry's own reader, with its units."""
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    async with TokenCaptureStore(tmp_path) as store:
        instrument(store, provider.get_meter("test"), attributes={"store": "train"})
        await work(store)
        given = store.statistics()
        collected = reader.get_metrics_data()
    provider.shutdown()

    metrics = {m.name: m for r in collected.resource_metrics for s in r.scope_metrics for m in s.metrics}
    values = {name: [point.value for point in metric.data.data_points] for name, metric in metrics.items()}
    assert values["tokenstore.store.puts"] == [3]
    assert values["tokenstore.store.put.count"] == [5]
    assert values["tokenstore.store.fsync.sum"] == [given.fsync_seconds.total]
    assert values["tokenstore.store.put.p99"] == [given.put_p99]
    assert metrics["tokenstore.store.written"].unit == "By"
    points = metrics["tokenstore.store.masked"].data.data_points
    assert {point.attributes["reason"] for point in points} == {"conflict", "lost_call"}
    assert {point.attributes["store"] for point in points} == {"train"}


def test_the_dashboard_shows_what_there_is() -> None:
    """Each panel of the dashboard asks for metrics that are there, and every metric has a panel."""
    board = json.loads(dashboard())
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in names(target["expr"])}

    assert asked == {metric.prometheus for metric in (*METRICS, MASKED)}
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def names(expression: str) -> list[str]:
    """Find the metrics in a query; of a histogram its own name."""
    return [name.removesuffix("_bucket") for name in re.findall(r"tokenstore_\w+", expression)]


@pytest.mark.parametrize("module", ["prometheus_client", "opentelemetry"])
def test_a_missing_library_is_named(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library the error has the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.core", None)
    store = TokenCaptureStore(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="pip install 'tokenstore"):
        StoreCollector(store) if module == "prometheus_client" else instrument(store)


def test_statistics_survive_json(tmp_path: Path) -> None:
    """Statistics that have gone through JSON are equal to what they were."""
    store = TokenCaptureStore(tmp_path)
    store.append(call(1))
    given = store.statistics()

    assert StoreStatistics(**loads(dumps(to_plain(given)))) == given


async def test_events_have_fields(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A conflict and a freeze are log records whose facts are fields, and no record holds tokens."""
    caplog.set_level(logging.INFO, "tokenstore")

    async with TokenCaptureStore(tmp_path) as store:
        await work(store)

    events: list[Mapping[str, Any]] = [vars(record) for record in caplog.records if hasattr(record, "event")]
    assert [event["event"] for event in events] == ["conflict", "frozen"]
    assert (events[0]["rollout_id"], events[0]["model_call_id"]) == ("r", "c1")
    assert (events[1]["incomplete"], events[1]["calls"]) == (True, 3)
    assert events[1]["reasons"] == ["conflict:c1", "lost_call:lost"]
