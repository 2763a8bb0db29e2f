"""What a row of an export is: named columns of a few kinds, the same for every format.

Numbers of a list are packed as soon as a row is made: 4 or 8 bytes each, and ready to be written.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from tokenstore.codec import decode_entry, dumps, encode_entry, loads
from tokenstore.errors import InvalidEntryError, TokenStoreError
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.trajectories import Built, Duplicates, Strategy, Trajectory, build

Records = Literal["entries", "trajectories"]
"""What an export holds: calls as they were recorded, or what `trajectories.build` makes of them."""
Kind = Literal[
    "text", "number", "int", "flag", "json", "texts", "flags", "int32s", "uint32s", "uint8s", "float32s", "float64s"
]
"""What a column holds; those in the plural are lists."""
Row = dict[str, Any]
"""Values by their columns. Lists of numbers are packed, `json` is text; None where there is nothing."""

PACKED: Mapping[Kind, str] = {"int32s": "i", "uint32s": "I", "uint8s": "B", "float32s": "f", "float64s": "d"}
"""Kinds of packed lists, and the letters that `array` and numpy have for their items."""

COLUMNS: Mapping[Records, Mapping[str, Kind]] = {
    "entries": {
        "rollout_id": "text",
        "model_call_id": "text",
        "prompt_token_ids": "uint32s",
        "generation_token_ids": "uint32s",
        "generation_log_probs": "float64s",
        "model": "text",
        "response_id": "text",
        "token_item_index": "int",
        "created_at": "number",
        "schema_version": "int",
        "output_items": "json",
        "routed_experts": "json",
        "extra": "json",
        "group_id": "text",
        "reward": "number",
        "incomplete": "flag",
    },
    "trajectories": {
        "rollout_id": "text",
        "trajectory": "int",
        "main": "flag",
        "token_ids": "int32s",
        "loss_mask": "uint8s",
        "log_probs": "float32s",
        "span_call_ids": "texts",
        "span_starts": "int32s",
        "span_stops": "int32s",
        "span_trained": "flags",
        "span_weight_versions": "texts",
        "routed_experts": "json",
        "group_id": "text",
        "reward": "number",
        "extra": "json",
        "trainable": "flag",
        "reasons": "texts",
        "incomplete": "flag",
        "frozen": "flag",
        "snapshot_id": "text",
        "version": "int",
    },
}
"""The columns of each kind of record; `incomplete` is the rollout's. `group_id` and `reward` are those of `extra`,
where they are as they were recorded; the `extra` of a trajectory holds these two alone."""


@attrs.frozen
class Recipe:
    """What is made of a rollout."""

    records: Records
    strategy: Strategy
    duplicates: Duplicates

    @property
    def columns(self) -> Mapping[str, Kind]:
        """The columns of its rows."""
        return COLUMNS[self.records]

    def rows(self, snapshot: TokenCaptureSnapshot) -> list[Row]:
        """Make rows of a rollout.

        Raises:
            InvalidEntryError: It cannot be given as trajectories.
        """
        if self.records == "entries":
            return [_entry_row(entry, snapshot) for entry in snapshot.entries]
        built = build(snapshot, self.strategy, duplicates=self.duplicates)
        return [_trajectory_row(number, each, built, snapshot) for number, each in enumerate(built)]


@attrs.frozen
class Exported:
    """A row of entries, read again."""

    entry: TokenEntry | TokenStoreError
    """The entry, or the error that says why it is none."""
    incomplete: bool
    """Its rollout was incomplete where it was exported."""


def packed_bytes(row: Row) -> int:
    """Estimate the memory that a row takes."""
    return sum(
        len(value) * value.itemsize if hasattr(value, "itemsize") else len(value)
        for value in row.values()
        if hasattr(value, "__len__")
    )


def entry_of(row: Row) -> dict[str, Any]:
    """Make of a row of entries the JSON object that it was, but for the text of its JSON columns."""
    derived = ("group_id", "reward", "incomplete")
    return {name: row[name] for name in COLUMNS["entries"] if name not in derived}


def exported(row: Row) -> Exported:
    """Make of a row of entries what it was made of."""
    return Exported(_decoded(entry_of(row)), incomplete=bool(row.get("incomplete")))


def _decoded(fields: dict[str, Any]) -> TokenEntry | TokenStoreError:
    try:
        texts = {name: fields.pop(name) for name in _JSON}
        parsed = {name: None if text is None else loads(text) for name, text in texts.items()}
        return decode_entry({**fields, **(parsed.pop("extra") or {}), **parsed})
    except TokenStoreError as error:
        return error
    except (ValueError, TypeError, RecursionError) as error:
        return InvalidEntryError("entry", f"holds a column that is no JSON ({type(error).__name__})")


_JSON = [name for name, kind in COLUMNS["entries"].items() if kind == "json"]


def batches(rows: Sequence[Row], limit: int) -> Iterator[Sequence[Row]]:
    """Cut rows into parts of about so many bytes."""
    start = size = 0
    for stop, row in enumerate(rows, 1):
        size += packed_bytes(row)
        if size >= limit or stop == len(rows):
            yield rows[start:stop]
            start, size = stop, 0


def _entry_row(entry: TokenEntry, snapshot: TokenCaptureSnapshot) -> Row:
    row = {name: value for name, value in encode_entry(entry).items() if name in COLUMNS["entries"]}
    return {
        **row,
        "prompt_token_ids": array("I", entry.prompt_token_ids),
        "generation_token_ids": array("I", entry.generation_token_ids),
        "generation_log_probs": array("d", entry.generation_log_probs),
        "response_id": entry.response_id,
        "output_items": _json(entry.output_items),
        "routed_experts": _json(entry.routed_experts),
        "extra": _json(entry.extra),
        "group_id": _text(entry.extra.get("group_id")),
        "reward": _number(entry.extra.get("reward")),
        "incomplete": snapshot.incomplete,
    }


def _trajectory_row(number: int, trajectory: Trajectory, built: Built, snapshot: TokenCaptureSnapshot) -> Row:
    spans, report = trajectory.spans, built.report
    return {
        "rollout_id": snapshot.rollout_id,
        "trajectory": number,
        "main": trajectory is built.main,
        "token_ids": trajectory.token_ids,
        "loss_mask": trajectory.loss_mask,
        "log_probs": trajectory.log_probs,
        "span_call_ids": [span.model_call_id for span in spans],
        "span_starts": array("i", [span.start for span in spans]),
        "span_stops": array("i", [span.stop for span in spans]),
        "span_trained": [span.trained for span in spans],
        "span_weight_versions": [_text(span.weight_version) for span in spans],
        "routed_experts": _json(trajectory.routed_experts),
        "group_id": _text(trajectory.group_id),
        "reward": _number(trajectory.reward),
        "extra": _json(_known(group_id=trajectory.group_id, reward=trajectory.reward)),
        "trainable": report.trainable,
        "reasons": list(report.reasons),
        "incomplete": snapshot.incomplete,
        "frozen": snapshot.frozen,
        "snapshot_id": snapshot.snapshot_id,
        "version": snapshot.version,
    }


def _json(value: Any) -> str | None:
    return None if value is None else dumps(value).decode()


def _known(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else _json(value)


def _number(value: Any) -> float | None:
    """Give a number; anything else, and an int that no float holds, is in `extra` alone."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None
