"""A configuration is right when it is made, or names the key and what is allowed."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from tokenstore.config import MIB, StoreConfig

NUMBERS = ("max_entry_bytes", "max_inflight_bytes", "max_open_files")
SECONDS = ("lock_timeout", "idle_seconds")


def test_defaults_are_those_of_the_contract() -> None:
    """Without arguments a configuration has the values that the contract names, in at most eight fields."""
    config = StoreConfig()

    assert config.prompt_storage == "shared"
    assert config.max_entry_bytes == 256 * MIB
    assert (config.lock_timeout, config.idle_seconds, config.max_open_files) == (30.0, 30.0, 160)
    assert len(attrs.fields(StoreConfig)) <= 8


@pytest.mark.parametrize("field", [*NUMBERS, *SECONDS])
@pytest.mark.parametrize("value", [0, -1, True, None, "1", math.nan, math.inf, -math.inf])
def test_refuses_what_is_no_positive_number(field: str, value: Any) -> None:
    """A bound that is not a positive number is a ValueError that names the field, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"StoreConfig\.{field} is .* is allowed") as refusal:
        StoreConfig(**{field: value})
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("field", NUMBERS)
def test_refuses_fractions_of_bytes_and_files(field: str) -> None:
    """Bytes and files are counted in whole numbers."""
    value: Any = 1.5

    with pytest.raises(ValueError, match=rf"StoreConfig\.{field} is 1\.5, an int from 1 on"):
        StoreConfig(**{field: value})


@pytest.mark.parametrize("field", SECONDS)
def test_refuses_seconds_that_no_clock_counts(field: str) -> None:
    """A number of seconds beyond every float is refused where it is set, not where it is waited for."""
    value: Any = 10**400

    with pytest.raises(ValueError, match=rf"StoreConfig\.{field} is 10+, a positive number"):
        StoreConfig(**{field: value})


@pytest.mark.parametrize("field", SECONDS)
def test_takes_whole_and_broken_seconds(field: str) -> None:
    """Seconds may be an int or a float."""
    values: list[Any] = [1, 0.25]

    for value in values:
        assert getattr(StoreConfig(**{field: value}), field) == value


@pytest.mark.parametrize("value", ["Shared", "", None, True, ["shared"]])
def test_refuses_other_ways_of_storing_prompts(value: Any) -> None:
    """Another prompt storage is a ValueError that lists those there are."""
    with pytest.raises(ValueError, match=r"StoreConfig\.prompt_storage is .*, 'shared' and 'full' are allowed"):
        StoreConfig(prompt_storage=value)


def test_cannot_be_changed() -> None:
    """A configuration is frozen, takes keywords only, and no unknown ones."""
    config = StoreConfig(prompt_storage="full")
    unknown: Any = {"sync_every": 5}

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.lock_timeout = 5.0  # type: ignore[misc]
    with pytest.raises(TypeError, match="sync_every"):
        StoreConfig(**unknown)
    with pytest.raises(TypeError, match="positional"):
        StoreConfig("full")  # type: ignore[call-arg]
