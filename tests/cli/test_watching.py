"""`tokenstore stats`, `top` and the filters of `ls`: what is in a directory and what happens to it."""

from __future__ import annotations

import http.server
import json
import math
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.running import Runner
from tests.cli.test_output import Terminal
from tokenstore import TokenCaptureStore
from tokenstore.cli.units import seconds, size
from tokenstore.cli.watching import Look, change, parse_metrics, quantile, rate
from tokenstore.metrics import exposition
from tokenstore.testing import agent_rollout


def listed(run: Runner, root: Path, *options: object) -> list[str]:
    """Give the ids that `ls` lists."""
    result = run("ls", "--ids", "--root", root, *options)
    assert (result.status, result.err) == (0, "")
    return result.out.splitlines()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--state", "frozen"], ["frozen", "masked"]),
        (["--state", "frozen", "--state", "retired"], ["frozen", "masked", "retired"]),
        (["--incomplete"], ["masked", "shape-branches"]),
        (["--state", "frozen", "--complete"], ["frozen"]),
        (["--older-than", "1h"], []),
        (["--state", "retired", "--newer-than", "1d"], ["retired"]),
        (["--state", "frozen", "--larger-than", "1GiB"], []),
        (["--state", "retired", "--smaller-than", "1"], ["retired"]),
    ],
)
def test_filters(run: Runner, mixed_store: Path, options: list[str], expected: list[str]) -> None:
    """Each filter lets through what it says, several together what all let through."""
    assert listed(run, mixed_store, *options) == expected


@pytest.mark.parametrize("key", ["id", "age", "size", "calls", "state"])
def test_sorting(run: Runner, mixed_store: Path, key: str) -> None:
    """The listing is in the order of the key, `--reverse` turns it round, and JSON follows."""
    ascending = listed(run, mixed_store, "--sort", key)
    lines = run("ls", "--json", "--sort", key, "--reverse", "--root", mixed_store).out.splitlines()
    found = list(map(json.loads, lines))

    assert sorted(ascending) == sorted(line["rollout_id"] for line in found)
    name = {"id": "rollout_id", "size": "bytes"}.get(key, key)
    rank = ("open", "frozen", "retired").index if key == "state" else lambda value: value
    slack = 5 if key == "age" else 0  # two listings, and two files made now
    values = [rank(line[name]) for line in found]
    assert all(former >= latter for former, latter in pairwise(values))
    by_id = {line["rollout_id"]: line for line in found}
    climbing = [rank(by_id[rollout_id][name]) for rollout_id in ascending]
    assert slack or climbing == sorted(climbing)


def test_statistics_add_up(run: Runner, mixed_store: Path) -> None:
    """Sums and reasons are those of the listing and of the rollouts; text and JSON say the same."""
    shown = json.loads(run("stats", "--json", "--root", mixed_store).out)
    listing = [json.loads(line) for line in run("ls", "--json", "--root", mixed_store).out.splitlines()]
    text = run("stats", "--root", mixed_store).out

    for state in ("open", "frozen", "retired"):
        own = [line for line in listing if line["state"] == state]
        group = shown["states"][state]
        assert group["rollouts"] == len(own)
        assert group["bytes"] == sum(line["bytes"] for line in own)
        assert group["calls"] == sum(line["calls"] for line in own)
    assert shown["incomplete_reasons"] == {"lost_call": 1, "marked": 1}
    assert f"{len(listing)} rollouts" in text
    assert "lost_call" in text


def test_top_sees_a_live_writer(run: Runner, tmp_path: Path) -> None:
    """While another store writes, the calls and bytes of an interval are counted, and whose they are."""
    store = TokenCaptureStore(tmp_path)
    calls = agent_rollout("live", turns=200, first_prompt=30, generated=2, added=2, item_chars=10)
    stop = threading.Event()

    def write() -> None:
        for entry in calls:
            if stop.is_set():
                return
            store.append(entry)

    writer = threading.Thread(target=write)
    store.append(agent_rollout("quiet", turns=1, first_prompt=30)[0])
    writer.start()
    result = run("top", "--interval", "0.3s", "--count", 2, "--json", "--root", tmp_path)
    beside = run("ls", "--ids", "--root", tmp_path)
    stop.set()
    writer.join()

    shown = [json.loads(line) for line in result.out.splitlines()]
    assert (result.status, result.err, len(shown)) == (0, "", 2)
    assert sum(line["calls_per_second"] for line in shown) > 0
    assert "live" in {name for line in shown for name in line["busiest"]}
    assert "quiet" not in shown[0]["busiest"]
    assert (beside.status, beside.out.split()) == (0, ["live", "quiet"])


