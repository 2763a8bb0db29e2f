"""The bytes of a file become lines, and each line an entry, damage or something unacceptable, wherever chunks end."""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest

from tests.samples import LIMIT, entry, foreign_line, line_of, vouched
from tokenstore.codec import LineHead, encode_entry
from tokenstore.errors import CorruptRolloutError
from tokenstore.journal.logfile import CHUNK
from tokenstore.journal.recovery import Found, LineReader, RawLine, Read, split_lines

GOOD = [line_of(entry(f"c{number}")) for number in range(3)]


def reader_of(data: bytes, most: int = CHUNK) -> Read:
    """Read bytes, at most so many at a time: a short read is a chunk boundary."""
    return lambda offset, size: data[offset : offset + min(size, most)]


def split(data: bytes, *, most: int = CHUNK, limit: int = LIMIT, start: int = 0) -> list[RawLine]:
    """Split bytes into lines."""
    return list(split_lines(reader_of(data, most), start, len(data), limit))


def lines_of(data: bytes, limit: int = LIMIT) -> LineReader:
    """Make what reads the rollout's lines."""
    return LineReader(reader_of(data), "r", "r.tokens.jsonl", limit)


def found_in(data: bytes, limit: int = LIMIT) -> list[Found]:
    """Tell what each line is."""
    return list(lines_of(data, limit).find(0, len(data)))


class TestSplitting:
    """Bytes become lines."""

    def test_lines_have_places(self) -> None:
        """A line has where it begins, where the next one does, its bytes, and whether it ends."""
        assert split(b"ab\n\nc\nde") == [
            RawLine(0, 3, 0, b"ab", terminated=True),
            RawLine(3, 4, 3, b"", terminated=True),
            RawLine(4, 6, 4, b"c", terminated=True),
            RawLine(6, 8, 6, b"de", terminated=False),
        ]
        assert split(b"") == []

    @pytest.mark.parametrize(
        "data",
        [
            b"ab\ncd\n\nefgh\n",
            b"\nab\ncd",
            b"\0\0\n\0ab\0\0cd\nef\0\ngh\0",
            b"\0" * 7 + b"ab\n" + b"\0" * 3,
            b"longer than the limit\nab\n\0longer than the limit, too\0cd\nlonger than the limit",
        ],
    )
    @pytest.mark.parametrize("most", [1, 2, 3, 5, 7])
    def test_chunks_do_not_show(self, data: bytes, most: int) -> None:
        """Wherever the chunks of a file end, its lines are the same."""
        assert split(data, most=most, limit=8) == split(data, limit=8)

    def test_empty_lines_that_follow_each_other_are_one(self) -> None:
        """A run of newlines is one line with nothing in it, so that a file of them costs little."""
        assert split(b"ab\n\n\n\ncd\n\n") == [
            RawLine(0, 3, 0, b"ab", terminated=True),
            RawLine(3, 6, 3, b"", terminated=True),
            RawLine(6, 9, 6, b"cd", terminated=True),
            RawLine(9, 10, 9, b"", terminated=True),
        ]

    def test_a_range_can_begin_and_end_anywhere(self) -> None:
        """Only the bytes of the range are looked at, and places are those of the file."""
        data = b"ab\ncd\nef\n"

        assert list(split_lines(reader_of(data), 3, 7, LIMIT)) == [
            RawLine(3, 6, 3, b"cd", terminated=True),
            RawLine(6, 7, 6, b"e", terminated=False),
        ]
        assert list(split_lines(reader_of(data), 9, 9, LIMIT)) == []

    def test_a_file_that_ends_early_ends_the_lines(self) -> None:
        """If the file is shorter than it was said to be, what is there is split."""
        assert list(split_lines(reader_of(b"ab\nc"), 0, 99, LIMIT))[-1] == RawLine(3, 4, 3, b"c", terminated=False)

    def test_a_hole_ends_inside_a_line(self) -> None:
        """Of a line with NULs, what follows the last one is kept, with its place."""
        assert split(b"ab\ncd\0\0\0ef\n") == [
            RawLine(0, 3, 0, b"ab", terminated=True),
            RawLine(3, 11, 8, b"ef", terminated=True),
        ]

    def test_the_limit_is_for_the_payload(self) -> None:
        """A payload of just the limit is kept, a longer one is not; NULs before it do not count."""
        assert [line.payload for line in split(b"12345678\n123456789\n\0\0\0\0\0\0\0\0\x0012345678\n", limit=8)] == [
            b"12345678",
            None,
            b"12345678",
        ]

    def test_a_hole_after_too_much_begins_anew(self) -> None:
        """What follows the last NUL counts alone, however long the bytes before it were."""
        assert split(b"123456789\x00ab\n", limit=8) == [RawLine(0, 13, 10, b"ab", terminated=True)]

    @pytest.mark.parametrize("ends", [b"", b"\n"])
    def test_memory_is_bounded_by_the_limit(self, ends: bytes) -> None:
        """Of a line that is longer than is allowed only the length is kept, a chunk at a time."""
        size = 64 * CHUNK
        chunk = b"x" * CHUNK

        def read(offset: int, wanted: int) -> bytes:
            return chunk[:wanted] if offset < size else ends

        tracemalloc.start()
        (line,) = split_lines(read, 0, size + len(ends), CHUNK)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert line == RawLine(0, size + len(ends), 0, None, terminated=bool(ends))
        assert peak < 4 * CHUNK


