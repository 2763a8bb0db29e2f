"""Recorded calls, written in each engine's form and read back, are equal token for token."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engines.dialects import DIALECTS, Spoken
from tests.recordings import recordings
from tests.samples import data_folder

SEED = 20261130


@pytest.fixture(scope="module")
def spoken_calls() -> list[Spoken]:
    """Read every recorded call that generated something."""
    folder = data_folder("TOKENSTORE_RECORDED_DATA")
    calls = [Spoken.of(entry) for entry in recordings(Path(folder, "recorded"))]
    return [call for call in calls if call.prompt and call.ids]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_recorded_call_comes_back_whole(name: str, spoken_calls: list[Spoken]) -> None:
    """Every recorded call, in every form, comes back with the same ids and the same log probabilities."""
    dialect = DIALECTS[name]

    different = [at for at, call in enumerate(spoken_calls) if not call.same(dialect.read(call, dialect.whole(call)))]

    assert len(spoken_calls) > 100
    assert different == []


@pytest.mark.parametrize("name", DIALECTS)
def test_a_recorded_call_comes_back_from_a_stream(name: str, spoken_calls: list[Spoken]) -> None:
    """So does every seventh of them from a stream that is cut at random."""
    dialect, chance = DIALECTS[name], random.Random(f"{SEED} {name}")  # noqa: S311 - cuts of a test
    print(f"seed {SEED} {name}")  # noqa: T201 - for whoever looks at a failure

    for call in spoken_calls[::7]:
        cuts = chance.choices(range(len(call.ids) + 1), k=6)

        assert call.same(dialect.read_stream(call, dialect.chunks(call, cuts)))
