"""The values that go in and out of the store: frozen attrs, checked when they are made.

A `TokenEntry` checks the kinds and lengths of its fields at once, which is cheap; the elements of its arrays and the
inside of its JSON values are checked by the codec, in a worker thread, before a byte is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import attrs

from tokenstore.distribution import Distribution, distribution_from
from tokenstore.errors import InvalidEntryError
from tokenstore.ids import validate_model_call_id, validate_rollout_id

SCHEMA_VERSION = 1
"""The newest entry schema this library understands."""
RESERVED_KEYS = frozenset({"crc32", "prompt_base", "prompt_rest"})
"""Keys of a stored line that belong to its encoding, so no entry may carry them."""

RolloutState = Literal["open", "frozen", "retired"]
"""Where a rollout is in its life."""

_INTEGER_FORMATS = frozenset("bBhHiIlLqQnN")
_FLOAT_FORMATS = frozenset("efd")


def _array(value: Any, field: str, formats: frozenset[str], what: str) -> list[Any]:
    """Copy a one-dimensional array of any accepted kind into a list."""
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, str | bytes | bytearray):
        raise InvalidEntryError(field, f"is of type {type(value).__name__}, pass a list of {what}")
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):  # numpy's dates are a ValueError
        problem = f"is of type {type(value).__name__}, pass a list of {what} (a tensor's .tolist() is one)"
        raise InvalidEntryError(field, problem) from None
    with view:
        if view.ndim != 1 or view.format.lstrip("@=<>") not in formats:
            problem = f"is an array of format {view.format!r} in {view.ndim} dimensions, pass a flat array of {what}"
            raise InvalidEntryError(field, problem)
        if hasattr(value, "tolist"):
            return list(value.tolist())
        # A view gives only native formats; a ctypes array has another, and gives its elements itself.
        return list(value if hasattr(value, "__getitem__") else view.tolist())


def _prompt_ids(value: Any) -> list[int]:
    return _array(value, "prompt_token_ids", _INTEGER_FORMATS, "ints")


def _generation_ids(value: Any) -> list[int]:
    return _array(value, "generation_token_ids", _INTEGER_FORMATS, "ints")


def _log_probs(value: Any) -> list[float]:
    return _array(value, "generation_log_probs", _FLOAT_FORMATS | _INTEGER_FORMATS, "floats")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _created_at(value: Any) -> float:
    try:
        number = float(value) if isinstance(value, float) or _is_int(value) else math.nan
    except OverflowError:
        raise InvalidEntryError("created_at", "is an integer beyond the range of a double") from None
    if not math.isfinite(number):
        raise InvalidEntryError("created_at", f"is {_kind(value)}, it must be a finite number")
    return number


def _kind(value: object) -> str:
    return repr(value) if value is None or isinstance(value, int | float) else f"of type {type(value).__name__}"


def _text(_: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise InvalidEntryError(field.name, f"is {_kind(value)}, it must be a string")


def _text_or_none(entry: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        _text(entry, field, value)


def _rollout_id(_: TokenEntry, __: attrs.Attribute[Any], value: str) -> None:
    validate_rollout_id(value)


def _call_id(_: object, __: attrs.Attribute[Any], value: str) -> None:
    validate_model_call_id(value)


def _items(_: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, list | tuple):
        raise InvalidEntryError(field.name, f"is {_kind(value)}, it must be a list of objects")
    for position, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidEntryError(field.name, f"item {position} is {_kind(item)}, it must be a dict")


def _item_index(entry: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEntryError(field.name, f"is {_kind(value)}, it must be an int or None")
    if not 0 <= value < len(entry.output_items):
        raise InvalidEntryError(field.name, f"is {value}, but there are {len(entry.output_items)} output_items")


def _schema(_: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidEntryError(field.name, f"is {_kind(value)}, it must be an int from 1 on")
    if value > SCHEMA_VERSION:
        raise InvalidEntryError(field.name, f"is {value}, this library knows up to {SCHEMA_VERSION}; upgrade it")


def _extra(_: TokenEntry, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, dict):
        raise InvalidEntryError(field.name, f"is {_kind(value)}, it must be a dict")
    for key in value:
        if not isinstance(key, str):
            raise InvalidEntryError(field.name, f"holds a key of type {type(key).__name__}, keys are strings")
        if key in RESERVED_KEYS or key in ENTRY_FIELDS:
            raise InvalidEntryError(field.name, f"holds the key {key!r}, which is a field of the store itself")


@attrs.frozen(kw_only=True, repr=False)
class TokenEntry:
    """What one model call leaves for training: exact ids in, exact ids out, one log probability for each id out.

    The token lists are copied when the entry is made. `output_items`, `extra` and `routed_experts` are not: do not
    change them until `put` has returned.

    Raises:
        InvalidEntryError: A field has the wrong kind or the lengths disagree; the message names it.
        InvalidRolloutIdError: The rollout id cannot name files.
    """

    rollout_id: str = attrs.field(validator=_rollout_id)
    """The rollout (one episode of an agent) that the call belongs to."""
    model_call_id: str = attrs.field(validator=_call_id)
    """Names the call inside its rollout; a second put of the same call is a no-op."""
    prompt_token_ids: list[int] = attrs.field(converter=_prompt_ids)
    """Ids the engine was given, shape (prompt,), each in 0 .. 2**32 - 1."""
    generation_token_ids: list[int] = attrs.field(converter=_generation_ids)
    """Ids the engine sampled, shape (generation,), each in 0 .. 2**32 - 1."""
    generation_log_probs: list[float] = attrs.field(converter=_log_probs)
    """Natural logarithm of each sampled id's probability, shape (generation,), finite."""
    model: str = attrs.field(default="", validator=_text)
    """The model's name, as the engine gives it."""
    routed_experts: Any = None
    """Routing of a mixture of experts, any JSON value, kept as it is."""
    output_items: list[dict[str, Any]] = attrs.field(factory=list, validator=_items)
    """The answer's items without their token arrays, JSON objects."""
    token_item_index: int | None = attrs.field(default=None, validator=_item_index)
    """Which of `output_items` carried the token arrays."""
    response_id: str | None = attrs.field(default=None, validator=_text_or_none)
    """The engine's id of the answer."""
    created_at: float = attrs.field(default=0.0, converter=_created_at)
    """Seconds since the epoch; no part of an entry's content, so a retry may carry another."""
    schema_version: int = attrs.field(default=SCHEMA_VERSION, validator=_schema)
    """Version of this schema."""
    extra: dict[str, Any] = attrs.field(factory=dict, validator=_extra)
    """Unknown fields of the same schema version, kept through write and read."""

    def __attrs_post_init__(self) -> None:
        ids, log_probs = len(self.generation_token_ids), len(self.generation_log_probs)
        if ids != log_probs:
            problem = f"has {log_probs} values for {ids} generation_token_ids; each generated id needs its own"
            raise InvalidEntryError("generation_log_probs", problem, model_call_id=self.model_call_id)

    def __repr__(self) -> str:
        """Name the call and its lengths; tokens and text stay out of logs and tracebacks."""
        return (
            f"TokenEntry(rollout_id={self.rollout_id!r}, model_call_id={self.model_call_id!r}, "
            f"prompt={len(self.prompt_token_ids)} ids, generation={len(self.generation_token_ids)} ids)"
        )


