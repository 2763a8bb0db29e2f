"""Ray, as much of it as a cluster store uses: the only module that imports it.

Names live in a namespace of their own, so that programs find a store whatever namespace they run in. Everything here
that blocks says so; what carries calls does not.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import anyio.lowlevel
import attrs

from tokenstore.cluster.channel import BrokenError, Done
from tokenstore.extras import needed

NAMESPACE = "tokenstore"
"""Where the actors of all cluster stores are."""
ADDRESS_VARIABLE = "RAY_ADDRESS"
"""Environment variable that names the Ray cluster, as for Ray itself."""
CALLS_AT_ONCE = 4096
"""Calls that an actor works on at once: four for each process and shard, and those that wait for a ticket."""
SHARE = 0.001
"""Of a node's address resource, which every node has 1 of: enough to be put there."""
FIND_SECONDS = 0.25
"""Between two looks for an actor that is gone."""


def ray() -> Any:
    """Import Ray, or say how to get it.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    with needed("ray", "ray", "ray is not installed"):
        import ray  # noqa: PLC0415 - optional
    return ray


def attach(address: str | None = None) -> None:
    """Make this process one of the Ray cluster, if it is none yet. Blocks.

    Args:
        address: The cluster's; that of `RAY_ADDRESS`, or the one of this machine, if it is not given.

    Raises:
        ConnectionError: There is none.
    """
    if not ray().is_initialized():
        wanted = address or os.environ.get(ADDRESS_VARIABLE) or "auto"
        ray().init(address=wanted, namespace=NAMESPACE, log_to_driver=False, logging_level="error")


@attrs.frozen
class Node:
    """A live node of the Ray cluster."""

    id: str
    """Ray's name for it; another one after it was started again."""
    address: str
    """Its address."""
    labels: Mapping[str, str]
    """Its labels."""

    def fits(self, wanted: str) -> bool:
        """Whether this is the node that is meant by an address or by `key=value`."""
        key, equals, value = wanted.partition("=")
        return self.labels.get(key) == value if equals else self.address == wanted


def nodes() -> list[Node]:
    """Every live node, by address. Blocks."""
    found = [
        Node(each["NodeID"], each["NodeManagerAddress"], each.get("Labels") or {})
        for each in ray().nodes()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: node.address)


def here() -> Node:
    """The node that this process is on. Blocks."""
    own = ray().get_runtime_context().get_node_id()
    return next((node for node in nodes() if node.id == own), Node(own, "", {}))


def placed(wanted: str) -> dict[str, Any]:
    """Options that put something on a node, given by address or `key=value`; on any node if that is empty."""
    key, equals, value = wanted.partition("=")
    if equals:
        return {"label_selector": {key: value}}
    return {"resources": {f"node:{wanted}": SHARE}} if wanted else {}


def start(kind: type, name: str, wanted: str, *arguments: Any, once: Sequence[str] = ()) -> Any:
    """Start an actor that outlives everybody, unless there is one of that name, and give its handle. Blocks.

    Args:
        kind: Its class, whose async methods may run many at once.
        name: Its name.
        wanted: The node that it belongs to, empty if to none.
        arguments: Given to it whenever it starts.
        once: Methods that Ray must not repeat when the actor restarts during a call.
    """
    members = {method: ray().method(max_task_retries=0)(_renamed(kind, method)) for method in once}
    made = ray().remote(type(kind.__name__, (kind,), {**members, "__module__": kind.__module__}))
    options = made.options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        max_concurrency=CALLS_AT_ONCE,
        **placed(wanted),
    )
    return options.remote(*arguments)


