"""Where requests go: rollouts by path and header, what passes through, and tricks that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

from tests.serve.engine import SHORT
from tests.serve.proxies import Running, connected
from tokenstore.serve.endpoints import GENERATING, generates
from tokenstore.serve.problems import ProxyError
from tokenstore.serve.routes import Route, route_of
from tokenstore.serve.settling import InFlight

BODY = {"model": "form/vllm chat/0", "messages": []}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """A client that keeps its connections."""
    with httpx.Client(timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "header", "route"),
    [
        ("/v1/models", None, Route("/v1/models", None)),
        ("/", None, Route("/", None)),
        ("/rollouts/r/v1/models", None, Route("/v1/models", "r")),
        ("/ng-rollout/r/v1/responses", None, Route("/v1/responses", "r")),
        ("/rollouts/r", None, Route("/", "r")),
        ("/v1/models", "r", Route("/v1/models", "r")),
        ("/rollouts/r/v1/models", "r", Route("/v1/models", "r")),
        ("/rollouts", None, Route("/rollouts", None)),
        ("/rollouts/r/ng-rollout/r/v1/responses", None, Route("/v1/responses", "r")),
        ("/a b/ü%2F", None, Route("/a b/ü%2F", None)),
    ],
)
def test_rollouts_are_named_by_path_or_header(path: str, header: str | None, route: Route) -> None:
    """The rollout is the second segment of a path, or a header, and the rest is the engine's path."""
    headers = [] if header is None else [(b"x-rollout-id", header.encode())]

    assert route_of(path, headers) == route


@pytest.mark.parametrize(
    ("path", "header", "code"),
    [
        ("/rollouts/../v1/models", None, "ambiguous_path"),
        ("/rollouts/r/../../v1/chat/completions", None, "ambiguous_path"),
        ("/v1//chat/completions", None, "ambiguous_path"),
        ("/v1/chat/completions/", None, "ambiguous_path"),
        ("/rollouts/r/v1/./chat/completions", None, "ambiguous_path"),
        ("/rollouts//v1/models", None, "ambiguous_path"),
        ("/rollouts/.../v1/models", None, "invalid_rollout_id"),
        ("/rollouts/a b/v1/models", None, "invalid_rollout_id"),
        ("/rollouts/" + "r" * 238 + "/v1/models", None, "invalid_rollout_id"),
        ("/v1/models", "a/b", "invalid_rollout_id"),
        ("/v1/models", "", "invalid_rollout_id"),
        ("/rollouts/r/v1/models", "s", "two_rollouts"),
        ("/rollouts/r/ng-rollout/s/v1/responses", None, "two_rollouts"),
        ("/control/statistics", None, "not_found"),
        ("/rollouts/r/control/statistics", None, "not_found"),
        ("/rollouts/r/metrics", None, "not_found"),
    ],
)
def test_tricks_lead_nowhere(path: str, header: str | None, code: str) -> None:
    """A path that servers read differently, an id that is none, and two rollouts at once are turned away."""
    headers = [] if header is None else [(b"x-rollout-id", header.encode())]

    with pytest.raises(ProxyError) as caught:
        route_of(path, headers)

    assert caught.value.code == code


def test_targets_are_encoded_anew() -> None:
    """What was decoded goes to the engine encoded, so that both read the same path."""
    assert Route("/v1/a b/%2F/ü?#", None).target == "/v1/a%20b/%252F/%C3%BC%3F%23"


def test_only_posts_generate() -> None:
    """Reading and whatever is not known to generate passes through."""
    assert all(generates("POST", path) for path in GENERATING)
    assert not any(generates("GET", path) for path in GENERATING)
    assert not any(generates("POST", path) for path in ("/tokenize", "/v1/models", "/v1/embeddings", "/"))


@pytest.mark.parametrize("prefix", ["/rollouts/{}/v1", "/ng-rollout/{}/v1", "/v1"])
def test_each_way_to_name_a_rollout(prefix: str, proxy: Running, client: httpx.Client) -> None:
    """A call is in the store of the rollout that its path or its header names."""
    rollout_id = f"r-{uuid4().hex}"
    headers = {"X-Rollout-Id": rollout_id} if prefix == "/v1" else {}

    answer = client.post(f"{proxy.url}{prefix.format(rollout_id)}/chat/completions", json=BODY, headers=headers)

    assert answer.headers["x-rollout-id"] == rollout_id
    (entry,) = proxy.settled(rollout_id).entries
    assert SHORT.same(entry)


def test_what_does_not_generate_passes_through(proxy: Running, client: httpx.Client) -> None:
    """Models, health and the like get the engine's answer, query and all, and leave no trace in the store."""
    rollout_id = f"r-{uuid4().hex}"

    models = client.get(f"{proxy.base(rollout_id)}/models", params={"a": "b c"})
    health = client.get(f"{proxy.url}/health")
    tokens = client.post(f"{proxy.url}/rollouts/{rollout_id}/tokenize", json={"model": 'status/200/{"count": 1}'})
    failed = client.post(f"{proxy.url}/rollouts/{rollout_id}/tokenize", json={"model": "status/500/{}"})

    assert models.json() == {"path": "/v1/models", "query": "a=b+c"}
    assert health.json()["path"] == "/health"
    assert tokens.json() == {"count": 1}
    assert failed.status_code == 500
    assert list(proxy.root.glob(f"{rollout_id}*")) == []


@pytest.mark.parametrize("path", ["/v1/messages", "/generate", "/completion", "/api/chat"])
def test_what_generates_but_gives_no_ids_is_turned_away(
    path: str, proxy: Running, client: httpx.Client, engine: str
) -> None:
    """A request that would generate without being captured does not reach the engine."""
    mark = uuid4().hex

    answer = client.post(f"{proxy.url}/rollouts/r{path}", json={"model": f"status/200/{mark}"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_capturable")
    assert mark not in client.get(f"{engine}/state").text


def test_the_entrys_name_is_said_once() -> None:
    """Of an engine that names a rollout and a call itself, as another proxy does, the client gets ours alone."""
    headers = InFlight("r").headers([(b"x-rollout-id", b"s"), (b"x-model-call-id", b"c"), (b"x-other", b"o")])

    assert headers == [(b"x-other", b"o"), (b"x-rollout-id", b"r"), (b"x-model-call-id", b"")]


def test_a_base_url_without_v1_is_told_so(proxy: Running, client: httpx.Client) -> None:
    """A call whose base URL lacks `/v1` is told that, and not that the engine is another."""
    answer = client.post(f"{proxy.url}/rollouts/r/chat/completions", json=BODY)

    assert answer.status_code == 501
    assert "must end in /v1" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat%2Fcompletions", "/v1/%63hat/completions"])
def test_an_encoded_path_is_captured_all_the_same(path: str, proxy: Running, client: httpx.Client) -> None:
    """However a path is encoded, what the engine would read as a call is one."""
    answer = client.post(f"{proxy.url}{path}", json=BODY)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "no_rollout")


def test_a_path_with_dots_never_leaves_the_root(proxy: Running) -> None:
    """A rollout id that climbs, sent as it is, is turned away, and no file appears beside the root."""
    before = sorted(proxy.root.parent.iterdir())
    for path in ("/rollouts/../x/v1/models", "/rollouts/%2e%2e/v1/models", "/rollouts/..%2Fx/v1/models", "//x/models"):
        with connected(proxy.url) as raw:
            raw.sendall(f"GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n".encode())
            said = b"".join(iter(lambda: raw.recv(65536), b""))

        assert b"ambiguous_path" in said or b"400" in said.splitlines()[0], said

    assert sorted(proxy.root.parent.iterdir()) == before