ENTRY_FIELDS: tuple[str, ...] = tuple(field.name for field in attrs.fields(TokenEntry) if field.name != "extra")
"""The declared fields, which are the keys of a stored line; `extra` holds all others."""

REQUIRED_FIELDS: tuple[str, ...] = tuple(
    field.name for field in attrs.fields(TokenEntry) if field.default is attrs.NOTHING
)
"""The declared fields without a default."""


def entry_from(value: object) -> TokenEntry:
    """Take an entry by duck typing: a `TokenEntry`, or any object with the same attributes.

    Unknown fields are taken from an attribute `extra` or, of a pydantic model that allows them, `model_extra`.

    Raises:
        InvalidEntryError: A required attribute is missing, or a value is refused.
    """
    if isinstance(value, TokenEntry):
        return value
    if isinstance(value, Mapping):
        raise InvalidEntryError("entry", "is a mapping, pass TokenEntry(**mapping)")
    for name in REQUIRED_FIELDS:
        if not hasattr(value, name):
            raise InvalidEntryError(name, f"is no attribute of the given {type(value).__name__}")
    known = {name: getattr(value, name) for name in ENTRY_FIELDS if hasattr(value, name)}
    return TokenEntry(**known, extra=_unknown_fields(value))


def _unknown_fields(value: object) -> dict[str, Any]:
    extra = getattr(value, "extra", None)
    if extra is None:
        extra = getattr(value, "model_extra", None)
    return {} if extra is None else extra


@attrs.frozen(kw_only=True)
class RefusalRecord:
    """A call that the engine refused before it generated anything; it costs the rollout nothing."""

    model_call_id: str = attrs.field(validator=_call_id)
    """The refused call."""
    code: str | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str)))
    """The engine's error code, for example `context_length_exceeded`."""
    created_at: float = attrs.field(default=0.0, converter=_created_at)
    """Seconds since the epoch."""


