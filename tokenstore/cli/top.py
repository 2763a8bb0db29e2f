"""`tokenstore top`: what is happening in a directory now.

The directory is looked at once an interval, without locks. A store's own numbers (latencies, queues) are known to its
process alone: where that publishes them for Prometheus, `--metrics URL` shows them too.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import anyio
import attrs
from anyio import to_thread

from tokenstore import TokenCaptureStore
from tokenstore.cli.common import EXIT_OK, CommandError, UsageError, add_output, add_root, existing_root, run_async
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds, printable
from tokenstore.cli.units import seconds
from tokenstore.cli.watching import Change, Look, Samples, change, parse_metrics, quantile, rate

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_BUSIEST = (Column("rollout"), Column("new calls", right=True))
LEAST_SECONDS = 0.01
"""Shortest interval: without a pause `top` would keep the disk from those it watches."""
SCRAPE_SECONDS = 5.0
"""Patience with a process that publishes metrics."""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Show what is happening in a directory: calls and bytes a second, states, the busiest rollouts; and with "
        "--metrics the latencies and queues of a store that publishes them (tokenstore.integrations.prometheus). Runs "
        "until Ctrl-C. On a terminal the picture is renewed, otherwise there is a line for each interval."
    )
    parser = commands.add_parser("top", help="watch a directory", description=about)
    parser.add_argument(
        "--interval", metavar="TIME", type=_interval, default=2.0, help="between two looks (default: 2s)"
    )
    parser.add_argument("--count", metavar="N", type=_count, help="end after so many intervals")
    parser.add_argument("--metrics", metavar="URL", help="where a store's process publishes for Prometheus")
    add_root(parser)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Watch; with `--json` one object a line for each interval."""
    if arguments.metrics and not arguments.metrics.startswith(("http://", "https://")):
        raise UsageError("--metrics is a URL that begins with http:// or https://")
    existing_root(arguments.root)
    with _painting(output) as paint:
        run_async(_watch, arguments, paint, backend=arguments.backend)
    return EXIT_OK


async def _watch(arguments: argparse.Namespace, paint: Callable[[dict[str, Any]], None]) -> None:
    async with TokenCaptureStore(arguments.root) as store:
        before = await _look(store)
        scraped = await _scrape(arguments.metrics)
        shown = 0
        while arguments.count is None or shown < arguments.count:
            await anyio.sleep(arguments.interval)
            await to_thread.run_sync(existing_root, arguments.root)  # removed meanwhile it would look empty for ever
            now = await _look(store)
            fresh = await _scrape(arguments.metrics)
            changed = change(before, now)
            paint(_document(changed, scraped, fresh))
            before, scraped, shown = now, fresh, shown + 1


async def _look(store: TokenCaptureStore) -> Look:
    return Look.of(time.monotonic(), [status async for status in store.rollouts()])


async def _scrape(url: str | None) -> Samples:
    if url is None:
        return {}
    try:
        samples = parse_metrics(await to_thread.run_sync(_fetch, url))
    except (OSError, HTTPException) as error:
        why = getattr(error, "reason", error) or type(error).__name__
        raise CommandError(f"{printable(url)} cannot be read: {printable(str(why))}") from error
    except ValueError as error:
        raise CommandError(f"{printable(url)} gives no metrics in Prometheus' text format") from error
    if not samples:
        raise CommandError(f"{printable(url)} gives no metrics of a store")
    return samples


def _fetch(url: str) -> str:
    with urlopen(url, timeout=SCRAPE_SECONDS) as answer:  # noqa: S310 - http and https alone come here
        text: str = answer.read().decode()
    return text


def _document(changed: Change, before: Samples, now: Samples) -> dict[str, Any]:
    document = {**attrs.asdict(changed), "busiest": dict(changed.busiest), "states": dict(changed.states)}
    if now:
        document["store"] = {
            "puts_per_second": rate(before, now, "tokenstore_store_puts_total", changed.seconds),
            "fsyncs_per_second": rate(before, now, "tokenstore_store_fsyncs_total", changed.seconds),
            "put_p50_seconds": _finite(quantile(before, now, "tokenstore_store_put_seconds", 0.5)),
            "put_p99_seconds": _finite(quantile(before, now, "tokenstore_store_put_seconds", 0.99)),
            "queued": now.get("tokenstore_store_queued", 0.0),
            "bytes_in_flight": now.get("tokenstore_store_bytes_in_flight", 0.0),
            "actors": now.get("tokenstore_store_actors", 0.0),
            "conflicts": now.get("tokenstore_store_conflicts_total", 0.0),
            "poisoned": now.get("tokenstore_store_poisoned_total", 0.0),
        }
    return document


def _finite(value: float | None) -> float | None:
    """JSON has no infinity, which is the bound of the last bucket."""
    return value if value is None or math.isfinite(value) else None


@contextmanager
def _painting(output: Output) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Give what shows an interval: a picture that is renewed, a line, or JSON."""
    with output.live() as renew:

        def paint(document: dict[str, Any]) -> None:
            if output.json:
                output.document(document)
            elif renew is None:
                output.text(_line(document))
            else:
                renew(_line(document), _BUSIEST, [(name, str(calls)) for name, calls in document["busiest"].items()])
            output.flush()

        yield paint


def _line(document: dict[str, Any]) -> str:
    states = ", ".join(f"{document['states'].get(state, 0):,} {state}" for state in ("open", "frozen", "retired"))
    line = (
        f"{document['calls_per_second']:,.1f} calls/s, {human_bytes(document['bytes_per_second'])}/s, "
        f"{states}, {document['incomplete']:,} incomplete, {document['began']:,} new"
    )
    store = document.get("store")
    if store is None:
        return line
    p50, p99 = (
        "-" if store[name] is None else f"<= {human_seconds(store[name])}"
        for name in ("put_p50_seconds", "put_p99_seconds")
    )
    return (
        f"{line}; store: {store['puts_per_second']:,.1f} puts/s, p50 {p50}, p99 {p99}, "
        f"{store['fsyncs_per_second']:,.1f} fsyncs/s, {store['queued']:,.0f} queued, "
        f"{human_bytes(store['bytes_in_flight'])} in flight, {store['actors']:,.0f} actors"
    )


def _interval(text: str) -> float:
    if (interval := seconds(text)) < LEAST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is too short; from {LEAST_SECONDS:g}s on")
    return interval


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)
