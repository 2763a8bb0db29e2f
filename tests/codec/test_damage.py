"""No damaged line is ever read as something that was not written."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.samples import entry, foreign_line, line_of
from tokenstore.codec import (
    DamagedLineError,
    KnownPrompt,
    UnacceptableLineError,
    decode_line,
    encode_entry,
    inspect_line,
)

IDS = b"".join(number.to_bytes(4, "little") for number in range(300))
SMALL = entry(
    prompt_token_ids=[0, 1, 151_644],
    generation_token_ids=[7, 99],
    generation_log_probs=[-0.0000125, -0.5],
    output_items=[{"text": 'é"\\/'}],
    token_item_index=0,
    extra={"reward": 1.0, "ok": True},
)
LINES = {
    "whole": line_of(SMALL),
    "shared": line_of(entry(prompt_token_ids=[*range(300), 7]), base=KnownPrompt("b", IDS, zlib.crc32(IDS))),
    "zero at the end": next(
        line for nonce in range(1000) if (line := line_of(entry(extra={"nonce": nonce}))).endswith(b"0}")
    ),
}
"""Small lines of each kind; the last one's checksum ends in 0, which is one bit from a space, and JSON allows that."""


def is_refused(read: Any, line: bytes) -> bool:
    """Tell whether a reading of a line raises what a reading of a bad line may raise."""
    try:
        read(line, "r")
    except (DamagedLineError, UnacceptableLineError):
        return True
    return False


def flipped(line: bytes) -> Iterator[bytes]:
    """Give the line with each single bit flipped."""
    for position in range(len(line)):
        for bit in range(8):
            yield line[:position] + bytes([line[position] ^ 1 << bit]) + line[position + 1 :]


def shortened(line: bytes) -> Iterator[bytes]:
    """Give the line without each single byte."""
    for position in range(len(line)):
        yield line[:position] + line[position + 1 :]


def cut(line: bytes) -> Iterator[bytes]:
    """Give every beginning and every end of the line."""
    for position in range(1, len(line)):
        yield line[:position]
        yield line[position:]


def swapped(line: bytes) -> Iterator[bytes]:
    """Give the line with each two neighbours exchanged that differ."""
    for position in range(1, len(line)):
        if line[position - 1] != line[position]:
            yield (
                line[: position - 1]
                + line[position : position + 1]
                + line[position - 1 : position]
                + line[position + 1 :]
            )


def doubled(line: bytes) -> Iterator[bytes]:
    """Give the line with each single byte written twice."""
    for position in range(len(line)):
        yield line[: position + 1] + line[position:]


@pytest.mark.parametrize("read", [decode_line, inspect_line])
@pytest.mark.parametrize("change", [flipped, shortened, cut, swapped, doubled])
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_every_small_damage_is_refused(line: bytes, change: Any, read: Any) -> None:
    """Whatever bit flips, byte is lost, doubled or moved, or end is missing, the line is refused."""
    assert not is_refused(read, line)

    let_pass = [changed for changed in change(line) if not is_refused(read, changed)]

    assert let_pass == []


@pytest.mark.parametrize(
    "number", [b"-", b"01", b"1.", b".5", b"1e400", b"NaN", b"Infinity", b"-Infinity", b"+1", b"1e", b"--1"]
)
@pytest.mark.parametrize("checksum", [b"", b',"crc32":1'])
def test_foreign_numbers_that_are_none_are_damage(number: bytes, checksum: bytes) -> None:
    """A number that JSON does not know is damage in any field, never 0.0 or something near it."""
    line = foreign_line({**encode_entry(entry()), "reward": -0.75})

    for old in (b"-0.5", b"4,5", b"1.5", b"-0.75", b":1,"):
        changed = line.replace(old, old[:1] + number + b"," if old == b":1," else number)[:-1] + checksum + b"}"
        assert changed[:-1] != line[:-1] + checksum
        with pytest.raises(DamagedLineError):
            decode_line(changed, "r")


