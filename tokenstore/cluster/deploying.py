"""Bringing a cluster store up, finding it, and taking it down. Everything here blocks.

A deployment is idempotent: what is there is left as it is, what is missing is started. It looks on every node for
directories of the store first, so that a shard is never given an empty directory while its own lies somewhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import attrs

from tokenstore.cluster import on_ray
from tokenstore.cluster.actors import CLOSE_SECONDS, NEVER_REPEATED, ManifestActor, ShardActor, manifest_of
from tokenstore.cluster.channel import Channel
from tokenstore.cluster.client import DEADLINE, ClusterStore, ShardClient
from tokenstore.cluster.config import ClusterConfig, ClusterPlan, ShardPlan, absolute_root, plan_of
from tokenstore.cluster.identity import identities_below, identity_in
from tokenstore.cluster.placement import placing
from tokenstore.cluster.probing import Probe, Proof, new_folder, prove, require_shared
from tokenstore.cluster.remote import RemoteShard
from tokenstore.cluster.values import ClusterStatus
from tokenstore.cluster.wire import Failure, decode_outcome
from tokenstore.errors import ClusterMismatchError, ShardUnavailableError, TokenStoreError
from tokenstore.journal.disk import OsDisk
from tokenstore.store import TokenCaptureStore

DEPLOY_SECONDS = 120.0
"""For all shards to open: processes start one after the other on a busy node."""
ASK_SECONDS = 30.0
"""For a manifest or a node to answer."""

SILENT = TimeoutError(f"no answer within {ASK_SECONDS:g} s; is it a node of this Ray cluster?")
"""What came of a node that did not answer."""

Found = Mapping[int, Mapping[str, str]]
"""Directories of a store: of each shard's index the word of its directory by the address of a node that sees it."""


def deploy(
    config: ClusterConfig, *, address: str | None = None, timeout: float = DEPLOY_SECONDS, accept_empty: bool = False
) -> ClusterPlan:
    """Bring a cluster store up, or see that it is up. Again is a no-op.

    Args:
        config: What it is. A store that is up already must be the same.
        address: Of the Ray cluster; that of `RAY_ADDRESS`, or the one of this machine, if it is not given.
        timeout: Seconds for all shards to open.
        accept_empty: Whether a shard whose directory is nowhere starts empty although others have theirs: its disk is
            lost, and the rollouts on it are given up.

    Returns:
        Every shard in its place.

    Raises:
        ClusterMismatchError: The store or a directory is another, a directory is lost, or the file system cannot carry
            floating shards. The message says what.
        ShardUnavailableError: Shards did not open in time, for example because their node is not there. Deploy again.
        ConnectionError: There is no Ray cluster.
        ValueError: `place` cannot be imported here, or a label in `nodes` is that of several nodes.
        ModuleNotFoundError: Ray is not installed; the message says how to add it.
    """
    placing(config.place, config.shards)  # every directory will name it
    on_ray.attach(address)
    plan = _known_plan(config.name)
    if plan is None:
        nodes = on_ray.nodes()
        if config.placement == "floating":
            require_shared(config, check_fs(config.root, [node.address for node in nodes]))
        plan = settled(plan_of(config, [node.address for node in nodes]), _survey(config, nodes), nodes)
        manifest = on_ray.start(ManifestActor, manifest_of(config.name), "", plan)
        plan = _answer(config.name, manifest.plan.remote())
    require_same(config, plan.config)
    _open_shards(plan, timeout, accept_empty=accept_empty)
    return plan


def connect(name: str, *, deadline: float = DEADLINE, address: str | None = None) -> ClusterStore:
    """Give a cluster store, from any process of the Ray cluster, on asyncio and trio. It is looked for at first use.

    Args:
        name: Its name.
        deadline: Seconds after which a call raises `ShardUnavailableError`.
        address: Of the Ray cluster, if this process is not one of its own yet; as for `deploy`.

    Raises:
        ModuleNotFoundError: Ray is not installed; the message says how to add it.
        ValueError: The deadline is not positive.
    """
    on_ray.ray()
    if not deadline > 0:
        raise ValueError(f"deadline is {deadline!r}, a positive number of seconds is allowed")
    return ClusterStore(RayLink(name, deadline, address))


def status(name: str, *, address: str | None = None) -> ClusterStatus:
    """Tell how a cluster store is, as its manifest has last seen it.

    Raises:
        ShardUnavailableError: There is no such store, or its manifest does not answer.
    """
    on_ray.attach(address)
    found: ClusterStatus = _answer(name, _manifest(name).status.remote())
    return found


