"""`put` takes any object with the attributes of an entry, and nothing else."""

from __future__ import annotations

import types
from typing import Any

import attrs
import pytest

from tests.samples import entry
from tokenstore.errors import InvalidEntryError
from tokenstore.records import ENTRY_FIELDS, REQUIRED_FIELDS, TokenEntry, entry_from

ESSENTIAL: dict[str, Any] = {name: getattr(entry(), name) for name in REQUIRED_FIELDS}


class PydanticLikeEntry:
    """Stands in for a model that keeps unknown fields in `model_extra` and serves them as attributes too."""

    def __init__(self, **fields: Any) -> None:
        self._known = {name: fields.pop(name) for name in ENTRY_FIELDS if name in fields}
        self.model_extra = fields or None

    def __getattr__(self, name: str) -> Any:
        for fields in (self._known, self.model_extra or {}):
            if name in fields:
                return fields[name]
        raise AttributeError(name)


@attrs.define
class SlottedEntry:
    """Stands in for a record of the fewest fields, without a dictionary."""

    rollout_id: str
    model_call_id: str
    prompt_token_ids: tuple[int, ...]
    generation_token_ids: tuple[int, ...]
    generation_log_probs: tuple[float, ...]


def test_an_entry_is_taken_as_it_is() -> None:
    """An entry of ours is not copied again."""
    made = entry()

    assert entry_from(made) is made


def test_any_object_with_the_attributes_is_taken() -> None:
    """Attributes are taken where there are some, and defaults where not."""
    bare = types.SimpleNamespace(**ESSENTIAL)
    full = types.SimpleNamespace(**attrs.asdict(entry(extra={"unknown": 1}, response_id="x")), method=print)

    assert entry_from(bare) == TokenEntry(**ESSENTIAL)
    assert entry_from(full) == entry(extra={"unknown": 1}, response_id="x")


def test_an_object_with_slots_is_taken() -> None:
    """Neither a dictionary nor lists are needed."""
    assert entry_from(SlottedEntry("r", "c0", (1, 2, 3), (4, 5), (-0.5, -1.25))) == TokenEntry(**ESSENTIAL)


def test_unknown_fields_of_a_model_are_kept() -> None:
    """What a pydantic model holds beside its fields becomes the entry's unknown fields."""
    known = {name: getattr(entry(), name) for name in ENTRY_FIELDS}

    assert entry_from(PydanticLikeEntry(**known)) == entry()
    assert entry_from(PydanticLikeEntry(**known, reward=1.0, group={"a": [1]})).extra == {
        "reward": 1.0,
        "group": {"a": [1]},
    }


def test_an_extra_of_its_own_counts_first() -> None:
    """An object with both has its `extra` taken; None means none."""
    with_both = types.SimpleNamespace(**ESSENTIAL, extra={"a": 1}, model_extra={"b": 2})
    with_none = types.SimpleNamespace(**ESSENTIAL, extra=None, model_extra=None)

    assert entry_from(with_both).extra == {"a": 1}
    assert entry_from(with_none).extra == {}


@pytest.mark.parametrize("missing", REQUIRED_FIELDS)
def test_a_missing_attribute_is_named(missing: str) -> None:
    """An object without a field that has no default is refused with the field and its own type."""
    fields = {name: value for name, value in ESSENTIAL.items() if name != missing}

    with pytest.raises(InvalidEntryError, match=f"{missing}: is no attribute of the given SimpleNamespace"):
        entry_from(types.SimpleNamespace(**fields))


@pytest.mark.parametrize("given", [dict(ESSENTIAL), types.MappingProxyType(ESSENTIAL)])
def test_a_mapping_is_refused(given: Any) -> None:
    """A mapping is no entry, and the message says how to make one of it."""
    with pytest.raises(InvalidEntryError, match=r"entry: is a mapping, pass TokenEntry\(\*\*mapping\)"):
        entry_from(given)


@pytest.mark.parametrize("given", [None, 7, "text", [1], object()])
def test_anything_else_is_refused(given: Any) -> None:
    """What has none of the attributes is refused with the first that is missing."""
    with pytest.raises(InvalidEntryError, match=f"rollout_id: is no attribute of the given {type(given).__name__}"):
        entry_from(given)


def test_values_are_checked_the_same_way() -> None:
    """A foreign object passes the same checks as an entry of ours."""
    short = types.SimpleNamespace(**{**ESSENTIAL, "generation_log_probs": [-0.5]})
    odd = types.SimpleNamespace(**ESSENTIAL, extra=[1])

    with pytest.raises(InvalidEntryError, match="has 1 values for 2 generation_token_ids"):
        entry_from(short)
    with pytest.raises(InvalidEntryError, match="extra: is of type list"):
        entry_from(odd)
