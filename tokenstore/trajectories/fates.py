"""What becomes of each call: the rules.

| the call | fate |
|---|---|
| generated nothing | `empty` |
| is one of several with identical tokens that a call extends, extends such, or lies below | `ambiguous` |
| extended by no call, has the prompt of another call that is | `superseded` |
| extended by no call, has the prompt of another call, and neither is that | `unresolved` |
| anything else | `trained` |

The first line that fits counts. With `duplicates="keep"` the lines about the same prompt do not. A call that is
extended is never superseded or unresolved, so the parent of a trained call is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tokenstore.trajectories.prefixes import Links
from tokenstore.trajectories.values import Duplicates, Fate


def judge(links: Links, generated: Sequence[int], duplicates: Duplicates) -> list[Fate]:
    """Decide what becomes of each call, by its place in the file.

    Args:
        links: How the calls hang together.
        generated: How many tokens each generated.
        duplicates: Whether of calls with the same prompt all are kept.
    """
    extended = set(chain.from_iterable(links.candidates))
    rivals = {call for candidates in links.candidates if len(candidates) > 1 for call in candidates}
    losers = _losers(links, extended) if duplicates == "supersede" else {}
    fates: list[Fate] = ["trained"] * len(links.candidates)
    for call in links.order:
        above = links.candidates[call]
        if not generated[call]:
            fates[call] = "empty"
        elif call in rivals or len(above) > 1 or (above and fates[above[0]] == "ambiguous"):
            fates[call] = "ambiguous"
        else:
            fates[call] = losers.get(call, "trained")
    return fates


def _losers(links: Links, extended: set[int]) -> dict[int, Fate]:
    """Name the calls that have the prompt of another call and are extended by none."""
    losers: dict[int, Fate] = {}
    for siblings in links.siblings:
        fate: Fate = "unresolved" if extended.isdisjoint(siblings) else "superseded"
        losers.update((call, fate) for call in siblings if call not in extended)
    return losers
