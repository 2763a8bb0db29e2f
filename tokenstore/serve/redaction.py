"""Taking out of an answer what only the proxy asked for. Nothing is changed in place: the entry is made of the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenstore.serve.endpoints import Path

Tree = dict[str, Any]
"""Places to take out, by key; `*` is every element, an empty tree what is taken out."""


def tree_of(paths: Iterable[Path]) -> Tree:
    """Put places together that begin alike."""
    tree: Tree = {}
    for path in paths:
        node = tree
        for key in path:
            node = node.setdefault(key, {})
    return tree


def without(value: Any, tree: Tree) -> Any:
    """Give an answer without some places; the very same object if it has none of them."""
    if isinstance(value, list) and "*" in tree:
        made = [without(element, tree["*"]) for element in value]
        return made if any(one is not other for one, other in zip(made, value, strict=True)) else value
    if not isinstance(value, dict):
        return value
    changed: dict[str, Any] = {}
    taken: set[str] = set()
    for key, below in tree.items():
        if key not in value:
            continue
        if not below:
            taken.add(key)
        elif (kept := without(value[key], below)) is not value[key]:
            changed[key] = kept
    if not taken and not changed:
        return value
    return {key: changed.get(key, inner) for key, inner in value.items() if key not in taken}


def event_without(event: dict[str, Any], tree: Tree) -> dict[str, Any] | None:
    """The same of a stream's event; None if it held nothing else, as the one that counts tokens."""
    kept: dict[str, Any] = without(event, tree)
    return None if kept is not event and kept.get("choices") == [] else kept
