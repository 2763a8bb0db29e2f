"""The life of a rollout as values: it never goes back, and its version counts each fact once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tokenstore.journal.lifecycle import (
    RULINGS,
    Event,
    Ruling,
    State,
    incomplete_reasons,
    rule,
    with_damage,
    with_marks,
)
from tokenstore.records import RefusalRecord

LATE = [Event.BEGIN_NEW, Event.BEGIN_KNOWN, Event.PUT_NEW, Event.PUT_OTHER, Event.PUT_REFUSED, Event.REFUSE_NEW]
"""What comes too late for a frozen rollout."""


class TestRulings:
    """What an event does in a state."""

    def test_every_event_is_ruled(self) -> None:
        """The table has a line for each event, with an answer for each of the three states."""
        assert RULINGS.keys() == set(Event)
        assert {len(line) for line in RULINGS.values()} == {3}

    @pytest.mark.parametrize("event", Event)
    def test_nothing_is_recorded_behind_a_fence(self, event: Event) -> None:
        """Whatever is asked of a retired rollout, nothing is written into it."""
        assert rule(event, "retired") in {Ruling.RETIRED, Ruling.NOTHING, Ruling.NO}

    @pytest.mark.parametrize("event", LATE)
    def test_late_writes_are_refused(self, event: Event) -> None:
        """A write that would change a frozen or retired rollout is refused, never taken or passed over."""
        assert rule(event, "frozen") is Ruling.FROZEN
        assert rule(event, "retired") is Ruling.RETIRED

    def test_frozen_rollouts_take_marks_and_removal_alone(self) -> None:
        """Of all events only a mark and a matching drop change a frozen rollout."""
        assert {event for event in Event if rule(event, "frozen") is Ruling.RECORD} == {Event.MARK, Event.DROP_MATCH}


class TestState:
    """The facts of a rollout."""

    @pytest.mark.parametrize(
        ("frozen", "retired", "status"),
        [(False, False, "open"), (True, False, "frozen"), (True, True, "retired"), (False, True, "retired")],
    )
    def test_a_fence_counts_most(self, frozen: bool, retired: bool, status: str) -> None:
        """A state that says retired is retired, whatever else it says."""
        assert State(frozen=frozen, retired=retired).status == status

    def test_a_fence_keeps_what_a_late_drop_needs(self) -> None:
        """A fence has no lines, digests or refusals, and everything else as it was."""
        refusal = RefusalRecord(model_call_id="c")
        state = State(
            frozen=True,
            incomplete=True,
            snapshot_id="s",
            version=7,
            entry_digests={"c": "d"},
            indexed_size=9,
            refusals=(refusal,),
            marked=("m",),
            conflicts=("m",),
            damage=("damaged:0+1",),
            verdict=("marked:m",),
            unknown={"theirs": 1},
        )

        fence = state.fence()

        assert (fence.retired, fence.indexed_size, fence.entry_digests, fence.refusals) == (True, 0, {}, ())
        assert (fence.frozen, fence.incomplete, fence.snapshot_id, fence.version) == (True, True, "s", 7)
        assert (fence.marked, fence.damage, fence.verdict) == (state.marked, state.damage, state.verdict)
        assert (fence.conflicts, fence.unknown) == (state.conflicts, state.unknown)
        assert fence.fence() == fence

    def test_refusals_are_found_by_call(self) -> None:
        """A refusal is found by its call."""
        first, second = (RefusalRecord(model_call_id=call_id) for call_id in "ab")
        state = State(refusals=(first, second))

        assert state.refusal_of("b") is second
        assert state.refusal_of("c") is None


class TestVersions:
    """What counts, and how often."""

    def test_a_call_is_marked_once(self) -> None:
        """A mark counts the first time for its call, in one go or in several, and makes the rollout incomplete."""
        state = State(version=3)

        once = with_marks(state, ["a", "b", "a", ""])
        again = with_marks(with_marks(once, ["b", ""]), [])

        assert (once.version, once.incomplete, once.marked) == (6, True, ("a", "b", ""))
        assert again == once

    def test_a_conflict_is_a_mark_with_a_name(self) -> None:
        """A conflict counts like a mark of its call, whichever comes first, and keeps its name."""
        marked_first = with_marks(with_marks(State(), ["a"]), ["a"], conflict=True)
        conflict_first = with_marks(with_marks(State(), ["a"], conflict=True), ["a"])

        assert marked_first == conflict_first
        assert marked_first.version == 1
        assert marked_first.mark_reasons() == ["conflict:a"]

    def test_damage_counts_a_range_once(self) -> None:
        """Each damaged range counts once; other findings make the rollout incomplete without counting."""
        first = with_damage(State(version=1), ["damaged:0+5", "unacceptable:9", "damaged:0+5"])
        second = with_damage(first, ["damaged:0+5", "damaged:20+5", "lost_base:c"])

        assert (first.version, first.incomplete, first.damage) == (2, True, ("damaged:0+5", "unacceptable:9"))
        assert (second.version, len(second.damage)) == (3, 4)

    def test_the_order_does_not_count(self) -> None:
        """Whatever order facts are found in, processes come to the same version."""
        steps: tuple[Callable[[State], State], ...] = (
            lambda state: with_marks(state, ["a", "b"]),
            lambda state: with_marks(state, ["b", "c"], conflict=True),
            lambda state: with_damage(state, ["damaged:0+5", "unacceptable:9"]),
            lambda state: with_damage(state, ["damaged:0+5", "damaged:7+1"]),
        )
        versions = set()
        for order in itertools.permutations(steps):
            state = State()
            for step in order:
                state = step(state)
            versions.add(state.version)

        assert versions == {5}

    def test_values_do_not_change(self) -> None:
        """A state is a value: counting gives another one."""
        state = State(marked=None)

        with_marks(state, ["a"])
        with_damage(state, ["damaged:0+5"])

        assert state == State(marked=None)


class TestReasons:
    """Why a rollout is incomplete."""

    def test_reasons_are_gathered(self) -> None:
        """The sealed verdict, marks, lost calls, damage and findings are told in this order, nothing twice."""
        state = with_damage(with_marks(State(verdict=("lost_call:z", "marked:a")), ["a"]), ["damaged:0+5"])

        reasons = incomplete_reasons(state, ["z", "b"], ["damaged:0+5", "lost_base:c"], marker=True)

        assert reasons == ("lost_call:z", "marked:a", "lost_call:b", "damaged:0+5", "lost_base:c")

    def test_a_flag_without_a_name_is_a_reason(self) -> None:
        """A state or a marker that says incomplete, and nothing that names a call, is `flagged`."""
        assert incomplete_reasons(State(incomplete=True), [], [], marker=False) == ("flagged",)
        assert incomplete_reasons(State(), [], [], marker=True) == ("flagged",)
        assert incomplete_reasons(State(), [], [], marker=False) == ()