def down(name: str, *, address: str | None = None) -> int:
    """End the actors of a cluster store, after what they have accepted is finished. Every file stays.

    Returns:
        How many shards were there.

    Raises:
        ShardUnavailableError: There is no such store, or its manifest does not answer.
    """
    on_ray.attach(address)
    plan: ClusterPlan = _answer(name, _manifest(name).plan.remote())
    on_ray.end(manifest_of(name))
    actors = {shard.actor: actor for shard in plan.shards if (actor := on_ray.find(shard.actor)) is not None}
    on_ray.answers({actor_name: actor.close.remote() for actor_name, actor in actors.items()}, CLOSE_SECONDS)
    return sum(on_ray.end(actor_name) for actor_name in actors)


# ---------------------------------------------------------------------------------------------- the file system


def check_fs(root: str, addresses: Sequence[str], *, address: str | None = None) -> dict[tuple[str, str], list[Proof]]:
    """Try on pairs of nodes whether a directory's file system can carry floating shards.

    Args:
        root: The directory, the same on all nodes.
        addresses: The nodes, all if there are none; the first is tried with each of the others, or alone with itself.
        address: Of the Ray cluster, as for `deploy`.

    Returns:
        What came of each thing tried, by the pair.

    Raises:
        ShardUnavailableError: A node does not answer.
        ValueError: The directory is a relative path.
    """
    root = absolute_root(root)
    on_ray.attach(address)
    first, *others = addresses or [node.address for node in on_ray.nodes()]
    return {(first, other): _check_pair(root, first, other) for other in others or [first]}


def _check_pair(root: str, first: str, second: str) -> list[Proof]:
    folder = new_folder()
    actors = [on_ray.start_on(node, Probe, root, folder) for node in (first, second)]
    one, other = (partial(_probe, actor, node) for actor, node in zip(actors, (first, second), strict=True))
    try:
        return prove(one, other)
    finally:
        with suppress(OSError):  # a directory that cannot be used has been told of
            _probe(actors[0], first, "tidy")


def _probe(actor: Any, node: str, method: str, *arguments: Any) -> Any:
    """Call a method of a probe on a node: a `Side`."""
    answer = on_ray.answers({0: getattr(actor, method).remote(*arguments)}, ASK_SECONDS).get(0, SILENT)
    if isinstance(answer, OSError) and not isinstance(answer, TimeoutError):
        raise answer
    if isinstance(answer, Exception):
        raise ShardUnavailableError("check-fs", None, f"node {node}: {answer}", outcome_unknown=True)
    return answer


# ---------------------------------------------------------------------------------------------- who is where


def settled(plan: ClusterPlan, found: Found, nodes: Sequence[on_ray.Node]) -> ClusterPlan:
    """Put every pinned shard where its directory already is.

    Args:
        plan: Shards where they would be if there were no directory yet.
        found: The directories that there are.
        nodes: The nodes that there are.

    Raises:
        ClusterMismatchError: A shard has two directories, or one on another node than the configuration names.
        ValueError: A label is that of several nodes.
    """
    for wanted in plan.config.nodes:
        fitting = [node.address for node in nodes if node.fits(wanted)]
        if len(fitting) > 1:  # Ray would start a shard on any of them, and again on another
            raise ValueError(f"ClusterConfig.nodes holds {wanted}, which is {', '.join(fitting)}: one node is allowed")
    return attrs.evolve(plan, shards=tuple(_settle(shard, plan, found, nodes) for shard in plan.shards))


def _settle(shard: ShardPlan, plan: ClusterPlan, found: Found, nodes: Sequence[on_ray.Node]) -> ShardPlan:
    words = found.get(shard.index, {})
    if len(set(words.values())) > 1:
        raise ClusterMismatchError(
            f"{shard.directory} of shard {shard.index}", "its place", found=sorted(words), expected="one node"
        )
    seen = [node for node in nodes if node.address in words]
    if not seen or shard.placement == "floating" or any(node.fits(shard.node) for node in seen):
        return shard
    if plan.config.nodes:
        raise ClusterMismatchError(
            f"{shard.directory} of shard {shard.index}", "its place", found=sorted(words), expected=shard.node
        )
    return attrs.evolve(shard, node=seen[0].address)


def _survey(config: ClusterConfig, nodes: Sequence[on_ray.Node]) -> Found:
    """Look on every node for directories of the store."""
    asked = {node.address: on_ray.on_node(node.address, identities_below, config.root, config.name) for node in nodes}
    found: dict[int, dict[str, str]] = {}
    for address, below in all_of(config.name, asked, on_ray.answers(asked, ASK_SECONDS)).items():
        for index, word in below.items() if isinstance(below, dict) else ():
            found.setdefault(index, {})[address] = word
    return found


