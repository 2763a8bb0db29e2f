"""How operations and answers travel: as bytes, cut into pieces that Ray passes inside its messages.

1. Each operation is pickled for itself, in the thread of whoever asks, and read for itself: one that cannot be read
   is answered alone and leaves the batch.
2. An entry travels as a `Draft`: checked and encoded but for its prompt, which goes packed, 4 bytes an id, since only
   the shard knows which call before it shares it.
3. A batch is a head with the lengths, and the operations one after the other, cut into pieces of 96 KiB: an argument
   beyond 100 KiB goes through Ray's object store, which costs 1.4 to 2.4 times as much.
4. Errors travel as values. What is not an error of ours, nor one of Python's own, arrives as its text.
5. Entries of a snapshot share prompts on the way, as lines do on the disk: one whose prompt begins with the whole call
   before it is sent as the rest.

Pickle, because both ends are one program on machines that run each other's code anyway.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import attrs

from tokenstore.errors import InvalidEntryError, TokenStoreError
from tokenstore.records import ENTRY_FIELDS, TokenEntry

PIECE_BYTES = 96 * 1024
"""Longest argument: Ray passes arguments below 100 KiB inside the call."""
PART_BYTES = 4 * 1024 * 1024
"""Longest part of an answer, and longest batch of more than one operation."""

_COUNT = struct.Struct("<I")


@attrs.frozen
class Value:
    """An answer: what the operation returned."""

    value: Any


@attrs.frozen
class Failure:
    """An answer: what the operation raised."""

    error: Exception


@attrs.frozen
class Later:
    """An answer: the operation goes on, and this ticket gives its outcome."""

    ticket: str


@attrs.frozen
class Lost:
    """An answer: there is no such ticket, because the process that gave it has ended."""


@attrs.frozen
class Part:
    """A part of a long answer."""

    head: Any
    """What comes before the items, in the first part."""
    data: bytes
    """Frames of items, cut anywhere."""
    ticket: str
    """Asks for the next part; empty if this is the last."""


Outcome = Value | Failure | Later | Lost


@attrs.frozen
class Operation:
    """What is to be done: a name of `operations.OPERATIONS`, and what it is given."""

    name: str
    arguments: tuple[Any, ...]


# ---------------------------------------------------------------------------------------------- batches


def pack(blobs: Sequence[bytes]) -> bytes:
    """Put blobs together: their number, their lengths, themselves."""
    head = struct.pack(f"<I{len(blobs)}Q", len(blobs), *map(len, blobs))
    return b"".join([head, *blobs])


def unpack(data: bytes) -> list[bytes]:
    """Take blobs apart.

    Raises:
        ValueError: These are no such blobs.
    """
    try:
        (count,) = _COUNT.unpack_from(data)
        lengths = struct.unpack_from(f"<{count}Q", data, _COUNT.size)
    except struct.error as error:
        raise ValueError(f"no batch: {error}") from None
    at = _COUNT.size + 8 * count
    if at + sum(lengths) != len(data):
        raise ValueError(f"a batch of {at + sum(lengths)} bytes has {len(data)}")
    blobs = []
    for length in lengths:
        blobs.append(data[at : at + length])
        at += length
    return blobs


def cut(data: bytes) -> list[bytes]:
    """Cut bytes into arguments."""
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)] or [b""]


# ---------------------------------------------------------------------------------------------- operations, outcomes


class _Plain(pickle.Pickler):
    """Writes a string of a class of the user's, such as an enum, as a plain one: the shard does not know the class."""

    def reducer_override(self, value: Any) -> Any:
        return (str, (str.__str__(value),)) if isinstance(value, str) else NotImplemented


def encode_operation(operation: Operation) -> bytes:
    """Write an operation.

    Raises:
        InvalidEntryError: An argument cannot leave this process, such as a function.
    """
    try:
        target = io.BytesIO()
        _Plain(target, pickle.HIGHEST_PROTOCOL).dump((operation.name, operation.arguments))
        return target.getvalue()
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise InvalidEntryError("entry", f"holds what is no JSON value and cannot be sent ({error})") from None


def decode_operation(blob: bytes) -> Operation:
    """Read an operation.

    Raises:
        InvalidEntryError: It holds what this process does not know.
    """
    try:
        name, arguments = pickle.loads(blob)  # noqa: S301 - from a client of the same cluster
    except Exception as error:  # noqa: BLE001 - reading runs whatever the classes of the values do
        raise InvalidEntryError("entry", f"holds what is no JSON value and cannot be read ({error})") from None
    return Operation(name, arguments)


def encode_outcome(outcome: Outcome) -> bytes:
    """Write an outcome; an error that could not be read elsewhere is sent as its text."""
    if isinstance(outcome, Failure):
        outcome = Failure(_portable(outcome.error))
    return pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)


def decode_outcome(blob: bytes) -> Outcome:
    """Read an outcome."""
    outcome: Outcome = pickle.loads(blob)  # noqa: S301 - from a shard of the same cluster
    return outcome


def _portable(error: Exception) -> Exception:
    home = type(error).__module__.partition(".")[0]
    if home in ("tokenstore", "builtins"):
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made here
        except Exception:  # noqa: BLE001 - whatever it is, it cannot travel
            return TokenStoreError(f"{type(error).__name__}: {error}")
        return error
    return TokenStoreError(f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------------------------------------- items of long answers


class EntryWriter:
    """Frames of entries, each without as much of its prompt as the entry before it has."""

    def __init__(self) -> None:
        self._before: list[int] = []

    def frame(self, entry: TokenEntry) -> bytes:
        """Write an entry."""
        prompt, shared = entry.prompt_token_ids, len(self._before)
        if not shared or prompt[:shared] != self._before:
            shared = 0
        fields = {name: getattr(entry, name) for name in ENTRY_FIELDS}
        fields |= {"prompt_token_ids": prompt[shared:], "extra": entry.extra}
        self._before = prompt + entry.generation_token_ids
        return pickle.dumps((shared, fields), pickle.HIGHEST_PROTOCOL)


class EntryReader:
    """Gives back the entries of an `EntryWriter`, in its order."""

    def __init__(self) -> None:
        self._before: list[int] = []

    def item(self, frame: bytes) -> TokenEntry:
        """Read an entry."""
        shared, fields = pickle.loads(frame)  # noqa: S301 - from a shard of the same cluster
        if shared:
            fields["prompt_token_ids"] = self._before + fields["prompt_token_ids"]
        self._before = fields["prompt_token_ids"] + fields["generation_token_ids"]
        return TokenEntry(**fields)


def plain_frame(item: Any) -> bytes:
    """Write an item that shares nothing."""
    return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)


def plain_item(frame: bytes) -> Any:
    """Read an item that shares nothing."""
    return pickle.loads(frame)  # noqa: S301 - from a shard of the same cluster


def framed(frame: bytes) -> bytes:
    """Put a frame's length before it."""
    return _COUNT.pack(len(frame)) + frame


class Frames:
    """Finds the frames in parts that were cut anywhere."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next part, and give the frames that are whole now."""
        self._rest += data
        found, at = [], 0
        while len(self._rest) >= at + _COUNT.size:
            (length,) = _COUNT.unpack_from(self._rest, at)
            end = at + _COUNT.size + length
            if end > len(self._rest):
                break
            found.append(bytes(self._rest[at + _COUNT.size : end]))
            at = end
        del self._rest[:at]
        return found

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left over."""
        return not self._rest
