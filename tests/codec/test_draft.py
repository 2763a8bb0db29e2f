"""How a draft is written: integers, long arrays, and after it has travelled to another process."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from tests.samples import entry
from tokenstore import InvalidEntryError, TokenEntry
from tokenstore.codec import Draft, PromptCache, content_digest, decode_line, dumps, loads, prepare
from tokenstore.codec import draft as draft_module
from tokenstore.codec.checks import SLICE
from tokenstore.codec.draft import GAP_SECONDS
from tokenstore.testing import SHAPES, shaped_rollout


def sent(call: TokenEntry) -> Draft:
    """A draft of a call as another process has it."""
    draft: Draft = pickle.loads(pickle.dumps(prepare(call)))  # noqa: S301 - it was made here
    return draft


def lines(drafts: Sequence[Draft]) -> list[bytes]:
    """The lines of a rollout's drafts, prompts shared as far as they can be."""
    prompts = PromptCache(1_000_000)
    written = []
    for draft in drafts:
        base = prompts.find(draft.rollout_id, draft.prompt)
        written.append(draft.line(base, checksum=True))
        prompts.remember(draft.rollout_id, draft.model_call_id, draft.prompt, draft.generation, base)
    return written


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_that_travelled_writes_the_same_lines(shape: str) -> None:
    """Lines of rollouts of every shape are the same bytes wherever they are written, with prompts shared and whole."""
    rollout = list(shaped_rollout(shape, "r"))

    travelled, stayed = [sent(call) for call in rollout], [prepare(call) for call in rollout]

    assert lines(travelled) == lines(stayed)
    assert [one.line(checksum=False) for one in travelled] == [one.line(checksum=False) for one in stayed]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_that_travelled_means_the_same(shape: str) -> None:
    """Its content is that of the entry, for every shape."""
    for call in shaped_rollout(shape, "r"):
        assert sent(call).content == content_digest(call)


def test_the_limit_is_that_of_whoever_writes() -> None:
    """A draft is made without a limit, and refused where its line is longer than is allowed; it keeps its content."""
    call = entry(prompt_token_ids=list(range(1000)))

    draft = prepare(sent(call), max_entry_bytes=1000)

    with pytest.raises(InvalidEntryError, match="max_entry_bytes allows 1000"):
        draft.line(checksum=True)
    assert draft.content == content_digest(call)


class Reference:
    """An integer of another library, which ujson would ask for a text of its own."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number

    def __json__(self) -> str:
        return '"ref"'


def test_integers_of_another_library_are_written_as_integers() -> None:
    """What counts as an integer is written as the one that it is, whatever else it could be written as."""
    ids: list[Any] = [Reference(7), 8, Reference(0)]

    line = prepare(entry(prompt_token_ids=ids)).line(checksum=True)

    assert decode_line(line, "r").entry.prompt_token_ids == [7, 8, 0]


@pytest.mark.parametrize("experts", [[[[1, 2]] * 48] * 3000, [[], *[[1, 2, 3]] * 9000], list(range(20_000)), []])
def test_long_arrays_of_arrays_are_written_as_short_ones(experts: list[Any]) -> None:
    """Routed experts, of which there are many for each token, are spelt the same when they are written in slices."""
    line = prepare(entry(routed_experts=experts)).line(checksum=False)

    assert dumps(loads(line)) == line
    assert loads(line)["routed_experts"] == experts


def test_what_cannot_be_written_in_slices_is_named() -> None:
    """A number too long for JSON readers, deep in a long array, is refused by the name of its field."""
    with pytest.raises(InvalidEntryError, match="routed_experts"):
        prepare(entry(routed_experts=[[1, 2]] * 9000 + [[10**5000, 2]]))


@pytest.mark.parametrize(("ids", "gaps"), [(SLICE, 0), (SLICE + 1, 1), (5 * SLICE, 5)])
def test_a_long_array_is_encoded_with_gaps(ids: int, gaps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each full slice of a long prompt others get the interpreter; an ordinary one is encoded in one go."""
    slept: list[float] = []
    monkeypatch.setattr(draft_module, "sleep", slept.append)
    prepare(entry(prompt_token_ids=[7] * ids)).line(checksum=True)

    assert slept == [GAP_SECONDS] * gaps


@pytest.mark.parametrize(("experts", "gaps"), [([[1] * 2 * SLICE, *[[1]] * 5000], 1), ([[1] * 8] * 5 * SLICE, 40)])
def test_small_slices_leave_no_gaps(experts: list[Any], gaps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many short lists behind a long one are written one by one, and not slept after."""
    slept: list[float] = []
    monkeypatch.setattr(draft_module, "sleep", slept.append)
    prepare(entry(routed_experts=experts))

    assert len(slept) == gaps
