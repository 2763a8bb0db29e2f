"""What travels arrives: batches, pieces, errors, entries that share prompts."""

from __future__ import annotations

import enum
import pickle
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.samples import entry
from tokenstore import InvalidEntryError, RemovalError, TokenCaptureFrozenError, TokenStoreError
from tokenstore.cluster.wire import (
    PIECE_BYTES,
    EntryReader,
    EntryWriter,
    Failure,
    Frames,
    Later,
    Lost,
    Operation,
    Value,
    cut,
    decode_operation,
    decode_outcome,
    encode_operation,
    encode_outcome,
    framed,
    pack,
    unpack,
)
from tokenstore.codec import prepare
from tokenstore.testing import SHAPES, agent_rollout, first_difference, shaped_rollout


class OddError(Exception):
    """Cannot be made again from what it was made of."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


class Unreadable:
    """Is written and cannot be read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_batches_come_apart_as_they_were(blobs: list[bytes]) -> None:
    """Any number of blobs of any size, empty ones too, come apart as they were put together."""
    assert unpack(b"".join(cut(pack(blobs)))) == blobs


@given(st.binary(max_size=100))
def test_no_bytes_are_taken_for_a_batch(data: bytes) -> None:
    """Bytes that are no batch are a ValueError, or a batch that is written as the same bytes."""
    try:
        blobs = unpack(data)
    except ValueError:
        return
    assert pack(blobs) == data


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7])
def test_pieces_stay_below_rays_limit(size: int) -> None:
    """No piece is longer than what Ray passes inside a call, and together they are the bytes."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    pieces = cut(data)

    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= PIECE_BYTES < 100 * 1024
    assert len(pieces) == max(1, -(-size // PIECE_BYTES))


def test_operations_arrive() -> None:
    """An operation arrives with its arguments, an entry as the draft of its line."""
    sent = prepare(entry(extra={"reward": 0.5}, generation_log_probs=[-0.0, -1e-300]))

    found = decode_operation(encode_operation(Operation("put", (sent,))))

    assert found.name == "put"
    assert found.arguments[0].line(checksum=True) == sent.line(checksum=True)


def test_what_cannot_be_sent_is_refused() -> None:
    """A value that cannot leave the process is an error of its operation."""
    with pytest.raises(InvalidEntryError, match="cannot be sent"):
        encode_operation(Operation("retire", ([lambda: 0],)))


def test_what_cannot_be_read_is_refused() -> None:
    """A value that the other side cannot read is an error of its operation alone."""
    with pytest.raises(InvalidEntryError, match="cannot be read"):
        decode_operation(encode_operation(Operation("retire", (Unreadable(),))))


@pytest.mark.parametrize("outcome", [Value(None), Value({"removed": ["r"]}), Later("t"), Lost()])
def test_outcomes_arrive(outcome: Any) -> None:
    """Every kind of outcome arrives as it was."""
    assert decode_outcome(encode_outcome(outcome)) == outcome


@pytest.mark.parametrize(
    "error",
    [
        TokenCaptureFrozenError("r"),
        InvalidEntryError("model", "is None"),
        RemovalError({"removed": ["a"], "absent": []}, {"b": TokenCaptureFrozenError("b")}),
        TypeError("a batch is a list"),
    ],
)
def test_errors_arrive_as_they_were(error: Exception) -> None:
    """Errors of the store and of Python arrive with class, message and facts."""
    found = decode_outcome(encode_outcome(Failure(error)))

    assert isinstance(found, Failure)
    assert (type(found.error), str(found.error)) == (type(error), str(error))
    assert found.error.__dict__.keys() == error.__dict__.keys()


@pytest.mark.parametrize("error", [OddError("a", "b"), pickle.PicklingError("odd")])
def test_errors_of_others_arrive_as_their_text(error: Exception) -> None:
    """An error that the other side may not know arrives as an error of ours with its text."""
    found = decode_outcome(encode_outcome(Failure(error)))

    assert isinstance(found, Failure)
    assert type(found.error) is TokenStoreError
    assert str(found.error) == f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("shape", SHAPES)
def test_entries_share_prompts_on_the_way(shape: str) -> None:
    """Rollouts of every shape come back value for value, each frame after those before it."""
    rollout = [
        attrs.evolve(call, generation_log_probs=[float(one) for one in call.generation_log_probs])
        for call in shaped_rollout(shape, "r")  # the store gives floats
    ]
    writer, reader = EntryWriter(), EntryReader()

    found = [reader.item(frame) for frame in map(writer.frame, rollout)]

    assert [first_difference(one, other) for one, other in zip(rollout, found, strict=True)] == [None] * len(rollout)


def test_an_agents_rollout_takes_little() -> None:
    """Frames of an agent's rollout hold each id about once, although every prompt holds all that came before."""
    rollout = list(agent_rollout("r", turns=50, first_prompt=1000))
    writer = EntryWriter()

    sent = sum(len(writer.frame(call)) for call in rollout)
    whole = sum(len(EntryWriter().frame(call)) for call in rollout)

    assert sent < whole / 5


@given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_found_wherever_they_were_cut(frames: list[bytes], cuts: list[int]) -> None:
    """Frames come out whole and in order, wherever the bytes were cut."""
    data = b"".join(map(framed, frames))
    found: list[bytes] = []
    reader = Frames()
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1

    assert found == frames
    assert reader.is_whole


class Code(enum.StrEnum):
    """Strings of a class that a shard does not know."""

    FULL = "full"


def test_strings_of_other_classes_arrive_as_strings() -> None:
    """An id or code that is a string of the user's own class is a plain one on the way, also inside an entry."""
    sent = [
        Operation("refuse_call", (Code.FULL, "c", Code.FULL)),
        Operation("retire", ([Code.FULL],)),
        Operation("put", (prepare(entry(Code.FULL, rollout_id=Code.FULL, model=Code.FULL)),)),
    ]
    refused, retired, put = [encode_operation(operation) for operation in sent]

    assert not any(b"Code" in blob for blob in (refused, retired, put))
    assert decode_operation(refused) == Operation("refuse_call", ("full", "c", "full"))
    assert decode_operation(retired) == Operation("retire", (["full"],))
    assert decode_operation(put).arguments[0].rollout_id == "full"