class TestVerdicts:
    """A line becomes what it is."""

    def test_good_lines_are_entries(self) -> None:
        """A good line tells its call, its digest and its place."""
        found = found_in(b"\n".join(GOOD) + b"\n")

        assert [line.head.model_call_id for line in found if line.head] == ["c0", "c1", "c2"]
        assert [line.digest for line in found] == [hashlib.sha256(line).hexdigest() for line in GOOD]
        assert [line.damage for line in found] == [()] * 3
        assert found[1].offset == len(GOOD[0]) + 1

    def test_garbage_is_damage_with_its_place(self) -> None:
        """A damaged line among good ones is told by its range, and the good ones are kept."""
        found = found_in(GOOD[0] + b"\n{garbage\n\n" + GOOD[1] + b"\n")
        start = len(GOOD[0]) + 1

        assert [line.damage for line in found] == [(), (f"damaged:{start}+9",), (f"damaged:{start + 9}+1",), ()]

    def test_a_hole_of_nuls_keeps_what_follows(self) -> None:
        """A line that begins with NULs is damaged there and an entry after, if what follows is whole and valid."""
        hole = b"\0" * 100
        found = found_in(GOOD[0] + b"\n" + hole + GOOD[1] + b"\n" + hole + GOOD[2][5:] + b"\n" + hole + b"\n")
        start = len(GOOD[0]) + 1

        assert [bool(line.head) for line in found] == [True, True, False, False]
        assert found[1].damage == (f"damaged:{start}+100",)
        assert found[1].offset == start + 100
        assert found[1].digest == hashlib.sha256(GOOD[1]).hexdigest()
        assert found[2].damage == (f"damaged:{found[1].end}+{100 + len(GOOD[2]) - 5 + 1}",)
        assert found[3].damage == (f"damaged:{found[2].end}+101",)

    def test_a_hole_that_ends_a_line_damages_it(self) -> None:
        """A line whose end is NULs, or that has them inside, is damaged as a whole."""
        for line in (GOOD[0] + b"\0\0", GOOD[0][:20] + b"\0" + GOOD[0][21:], GOOD[0][:-2] + b"\0\0"):
            (found,) = found_in(line + b"\n")
            assert found.head is None
            assert found.damage == (f"damaged:0+{len(line) + 1}",)

    def test_lines_of_others_are_unacceptable(self) -> None:
        """A well-formed line that is no entry of this rollout is told by its place, and not counted as damage."""
        other = foreign_line(encode_entry(entry(rollout_id="other")))
        found = found_in(GOOD[0] + b"\n" + other + b"\n[1]\n")

        assert [line.damage for line in found] == [
            (),
            (f"unacceptable:{len(GOOD[0]) + 1}",),
            (f"unacceptable:{len(GOOD[0]) + len(other) + 2}",),
        ]

    def test_too_long_lines_are_unacceptable(self) -> None:
        """A line that is longer than is allowed is left out, and its neighbours are kept."""
        long = line_of(entry("long", model="x" * 1000))
        found = found_in(b"\n".join([GOOD[0], long, GOOD[1]]) + b"\n", limit=len(GOOD[0]))

        assert [bool(line.head) for line in found] == [True, False, True]
        assert found[1].damage == (f"unacceptable:{len(GOOD[0]) + 1}",)

    def test_newer_lines_stop_everything(self) -> None:
        """A line of a newer library is an error that names file, place and version: nothing may be concluded."""
        newer = foreign_line({**encode_entry(entry("new")), "schema_version": 99})

        with pytest.raises(
            CorruptRolloutError, match=rf"r\.tokens\.jsonl: the line at byte {len(GOOD[0]) + 1} has .*99"
        ):
            found_in(GOOD[0] + b"\n" + newer + b"\n")

    @pytest.mark.parametrize("tail", [b"{", GOOD[1][:-1], GOOD[1], b"\0\0", b"\0" + GOOD[1]])
    def test_an_unterminated_end_says_so(self, tail: bytes) -> None:
        """The last line tells whether it ends in a newline, whatever it is."""
        found = found_in(GOOD[0] + b"\n" + tail)

        assert [line.terminated for line in found] == [True, False]
        assert bool(found[1].head) == tail.endswith(GOOD[1])


class TestReading:
    """Lines are read whole."""

    def test_an_entry_is_decoded(self) -> None:
        """A line that was found is read whole, from its bytes or from its place."""
        lines = lines_of(b"\n".join(GOOD) + b"\n")
        found, stored = list(lines.read_whole(0, 10_000))[1]

        assert stored is not None
        assert stored.entry == entry("c1")
        assert lines.decode_at(found.offset).entry == entry("c1")

    def test_what_is_none_after_all_is_left_out(self) -> None:
        """A line that its checksum vouches for and that is no entry all the same is none."""
        line = vouched(foreign_line({"rollout_id": "r", "model_call_id": "c"}))

        ((found, stored),) = lines_of(line + b"\n").read_whole(0, 10_000)

        assert found.head == LineHead("c", None)
        assert stored is None

    def test_reading_whole_finds_the_same(self) -> None:
        """Whoever reads lines whole is told of each what one who only looks at them is told."""
        bad = [b"", b"{", bytes(9) + GOOD[0], GOOD[1][:-2] + b"0}", foreign_line({"rollout_id": "s"}), GOOD[0][:40]]
        lines = lines_of(b"\n".join([GOOD[0], *bad, GOOD[1]]))

        whole = list(lines.read_whole(0, 10_000))

        assert [found for found, _ in whole] == list(lines.find(0, 10_000))
        assert [stored is not None for _, stored in whole] == [bool(found.head) for found, _ in whole]
