"""A rollout as its tree of calls: who extends whom, where prompts break, what each call adds. Pure.

A call's prompt mostly repeats an earlier call's tokens. `base` and `shared` name that call and how much of it, so that
what is new can be shown alone, and a page grows with the tokens that are new and not with the sum of the prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.trajectories import Break, BuildReport, Fate, build
from tokenstore.view.notes import Note, notes


@attrs.frozen
class AnalysedCall:
    """One call of a rollout."""

    entry: TokenEntry
    """The call itself."""
    extends: int | None
    """Place of the call whose prompt and generation its prompt begins with."""
    base: int | None
    """Place of the earlier call that its prompt shares most with: `extends`, the one it breaks from, or a retry's."""
    shared: int
    """How many tokens at the start of its prompt are that call's prompt and generation."""
    broken: Break | None
    """Where its prompt leaves an earlier call's tokens."""
    fate: Fate | None
    """What becomes of it in training; None where no trajectories can be built."""
    notes: tuple[Note, ...]
    """What is odd about it."""


@attrs.frozen
class Analysis:
    """A rollout, call by call."""

    calls: tuple[AnalysedCall, ...]
    """In file order."""
    report: BuildReport | None
    """What became of every call; None where no trajectories can be built."""
    problem: str = ""
    """Why none can be built."""


def analyse(snapshot: TokenCaptureSnapshot) -> Analysis:
    """Find the tree of a rollout's calls. Blocks while it works: in an event loop, call it in a thread."""
    try:
        report = build(snapshot).report
    except InvalidEntryError as error:
        calls = [AnalysedCall(entry, None, None, 0, None, None, notes(entry)) for entry in snapshot.entries]
        return Analysis(tuple(calls), None, str(error))
    places = {entry.model_call_id: place for place, entry in enumerate(snapshot.entries)}
    breaks = {broken.model_call_id: broken for broken in report.breaks}
    bases = _Bases(snapshot.entries)
    analysed = []
    for place, (entry, fate) in enumerate(zip(snapshot.entries, report.fates, strict=True)):
        extends = None if fate.parent is None else places[fate.parent]
        broken = breaks.get(entry.model_call_id)
        base, shared = bases.of(place, extends, None if broken is None else (places[broken.against], broken.agrees))
        analysed.append(AnalysedCall(entry, extends, base, shared, broken, fate.fate, notes(entry)))
    return Analysis(tuple(analysed), report)


class _Bases:
    """Finds for each call the one before it in the file that its prompt shares most with: so there are no circles."""

    def __init__(self, entries: Sequence[TokenEntry]) -> None:
        self._entries = entries
        self._prompts: dict[tuple[int | None, int, bytes], int] = {}

    def of(self, place: int, extends: int | None, broken: tuple[int, int] | None) -> tuple[int | None, int]:
        """Return that call and how many tokens; of a retry the first call with the same prompt."""
        prompt = self._entries[place].prompt_token_ids
        base, shared = None, 0
        if extends is not None and extends < place:
            parent = self._entries[extends]
            base, shared = extends, len(parent.prompt_token_ids) + len(parent.generation_token_ids)
        if broken is not None and broken[1] > shared and broken[0] < place:
            base, shared = broken
        key = base, shared, array("I", prompt[shared:]).tobytes()
        first = self._prompts.setdefault(key, place)
        return (base, shared) if first == place else (first, len(prompt))