@contextmanager
def published(*texts: str) -> Iterator[str]:
    """Serve metrics, the next text at each scrape and the last one from then on."""
    waiting = list(texts)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write((waiting.pop(0) if len(waiting) > 1 else waiting[0]).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join()


def test_top_shows_what_a_store_publishes(run: Runner, tmp_path: Path) -> None:
    """Latencies and queues come from the metrics of the store's process, latencies of the interval alone."""
    store = TokenCaptureStore(tmp_path)
    before = "".join(exposition(store.statistics()))
    for entry in agent_rollout("r", turns=5, first_prompt=30):
        store.append(entry)
    after = "".join(exposition(store.statistics()))

    with published(before, after) as url:
        options = ("--interval", "0.05s", "--count", 2, "--metrics", url, "--root", tmp_path)
        shown = [json.loads(line)["store"] for line in run("top", "--json", *options).out.splitlines()]
        text = run("top", *options).out

    assert shown[0]["puts_per_second"] > 0
    assert shown[0]["put_p99_seconds"] >= shown[0]["put_p50_seconds"] > 0
    assert (shown[1]["puts_per_second"], shown[1]["put_p50_seconds"]) == (0, None)
    assert text.count("puts/s, p50 -, p99 -") == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokenstore_store_puts_total NaN\n", "Prometheus' text format"),
        ("tokenstore_store_queued +Inf\n", "Prometheus' text format"),
        ('tokenstore_store_put_seconds_bucket{le="x"} 1\n', "Prometheus' text format"),
        ("<html></html>\n", "no metrics of a store"),
        ("", "no metrics of a store"),
    ],
)
def test_top_of_what_is_no_store(run: Runner, tmp_path: Path, text: str, said: str) -> None:
    """A URL whose answer holds no numbers of a store is an error of one line, not a picture without them."""
    with published(text) as url:
        result = run("top", "--json", "--count", 1, "--interval", "0.01s", "--metrics", url, "--root", tmp_path)

    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert said in result.err


def test_top_on_a_terminal(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the picture is renewed in its place."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    assert run("top", "--interval", "0.01s", "--count", 2, "--root", tmp_path).status == 0
    assert "0 new" in terminal.getvalue()
    assert "rollout" in terminal.getvalue()
    assert "\x1b[" in terminal.getvalue()


@pytest.mark.parametrize(
    ("url", "status", "said"),
    [("file:///etc/passwd", 2, "a URL that begins"), ("http://127.0.0.1:9/metrics", 1, "cannot be read")],
)
def test_top_without_metrics(run: Runner, tmp_path: Path, url: str, status: int, said: str) -> None:
    """A URL that gives nothing is an error of one line."""
    result = run("top", "--metrics", url, "--root", tmp_path)

    assert (result.status, result.err.count("\n")) == (status, 1)
    assert said in result.err


def test_top_ends_with_its_directory(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the directory is removed, `top` says so and ends, instead of showing an empty one for ever."""
    root = tmp_path / "store"
    root.mkdir()
    terminal = Terminal()
    terminal.flush = lambda: root.rmdir() if root.exists() else None  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)

    result = run("top", "--interval", "0.01s", "--root", root)

    assert (result.status, result.err) == (1, f"tokenstore: the root {root} does not exist\n")


def test_top_without_a_pause_is_wrong_usage(run: Runner, tmp_path: Path) -> None:
    """An interval of nothing is refused: `top` would look without end."""
    result = run("top", "--interval", "0s", "--root", tmp_path)

    assert result.status == 2
    assert "from 0.01s on" in result.err


def test_top_where_something_else_answers(run: Runner, tmp_path: Path) -> None:
    """A port that speaks no HTTP is an error of one line."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"220 mail.example\r\n")

        answered = pool.submit(answer)
        result = run("top", "--metrics", f"http://127.0.0.1:{server.getsockname()[1]}/", "--root", tmp_path)
        answered.result()

    assert (result.status, result.err.count("\n")) == (1, 1)
    assert "cannot be read: 220 mail.example" in result.err


def test_what_was_removed_is_not_less() -> None:
    """Of two looks a removed rollout counts as nothing and one that shrank neither, so that no rate is negative."""
    before = Look(0.0, {}, 0, {"a": 5, "b": 2}, {"a": 500, "b": 20})
    now = Look(2.0, {"open": 2}, 1, {"b": 6, "c": 1}, {"b": 10, "c": 100})

    changed = change(before, now)

    assert (changed.calls_per_second, changed.bytes_per_second, changed.began) == (2.5, 50.0, 1)
    assert changed.busiest == [("b", 4), ("c", 1)]


def test_metrics_of_a_process_started_anew() -> None:
    """A counter that is less than before counts from 0; stores of one process are added up; a quantile is a bound."""
    text = 'tokenstore_store_puts_total{store="a"} 3\ntokenstore_store_puts_total{store="b"} 4\nother 1\n'
    buckets = {'x_bucket{le="0.1"}': 1.0, 'x_bucket{le="1.0"}': 9.0, 'x_bucket{le="+Inf"}': 10.0}

    assert parse_metrics(text) == {"tokenstore_store_puts_total": 7.0}
    assert rate({"n": 10.0}, {"n": 4.0}, "n", 2.0) == 2.0
    assert [quantile({}, buckets, "x", share) for share in (0.1, 0.5, 0.99)] == [0.1, 1.0, math.inf]
    assert quantile(buckets, buckets, "x", 0.5) is None


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("0.5m", 30)]
)
def test_times_are_read(text: str, value: float) -> None:
    """Times add up their parts."""
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("500", 500), ("10kB", 10_000), ("1.5MB", 1_500_000), ("2GiB", 2**31), ("7 b", 7)]
)
def test_sizes_are_read(text: str, value: int) -> None:
    """Sizes are decimal, or binary with an i, in either case."""
    assert size(text) == value


@pytest.mark.parametrize("text", ["", "kB", "-1", "1e9", "1 PB", "1.2.3", "\u0663"])
def test_sizes_are_strict(run: Runner, tmp_path: Path, text: str) -> None:
    """What is no size is wrong usage."""
    assert run("ls", f"--larger-than={text}", "--root", tmp_path).status == 2