def all_of(store: str, asked: Collection[str], answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the answers if every node has answered: one that is silent may hold the directories that nobody else has.

    Raises:
        ShardUnavailableError: One did not. Deploy again when it answers, or when Ray has given it up.
    """
    silent = sorted(set(asked) - set(answers))
    if silent:
        problem = f"{', '.join(silent)} did not say within {ASK_SECONDS:g} s which directories are there; deploy again"
        raise ShardUnavailableError(store, None, problem, outcome_unknown=False)
    return answers


# ---------------------------------------------------------------------------------------------- shards


def require_same(config: ClusterConfig, there: ClusterConfig) -> None:
    """See that the store that is up is the one that is wanted.

    Raises:
        ClusterMismatchError: It differs in a field; take it down first, or give the same.
    """
    for field in attrs.fields(ClusterConfig):
        wanted, found = getattr(config, field.name), getattr(there, field.name)
        if wanted != found:
            where = f"cluster store {config.name}, which is up (take it down first, or give the same)"
            raise ClusterMismatchError(where, field.name, found=found or "none", expected=wanted or "none")


def _open_shards(plan: ClusterPlan, timeout: float, *, accept_empty: bool) -> None:
    known = _survey(plan.config, on_ray.nodes())
    until = monotonic() + timeout
    asked = {}
    for shard in plan.shards:
        actor = on_ray.start(ShardActor, shard.actor, shard.node, shard, once=NEVER_REPEATED)
        create = shard.index not in known and (accept_empty or not known)
        asked[shard.index] = actor.prepare.remote(create)
    answers = on_ray.answers(asked, max(0.0, until - monotonic()))
    for problem in _problems(plan, answers, timeout):
        raise problem


def _problems(plan: ClusterPlan, answers: Mapping[int, Any], timeout: float) -> Iterator[Exception]:
    """What stands against a deployment: first what is wrong, then what is missing."""
    for answer in answers.values():
        outcome = Failure(answer) if isinstance(answer, Exception) else decode_outcome(answer)
        if isinstance(outcome, Failure):
            yield outcome.error if isinstance(outcome.error, TokenStoreError | OSError) else _odd(plan, outcome.error)
    for shard in plan.shards:
        if shard.index not in answers:
            where = f" on {shard.node}, if that node is there" if shard.node else ""
            problem = f"it did not open within {timeout:g} s{where}"
            yield ShardUnavailableError(plan.config.name, shard.index, problem, outcome_unknown=True)


def _odd(plan: ClusterPlan, error: Exception) -> Exception:
    return ShardUnavailableError(plan.config.name, None, f"{type(error).__name__}: {error}", outcome_unknown=True)


def _manifest(name: str) -> Any:
    manifest = on_ray.find(manifest_of(name))
    if manifest is None:
        problem = "there is no such store in this Ray cluster; 'tokenstore cluster up' brings it up"
        raise ShardUnavailableError(name, None, problem, outcome_unknown=False)
    return manifest


def _known_plan(name: str) -> ClusterPlan | None:
    manifest = on_ray.find(manifest_of(name))
    return None if manifest is None else _answer(name, manifest.plan.remote())


def _answer(name: str, reference: Any) -> Any:
    answer = on_ray.answers({0: reference}, ASK_SECONDS).get(0)
    if answer is None or isinstance(answer, Exception):
        problem = f"its manifest did not answer within {ASK_SECONDS:g} s" if answer is None else f"manifest: {answer}"
        raise ShardUnavailableError(name, None, problem, outcome_unknown=False)
    return answer


class RayLink:
    """How a process of the Ray cluster reaches the shards of a store.

    Args:
        name: The store.
        deadline: Seconds that a call may take.
        address: Of the Ray cluster.
    """

    def __init__(self, name: str, deadline: float, address: str | None) -> None:
        self._name = name
        self._deadline = deadline
        self._address = address

    def resolve(self) -> tuple[ClusterPlan, Sequence[ShardClient]]:
        """Find the store and its shards."""
        on_ray.attach(self._address)
        plan: ClusterPlan = _answer(self._name, _manifest(self._name).plan.remote())
        node = on_ray.here()
        return plan, [self._client(shard, node) for shard in plan.shards]

    def _client(self, shard: ShardPlan, node: on_ray.Node) -> ShardClient:
        if shard.placement == "pinned" and node.fits(shard.node) and (store := direct(shard)) is not None:
            return store
        transport = on_ray.RayTransport(shard.actor)
        return RemoteShard(Channel(shard.store, shard.index, transport, deadline=self._deadline))


def direct(shard: ShardPlan) -> TokenCaptureStore | None:
    """Open a shard's directory in this process, if it is the shard's and may be used.

    Raises:
        ClusterMismatchError: It is another shard's.
    """
    try:
        if not Path(shard.directory).is_dir():
            return None
        directory = OsDisk().open_root(Path(shard.directory))
        try:
            identity = identity_in(directory, shard)
        finally:
            directory.close()
        return None if identity is None else TokenCaptureStore(shard.directory, config=shard.config)
    except OSError:
        return None  # another user's, or out of sight of this container: its process can