@pytest.mark.parametrize("raw", [b"\n", b"\r", b"\t", b"\0", b"\x1f", b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_foreign_texts_that_are_none_are_damage(raw: bytes) -> None:
    """A raw control character, or bytes that are no UTF-8, inside a string are damage."""
    line = foreign_line(encode_entry(entry())).replace(b"hello", b"hel" + raw + b"lo")

    for read in (decode_line, inspect_line):
        with pytest.raises(DamagedLineError):
            read(line, "r")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt_token_ids", [1, "12"]),
        ("prompt_token_ids", [1.9]),
        ("prompt_token_ids", [1.0]),
        ("prompt_token_ids", [True]),
        ("prompt_token_ids", [None]),
        ("prompt_token_ids", [-1]),
        ("prompt_token_ids", [2**40]),
        ("prompt_token_ids", "123"),
        ("prompt_token_ids", None),
        ("generation_token_ids", [4, 2**32]),
        ("generation_token_ids", [4]),
        ("generation_log_probs", [None, -0.5]),
        ("generation_log_probs", ["-0.5", -0.5]),
        ("generation_log_probs", [True, -0.5]),
        ("generation_log_probs", [10**400, -0.5]),
        ("model", 7),
        ("model", "\ud800"),
        ("output_items", [7]),
        ("output_items", {"a": 1}),
        ("token_item_index", 1),
        ("created_at", "now"),
        ("created_at", 10**400),
        ("schema_version", "1"),
        ("schema_version", True),
        ("schema_version", 0),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_foreign_entries_are_checked_like_ours(field: str, value: Any) -> None:
    """A well-formed line of another library that `put` would refuse is unacceptable."""
    line = json.dumps({**encode_entry(entry()), field: value}).encode()

    with pytest.raises(UnacceptableLineError):
        decode_line(line, "r")
    with pytest.raises(UnacceptableLineError):
        inspect_line(line, "r")


def test_whole_numbers_of_foreign_lines_are_floats() -> None:
    """Log probabilities that another library wrote as whole numbers are floats."""
    stored = decode_line(foreign_line({**encode_entry(entry()), "generation_log_probs": [0, -9999]}), "r")

    assert [repr(value) for value in stored.entry.generation_log_probs] == ["0.0", "-9999.0"]


@pytest.mark.parametrize("value", [b"null", b"7", b'"text"', b"[1]", b"true", b"[]"])
@pytest.mark.parametrize("read", [decode_line, inspect_line])
def test_json_that_is_no_object_is_unacceptable(value: bytes, read: Any) -> None:
    """A line of well-formed JSON that is no object is no entry."""
    with pytest.raises(UnacceptableLineError, match="no JSON object"):
        read(value, "r")


@pytest.mark.parametrize("read", [decode_line, inspect_line])
def test_an_empty_line_is_damage(read: Any) -> None:
    """Nothing, or white space alone, is no line that anybody wrote."""
    for line in (b"", b" ", b"\r"):
        with pytest.raises(DamagedLineError):
            read(line, "r")


def test_a_misplaced_checksum_is_damage() -> None:
    """A line that has a checksum, but not at its end, was not written so."""
    line = LINES["whole"]
    body, _, crc32 = line[:-1].rpartition(b',"crc32":')

    for moved in (b'{"crc32":%b,%b}' % (crc32, body[1:]), body + b',"crc32": %b}' % crc32, line + b" "):
        with pytest.raises(DamagedLineError):
            decode_line(moved, "r")


def test_text_that_looks_like_a_checksum_is_text() -> None:
    """Items that hold members and texts of that name come back, with and without a checksum of the line's own."""
    made = entry(
        output_items=[{"a": 1, "crc32": 5}, {"text": ',"crc32":7}'}],
        extra={"zz": {"a": 1, "crc32": 5}},
        model=',"crc32":7}',
    )

    for checksum in (True, False):
        assert decode_line(line_of(made, checksum=checksum), "r").entry == made
