"""What is known of a rollout between sections: facts of the state file, and what was found since."""

from __future__ import annotations

import hashlib

from tokenstore.codec import LineHead
from tokenstore.journal.index import Index
from tokenstore.journal.lifecycle import State
from tokenstore.journal.recovery import Found


def digest(payload: bytes) -> str:
    """Digest a line as a state holds it."""
    return hashlib.sha256(payload).hexdigest()


def line(call_id: str, payload: bytes = b"x", *, offset: int = 0, base: str | None = None) -> Found:
    """Find a good line of 10 bytes."""
    return Found(offset, offset + 10, payload=payload, head=LineHead(call_id, base))


def test_new_calls_count() -> None:
    """A call that the state does not know adds one to the version, wherever its line was found first."""
    index = Index(State(version=5, entry_digests={"a": digest(b"a")}, indexed_size=10))
    index.fold(line("b", b"b", offset=10))
    index.add_call("c", digest(b"c"))

    state = index.current()

    assert state.version == 7
    assert state.entry_digests == {"a": digest(b"a"), "b": digest(b"b"), "c": digest(b"c")}
    assert state.indexed_size == 20
    assert not index.has_news


def test_a_line_written_twice_counts_once() -> None:
    """The same bytes of a call again are no news; other bytes are to be judged by their content."""
    index = Index(State())
    for payload in (b"a", b"a", b"A"):
        index.fold(line("a", payload))

    assert index.current().version == 1
    assert index.doubles == ["a"]
    assert index.calls == {"a": digest(b"a")}


def test_an_older_state_covers_all_lines() -> None:
    """Lines that a state without an index covers do not count, and the index is news to be written."""
    index = Index(State(version=5, indexed_size=None))
    index.fold(line("a", b"a"))

    assert index.has_news
    assert (index.current().version, index.current().indexed_size) == (5, 10)


def test_a_line_that_names_a_lost_base_is_left_out() -> None:
    """A line whose base is no known call is no call, and a reason to mask; so is what hangs on it."""
    index = Index(State())
    index.fold(line("b", base="a"))
    index.fold(line("c", base="b"))

    assert index.calls == {}
    assert index.current().damage == ("lost_base:b", "lost_base:c")
    assert index.current().version == 0


def test_lost_lines_are_noticed() -> None:
    """If the file ends before what the state covers, the missing range is damage, and what is left is read again."""
    index = Index(State(version=3, entry_digests={"a": digest(b"a"), "b": digest(b"b")}, indexed_size=20))
    index.restart()
    index.fold(line("a", b"a"))
    index.finish_scan()

    state = index.current()

    assert index.calls == {"a": digest(b"a")}
    assert (state.version, state.damage, state.indexed_size) == (4, ("damaged:10+10",), 10)


def test_a_changed_line_is_damage() -> None:
    """A line that the state knows with another digest is not counted as the call."""
    index = Index(State(version=3, entry_digests={"a": digest(b"a")}, indexed_size=10))
    index.restart()
    index.fold(line("a", b"changed"))

    assert index.calls == {}
    assert index.current().damage == ("damaged:0+10",)


def test_marks_are_counted_by_name() -> None:
    """Lines of the marker that the state does not list are news; those it lists are not."""
    state = State(version=3, incomplete=True, marked=("a",))
    known, index = Index(state), Index(state)
    known.add_marks(["a"])
    index.add_marks(["a", "b", "b", ""])

    assert (known.has_news, index.has_news) == (False, True)
    assert (index.current().version, index.current().marked) == (5, ("a", "b", ""))


def test_marks_of_a_state_without_a_list_are_counted_already() -> None:
    """An incomplete state of the reference has counted every line of the marker, a complete one none."""
    counted = Index(State(version=3, incomplete=True, marked=None), ["a", "b"])
    counted.add_marks(["a", "b", "c"])
    uncounted = Index(State(version=3, marked=None), ["a"])
    uncounted.add_marks(["a"])

    assert counted.current().version == 4
    assert uncounted.current().version == 4


def test_a_conflict_is_one_count() -> None:
    """A conflict of a marked call adds its name and no count; one that is known adds nothing."""
    index = Index(State(version=3, incomplete=True, marked=("a",)))
    index.add_conflicts(["a"])
    assert index.new_conflicts == []
    assert (index.current().version, index.current().conflicts) == (3, ("a",))

    index.written(index.current())
    index.add_conflicts(["a", "b"])
    assert index.new_conflicts == ["b"]
    assert index.current().conflicts == ("a", "b")


def test_damage_is_noted_once() -> None:
    """A reason that the state has, or that was found before, is no news."""
    index = Index(State(damage=("damaged:0+1",)))
    index.add_damage(["damaged:0+1"])
    assert not index.has_news
    index.add_damage(["damaged:5+1", "damaged:5+1"])
    index.add_damage(["damaged:5+1"])

    assert index.current().damage == ("damaged:0+1", "damaged:5+1")


def test_a_sealed_rollout_takes_marks_alone() -> None:
    """The lines of a frozen state stay as they were sealed; marks move its version."""
    sealed = State(frozen=True, version=3, entry_digests={"a": "d"}, indexed_size=10, snapshot_id="s")
    index = Index(sealed)
    index.scanned = 99
    index.add_marks(["m"])

    state = index.current()

    assert (state.version, state.entry_digests, state.indexed_size) == (4, {"a": "d"}, 10)


def test_what_was_written_is_no_news() -> None:
    """After the state was written there is nothing to write, and counting goes on from it."""
    index = Index(State())
    index.fold(line("a", b"a"))
    index.add_marks(["m"])
    index.written(index.current())
    assert not index.has_news
    index.fold(line("b", b"b", offset=10))

    assert index.current().version == 3


def test_only_the_line_that_is_covered_is_expected() -> None:
    """A line without its newline is taken by a reader only if the state covers just these bytes."""
    index = Index(State(entry_digests={"a": digest(b"a")}, indexed_size=10))

    assert index.expects(line("a", b"a"))
    assert not index.expects(line("a", b"other"))
    assert not index.expects(line("b", b"a"))
    assert not index.expects(Found(0, 10))