def spawn(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start a task in the event loop of an actor, which is Ray's own and asyncio's, beside its calls."""
    loop: Any = anyio.lowlevel.current_token().native_token
    task = loop.create_task(function())
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)


_spawned: set[Any] = set()
"""Kept here: a loop holds its tasks weakly."""


def _renamed(kind: type, method: str) -> Callable[..., Any]:
    """A method of a class as a function of its own, which can be marked without marking the original."""
    original = getattr(kind, method)

    async def call(self: Any, *arguments: Any) -> Any:
        return await original(self, *arguments)

    call.__name__ = method
    return call


def find(name: str) -> Any:
    """Give the handle of an actor, None if there is none of that name. Blocks."""
    try:
        return ray().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def end(name: str) -> bool:
    """End an actor for good; false if there is none of that name. Blocks."""
    actor = find(name)
    if actor is not None:
        ray().kill(actor, no_restart=True)
    return actor is not None


def answers(references: Mapping[Any, Any], seconds: float) -> dict[Any, Any]:
    """Wait for answers, by their keys, and give those that came in time; an exception where there was one. Blocks."""
    waiting = list(references.values())
    ready = set(ray().wait(waiting, num_returns=len(waiting), timeout=seconds)[0]) if waiting else set()
    return {key: _outcome(reference) for key, reference in references.items() if reference in ready}


def _outcome(reference: Any) -> Any:
    try:
        return ray().get(reference)
    except ray().exceptions.RayTaskError as error:  # its text is a traceback
        return error.cause if isinstance(error.cause, Exception) else error
    except ray().exceptions.RayError as error:
        return error


def on_node(wanted: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function on a node, and give a reference of what it returns."""
    return ray().remote(function).options(num_cpus=0, max_retries=0, **placed(wanted)).remote(*arguments)


def start_on(wanted: str, kind: type, *arguments: Any) -> Any:
    """Start an actor on a node that ends with its handle."""
    return ray().remote(kind).options(num_cpus=0, max_restarts=0, **placed(wanted)).remote(*arguments)


class RayTransport:
    """Carries calls to the actor of a shard.

    Ray repeats a call whose actor restarts. What it gives up (the actor was ended for good, an object was lost) is
    broken; the actor is then looked for in a thread, and the transport is ready again when it is found.

    Args:
        name: Name of the actor.
    """

    def __init__(self, name: str) -> None:
        self.ready = False
        self.on_ready: Callable[[], None] = lambda: None
        self._name = name
        self._actor: Any = None
        self._guard = threading.Lock()
        self._looking = False
        self._look()

    def call(self, pieces: Sequence[bytes], done: Done, *, once: bool) -> None:
        """Have a batch done."""
        method = self._actor.call_once if once else self._actor.call
        self._answer(method.remote(*pieces), done)

    def wait(self, ticket: str, done: Done) -> None:
        """Have the outcome of what took longer."""
        self._answer(self._actor.wait.remote(ticket), done)

    def more(self, ticket: str, number: int, done: Done) -> None:
        """Have a further part of a long answer."""
        self._answer(self._actor.more.remote(ticket, number), done)

    def _answer(self, reference: Any, done: Done) -> None:
        """Hand on what comes; the callback runs in a thread of Ray's, and awaiting a reference fails under trio."""
        reference.future().add_done_callback(partial(self._came, done))

    def _came(self, done: Done, future: Any) -> None:
        error = future.exception()
        if error is None:
            done(future.result())
        elif isinstance(error, ray().exceptions.RayTaskError):
            done(error.cause if isinstance(error.cause, Exception) else error)
        else:
            self._look()
            done(BrokenError(f"{type(error).__name__}: {error}"))

    def _look(self) -> None:
        """Begin to look for the actor, unless somebody is at it."""
        with self._guard:
            self.ready = False
            if self._looking:
                return
            self._looking = True
        looking = (weakref.ref(self), self._name)
        threading.Thread(target=_look_for, args=looking, name=f"find {self._name}", daemon=True).start()

    def found(self, actor: Any) -> None:
        """Carry calls to this actor from now on."""
        with self._guard:
            self._actor, self.ready, self._looking = actor, True, False
        self.on_ready()


def _look_for(transport: weakref.ref[RayTransport], name: str) -> None:
    """Look for the actor of a transport, as long as somebody has that: a store that was taken down never comes back."""
    while (actor := _found(name)) is None:
        if transport() is None:
            return
        time.sleep(FIND_SECONDS)
    if (wanted := transport()) is not None:
        wanted.found(actor)


def _found(name: str) -> Any:
    """Find an actor that may be away, or out of reach."""
    if not ray().is_initialized():
        return None
    try:
        return find(name)
    except Exception:  # noqa: BLE001 - who looks must go on, whatever Ray says while its head is away
        return None


def version() -> str:
    """Ray's version."""
    found: str = import_module("ray").__version__
    return found
