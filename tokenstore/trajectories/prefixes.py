"""Who extends whom: a tree of all calls' tokens, exact and linear.

A call's *whole* is its prompt and its generation. Its parent is the call whose whole is the longest one that its prompt
begins with; a prompt that is exactly an earlier call's whole continues that call, as when a generation was cut off and
taken up again. Calls that generated nothing have a parent, and are none.

All wholes go into one radix tree over packed ids, compared as bytes at the speed of memcmp; nothing is hashed but the
first id of an edge. In the tree a prompt is a place on the path of its call's whole, so that questions about it are
answered by climbing:

* the parent is the nearest whole that ends at or above that place;
* two prompts are the same if they are at the same place;
* the earlier call that agrees furthest hangs off the first node above that has an earlier call below it.

Shorter wholes go in first. So a turn finds the one before it among the last that went in, and begins there instead of
walking down all turns; and an edge that is split is never longer than what is going in, which keeps the sum linear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from tokenstore.records import TokenEntry
from tokenstore.trajectories.packing import ID_BYTES, packed_ids

TIPS = 8
"""Wholes kept to begin at: agents that take turns, each with a history of its own."""


@attrs.frozen
class Agreement:
    """How far a prompt is the same as an earlier call."""

    call: int
    tokens: int
    against: int


@attrs.frozen
class Links:
    """How the calls of a rollout hang together, by their places in the file."""

    order: tuple[int, ...]
    """All calls, each after those that it extends."""
    candidates: tuple[tuple[int, ...], ...]
    """For each call the calls that it extends: one, none, or several with identical wholes."""
    siblings: tuple[tuple[int, ...], ...]
    """Calls with the same prompt that generated something, where there is more than one."""
    agreements: tuple[Agreement, ...]
    """For each prompt, unless an earlier call has it too, the earlier call that agrees furthest beyond its parent."""


_NONE = 2**63
"""Later than every call."""


class _Node:
    """A place where wholes end or part. Depths are in bytes."""

    __slots__ = ("calls", "children", "depth", "first", "label", "nearest", "parent")

    def __init__(self, parent: _Node | None, label: bytes) -> None:
        self.parent = parent
        self.label = label
        self.depth: int = len(label) + (parent.depth if parent else 0)
        self.children: dict[bytes, _Node] = {}
        self.calls: list[int] = []
        self.first = _NONE
        self.nearest: _Node | None = None


class _Tree:
    """The wholes of all calls."""

    def __init__(self) -> None:
        self.root = _Node(None, b"")
        self._nodes = [self.root]
        self._tips: deque[tuple[bytes, _Node]] = deque(maxlen=TIPS)

    def add(self, ids: bytes) -> _Node:
        """Put in a whole, no shorter than those before it, and return the node where it ends."""
        node = self._walk(self._begin(ids), ids)
        self._tips.appendleft((ids, node))
        return node

    def finish(self) -> None:
        """Note for every node the first call at or below it, and the nearest whole that ends at or above it."""
        self._nodes.sort(key=lambda node: node.depth)
        for node in self._nodes:
            node.nearest = node if node.calls or node.parent is None else node.parent.nearest
        for node in reversed(self._nodes):
            below = [child.first for child in node.children.values()]
            node.first = min(node.calls[:1] + below, default=_NONE)

    def _begin(self, ids: bytes) -> _Node:
        """Find a node far down on the path of these ids."""
        best, shared = self.root, 0
        for tip_ids, tip in self._tips:
            if ids.startswith(tip_ids):
                return tip
            if (agrees := agreement(ids, tip_ids)) > shared:
                best, shared = tip, agrees
        while best.parent and best.depth > shared:
            best = best.parent
        return best

    def _walk(self, node: _Node, ids: bytes) -> _Node:
        while node.depth < len(ids):
            child = node.children.get(ids[node.depth : node.depth + ID_BYTES])
            if child is None:
                return self._grow(node, ids[node.depth :])
            if not ids.startswith(child.label, node.depth):
                child = self._split(node, child, ids)
            node = child
        return node

    def _grow(self, parent: _Node, label: bytes) -> _Node:
        node = _Node(parent, label)
        parent.children[label[:ID_BYTES]] = node
        self._nodes.append(node)
        return node

    def _split(self, parent: _Node, child: _Node, ids: bytes) -> _Node:
        """Put a node into the edge to a child, where these ids leave it."""
        at = agreement(child.label, ids[parent.depth : parent.depth + len(child.label)])
        middle = self._grow(parent, child.label[:at])
        child.label = child.label[at:]
        child.parent = middle
        middle.children[child.label[:ID_BYTES]] = child
        return middle


def agreement(left: bytes, right: bytes) -> int:
    """Count the bytes of the equal ids at the start of both, by halves, since comparing slices is fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low - low % ID_BYTES


def link(entries: Sequence[TokenEntry]) -> Links:
    """Find out how calls hang together.

    Raises:
        InvalidEntryError: An id is beyond int32.
    """
    places = _places(entries)
    prompts = [len(entry.prompt_token_ids) * ID_BYTES for entry in entries]
    parents = [_parent(place, depth) for place, depth in zip(places, prompts, strict=True)]
    groups: dict[tuple[_Node, int], list[int]] = {}
    for call, prompt in enumerate(zip(places, prompts, strict=True)):
        groups.setdefault(prompt, []).append(call)
    firsts = [group[0] for group in groups.values()]
    agreements = [_agreement_of(call, places[call], parents[call], prompts[call]) for call in firsts]
    siblings = [tuple(call for call in group if entries[call].generation_token_ids) for group in groups.values()]
    return Links(
        order=tuple(sorted(range(len(entries)), key=prompts.__getitem__)),
        candidates=tuple(tuple(parent.calls) if parent else () for parent in parents),
        siblings=tuple(group for group in siblings if len(group) > 1),
        agreements=tuple(agreement for agreement in agreements if agreement),
    )


def _places(entries: Sequence[TokenEntry]) -> list[_Node]:
    """Put all wholes into a tree; find for each call the node at which, or in the edge to which, its prompt ends."""
    tree = _Tree()
    lengths = [len(entry.prompt_token_ids) + len(entry.generation_token_ids) for entry in entries]
    ends: dict[int, _Node] = {}
    for call in sorted(range(len(entries)), key=lengths.__getitem__):
        ends[call] = tree.add(packed_ids(entries[call]))
    for call, entry in enumerate(entries):
        if entry.generation_token_ids:
            ends[call].calls.append(call)
    tree.finish()
    return [_climb(ends[call], len(entry.prompt_token_ids) * ID_BYTES) for call, entry in enumerate(entries)]


def _climb(node: _Node, depth: int) -> _Node:
    while node.parent is not None and node.parent.depth >= depth:
        node = node.parent
    return node


def _parent(place: _Node, depth: int) -> _Node | None:
    above = place if place.depth == depth else place.parent
    return above.nearest if above is not None and above.nearest and above.nearest.calls else None


def _agreement_of(call: int, place: _Node, parent: _Node | None, depth: int) -> Agreement | None:
    node: _Node | None = place
    while node is not None and node.first >= call:
        node = node.parent
    if node is None:
        return None
    agrees = min(node.depth, depth)
    if parent is not None and agrees <= parent.depth:
        return None
    return Agreement(call, agrees // ID_BYTES, node.first)
