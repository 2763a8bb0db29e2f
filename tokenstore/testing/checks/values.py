"""What goes in and comes out: every value to the last bit, and nothing that training could not use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.records import TokenEntry
from tokenstore.testing.rollouts import SHAPES, agent_rollout, shaped_rollout
from tokenstore.testing.trial import Trial


async def _comes_back(trial: Trial, rollout: str, entries: list[TokenEntry]) -> None:
    for entry in entries:
        await trial.sink.put(entry)

    await trial.freezes(rollout, entries=entries, version=len(entries) + 1)


async def agent_rollout_comes_back(trial: Trial) -> None:
    """A long rollout in which prompts extend the calls before comes back value for value."""
    rollout = trial.rollout()

    await _comes_back(trial, rollout, agent_rollout(rollout, turns=12, first_prompt=700, generated=90, added=150))


async def every_shape_comes_back(trial: Trial) -> None:
    """Rollouts of each recorded kind, from broken prefixes to empty arrays and edge values, come back as they were."""
    for shape in SHAPES:
        rollout = trial.rollout()

        await _comes_back(trial, rollout, shaped_rollout(shape, rollout))


async def unknown_fields_come_back(trial: Trial) -> None:
    """Fields that the schema does not know come back, whatever JSON they hold."""
    rollout = trial.rollout()
    tree = {"none": None, "deep": [[], {}, [{"é": [1, 1.0, True, "1"]}]], "": "", "Ω": 2**53}
    first = trial.entry(rollout, "c1", extra={"tree": tree, "list": [], "zero": -0.0, "null": None, "Schlüssel": "ß"})

    await _comes_back(trial, rollout, [first, trial.entry(rollout, "c2", extra={})])


async def deep_items_come_back(trial: Trial) -> None:
    """Items nested four hundred levels deep come back."""
    rollout = trial.rollout()

    await _comes_back(trial, rollout, [trial.entry(rollout, output_items=[{"nested": _nested(400)}])])


async def log_probs_come_back(trial: Trial) -> None:
    """Log probabilities on either side of where encoders change their spelling keep their 64 bits."""
    rollout = trial.rollout()
    bounds = [10.0**exponent for exponent in (-323, -308, -17, -16, -7, -6, -5, -4, -3, 0, 15, 16, 17, 22, 308)]
    nearby = [(math.nextafter(bound, 0.0), bound, math.nextafter(bound, math.inf)) for bound in bounds]
    log_probs = [-value for value in itertools.chain(*nearby)]
    ids = list(range(len(log_probs)))

    await _comes_back(trial, rollout, [trial.entry(rollout, generation_token_ids=ids, generation_log_probs=log_probs)])


async def unusual_ids_come_back(trial: Trial) -> None:
    """Rollout ids up to 237 characters and call ids up to 512, with any printable text, are taken and given back."""
    longest = trial.rollout(length=237)
    entries = [
        trial.entry(longest, call) for call in ("-c1", "a b", "é😊", "c" * 512, "a/b", "..", '"', "null", "𝒳\u00a0y")
    ]
    for entry in entries:
        await trial.sink.begin_call(longest, entry.model_call_id)

    await _comes_back(trial, longest, entries)


async def later_changes_do_not_show(trial: Trial) -> None:
    """Token lists may be changed once the entry is made, and everything else once put has returned."""
    rollout = trial.rollout()
    ids, inner = [1, 2, 3], [1]
    item: dict[str, Any] = {"type": "message", "parts": inner}
    entry = trial.entry(rollout, prompt_token_ids=ids, output_items=[item], extra={"a": inner})
    ids.append(4)
    await trial.sink.put(entry)

    inner.append(2)
    item["type"] = "other"
    entry.output_items.append({})
    entry.extra["b"] = 1

    kept = {"type": "message", "parts": [1]}
    await trial.freezes(rollout, entries=[trial.entry(rollout, output_items=[kept], extra={"a": [1]})], version=2)


TEXT = "xyzzy-output-text"
"""Text of refused entries; it must not turn up in an error."""


def _nested(levels: int) -> Any:
    value: Any = TEXT
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def _bad_fields() -> Iterator[tuple[str, Any]]:
    """List the fields that an entry cannot have, each with a value; lengths and kinds are refused by the entry."""
    for bad_id in (-1, 2**32, 2**64, True, None, 1.0, "7", TEXT, [1]):
        yield "prompt_token_ids", [*range(9), bad_id]
        yield "generation_token_ids", [4, bad_id]
    for bad_log_prob in (math.nan, math.inf, -math.inf, None, "-0.5", TEXT, [0.0], 1j):
        yield "generation_log_probs", [-0.5, bad_log_prob]
    for text in ("\ud800", f"{TEXT}\udfff"):
        yield "model", text
        yield "response_id", text
        yield "extra", {"a": {text: 1}}
        yield "output_items", [{"text": [text]}]
    for key in (1, None, True, b"k"):
        yield "output_items", [{"a": [{key: TEXT}]}]
        yield "extra", {"a": {key: TEXT}}
        yield "routed_experts", {key: TEXT}
    for nested in (_nested(600), _nested(5000)):
        yield "output_items", [{"nested": nested}]
        yield "extra", {"nested": nested}
        yield "routed_experts", nested
    for no_json in (b"bytes", {1, 2}, object(), math.nan, 1j):
        yield "output_items", [{"a": [no_json]}]
        yield "extra", {"a": no_json}
        yield "routed_experts", [no_json]


async def bad_entries_are_refused(trial: Trial) -> None:
    """Elements that cannot be stored are refused with the field, without the text, and leave the rollout as it was."""
    rollout = trial.rollout()
    good = [trial.entry(rollout, "c1"), trial.entry(rollout, "c2")]
    await trial.sink.put(good[0])

    for field, value in _bad_fields():
        bad = trial.entry(rollout, "bad", **{"token_item_index": None, field: value})
        error = await trial.raises(InvalidEntryError, f"put with a bad value in {field}", trial.sink.put, bad)
        trial.equal(error.field.startswith(field), True, f"{field} in the error, found {error.field}, as its field")
        trial.equal(TEXT in str(error), False, "text of the entry in the error")
    await trial.sink.put(good[1])

    await trial.freezes(rollout, entries=good, version=3)


async def bad_call_ids_are_refused(trial: Trial) -> None:
    """A call id with control characters, white space at an end, no or too many characters is refused."""
    rollout = trial.rollout()
    odd: Any = 7

    for call in ("", " c", "c ", "a\nb", "a\rb", "a\0b", "a\x7fb", "a\x85b", "\ud800", "c" * 513, odd):
        begin = partial(trial.sink.begin_call, rollout, call)
        await trial.raises(InvalidEntryError, "begin_call with an invalid call id", begin)
        refuse = partial(trial.sink.refuse_call, rollout, model_call_id=call, code=None)
        await trial.raises(InvalidEntryError, "refuse_call with an invalid call id", refuse)

    await trial.freezes(rollout, version=1)


async def bad_refusal_codes_are_refused(trial: Trial) -> None:
    """A code that is neither None nor text that can be UTF-8 is refused."""
    rollout = trial.rollout()
    odd: Any = 400

    for code in ("\ud800", odd):
        refuse = partial(trial.sink.refuse_call, rollout, model_call_id="c1", code=code)
        await trial.raises(InvalidEntryError, "refuse_call with a bad code", refuse)

    await trial.freezes(rollout, version=1)


async def bad_rollout_ids_are_refused(trial: Trial) -> None:
    """A rollout id that cannot name files is refused by every operation."""
    odd: Any = None

    for rollout in ("", ".", "..", "a/b", "a b", "é", "a\n", "a\0", "x" * 238, odd):
        for doing, call in (
            ("begin_call", partial(trial.sink.begin_call, rollout, "c1")),
            ("refuse_call", partial(trial.sink.refuse_call, rollout, model_call_id="c1", code=None)),
            ("mark_incomplete", partial(trial.sink.mark_incomplete, rollout)),
            ("freeze", partial(trial.source.freeze, rollout)),
            ("drop", partial(trial.source.drop, rollout, snapshot_id="s", version=1)),
            ("retire", partial(trial.source.retire, [rollout])),
            ("delete", partial(trial.source.delete, [rollout])),
        ):
            await trial.raises(InvalidRolloutIdError, f"{doing} with an invalid rollout id", call)
