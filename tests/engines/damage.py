"""What can happen to one field of an answer on its way: removed, nulled, shortened, doubled."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import attrs

Path = tuple[str | int, ...]
_DAMAGE: dict[str, Callable[[Any], Any]] = {
    "nulled": lambda _: None,
    "shortened": lambda value: value[:-1],
    "doubled": lambda value: value * 2,
}
SCALARS = {"logprob", "token_id", "id"}
"""Fields whose number is the token itself: twice the number is just another token."""


def paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Name every member of every object, and every element of every list, at any depth."""
    members: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in members:
        yield (*above, key)
        yield from paths(child, (*above, key))


@attrs.frozen
class Damage:
    """One place of an answer, and what happens to it."""

    path: Path
    how: str
    value: Any

    def done_to(self, body: Any) -> Any:
        """Give a damaged copy."""
        changed = copy.deepcopy(body)
        holder = _at(changed, self.path[:-1])
        if self.how == "removed":
            del holder[self.path[-1]]
        else:
            holder[self.path[-1]] = _DAMAGE[self.how](self.value)
        return changed


def damages(body: Any) -> Iterator[Damage]:
    """Name everything that can happen to an answer, or a list of chunks, in one place."""
    for path in paths(body):
        value = _at(body, path)
        yield Damage(path, "removed", value)
        yield from (Damage(path, how, value) for how in _DAMAGE if _applies(how, path, value))


def _applies(name: str, path: Path, value: Any) -> bool:
    if name == "nulled":
        return value is not None
    if name == "shortened":
        return isinstance(value, list | str) and len(value) > 0
    count = isinstance(value, int) and isinstance(path[-1], str) and path[-1] not in SCALARS and value > 0
    return isinstance(value, list | str) or (count and not isinstance(value, bool))


def _at(body: Any, path: Path) -> Any:
    for key in path:
        body = body[key]
    return body