@attrs.frozen(kw_only=True, repr=False)
class TokenCaptureSnapshot:
    """A rollout as the trainer gets it. Train on it only if `incomplete` is false."""

    rollout_id: str
    """The rollout."""
    entries: tuple[TokenEntry, ...]
    """Its calls in file order, prompts whole; not to be changed."""
    incomplete: bool
    """True if anything was lost: mask the sample."""
    snapshot_id: str
    """Names this freeze; `drop` wants it back. Empty while the rollout is open."""
    version: int
    """Counts what happened to the rollout; `drop` wants it back."""
    refusals: tuple[RefusalRecord, ...] = ()
    """Calls that the engine refused."""
    incomplete_reasons: tuple[str, ...] = ()
    """Why it is incomplete: `marked:<id>`, `lost_call:<id>`, `conflict:<id>`, `damaged:<offset>+<length>`,
    `unacceptable:<offset>`, `lost_base:<id>`, `state_lost`, `flagged`."""
    open_calls: tuple[str, ...] = ()
    """Calls in flight when an open rollout was peeked at."""
    frozen: bool = True
    """False if the rollout was open, so that more may come."""

    def __repr__(self) -> str:
        """Name the rollout and its counts; tokens and text stay out of logs and tracebacks."""
        return (
            f"TokenCaptureSnapshot(rollout_id={self.rollout_id!r}, entries={len(self.entries)}, "
            f"incomplete={self.incomplete}, snapshot_id={self.snapshot_id!r}, version={self.version}, "
            f"incomplete_reasons={self.incomplete_reasons!r}, frozen={self.frozen})"
        )


class RolloutRemovalPayload(TypedDict):
    """What a batch removal did: `removed` had lines, intents or the marker, `absent` had none."""

    removed: list[str]
    absent: list[str]


@attrs.frozen(kw_only=True)
class RolloutStatus:
    """One rollout of a directory, as a listing shows it: read without a lock, so it may be a moment old."""

    rollout_id: str
    """The rollout."""
    state: RolloutState
    """Open, frozen, or retired (only the fence is left)."""
    incomplete: bool
    """The state file or the marker says that something was lost; calls in flight do not count."""
    calls: int
    """Lines in its file: entries, a damaged or doubled line counted too."""
    bytes: int
    """Size of its file of entries."""
    age: float
    """Seconds since its files last changed, against the clock of the file system."""


@attrs.frozen(kw_only=True)
class StoreStatistics:
    """Counters of one store object since it was made, over all its hosts."""

    actors: int = 0
    """Rollouts that have a running actor."""
    queued: int = 0
    """Messages that wait in mailboxes."""
    bytes_in_flight: int = 0
    """Estimated bytes of the batches being written."""
    open_files: int = 0
    """Descriptors kept between critical sections."""
    puts: int = 0
    """Entries appended."""
    batches: int = 0
    """Critical sections that wrote a run of puts and begin_calls."""
    fsyncs: int = 0
    """Calls of fsync and fdatasync, those of the directory included."""
    conflicts: int = 0
    """Calls recorded twice with different facts."""
    poisoned: int = 0
    """Actors that ended because a file could not be cut back after a failed sync."""
    put_p50: float = 0.0
    """Median seconds of the latest puts, from the call to its ack."""
    put_p99: float = 0.0
    """99th percentile of the same."""
    written: int = 0
    """Bytes of the lines of those puts, as they are stored."""
    freezes: int = 0
    """Rollouts frozen, each once."""
    masked: Mapping[str, int] = attrs.field(factory=dict)
    """Reasons of those that were incomplete then, by their code: a rollout with two lost calls counts twice."""
    put_seconds: Distribution = attrs.field(factory=Distribution, converter=distribution_from)
    """Seconds from the call of each answered put to its answer, also of those that changed nothing or failed."""
    batch_sizes: Distribution = attrs.field(factory=Distribution, converter=distribution_from)
    """Puts and begin_calls of each batch."""
    fsync_seconds: Distribution = attrs.field(factory=Distribution, converter=distribution_from)
    """Seconds of each sync."""


def removal_payload(outcomes: Mapping[str, bool], order: Sequence[str]) -> RolloutRemovalPayload:
    """Sort the ids of a finished batch: true in `outcomes` means that records existed."""
    finished = [rollout_id for rollout_id in order if rollout_id in outcomes]
    return {
        "removed": [rollout_id for rollout_id in finished if outcomes[rollout_id]],
        "absent": [rollout_id for rollout_id in finished if not outcomes[rollout_id]],
    }
