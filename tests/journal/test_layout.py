"""Every file of a rollout has one name, and every name belongs to one rollout or none."""

from __future__ import annotations

import pytest

from tokenstore.journal.layout import TEMPORARY_PREFIX, Names, rollout_of


def test_names_are_those_of_the_reference() -> None:
    """A rollout has five files, named as the reference names them."""
    assert Names.of("r") == Names(
        tokens="r.tokens.jsonl",
        state="r.tokens.state.json",
        intents="r.tokens.intents",
        marker="r.tokens.incomplete",
        lock="r.tokens.lock",
    )


def test_a_removal_takes_what_a_rollout_has_recorded() -> None:
    """Lines, intents and marker are records; with the state they are evidence of the rollout; the lock is neither."""
    names = Names.of("r")

    assert set(names.records) == {names.tokens, names.intents, names.marker}
    assert set(names.evidence) == {*names.records, names.state}


@pytest.mark.parametrize("rollout_id", ["r", ".x", "a" * 237, "x.tokens.jsonl", "x.tokens.lock", "-"])
def test_a_name_tells_its_rollout(rollout_id: str) -> None:
    """Each file that is evidence tells its rollout, also of a rollout that is named like a file."""
    names = Names.of(rollout_id)

    assert [rollout_of(name) for name in names.evidence] == [rollout_id] * 4
    assert rollout_of(names.lock) is None


@pytest.mark.parametrize(
    "name",
    [
        *(
            "r",
            ".tokens.jsonl",
            "..tokens.jsonl",
            "é.tokens.jsonl",
            "a b.tokens.jsonl",
            "r.tokens.jsonl.bak",
            "tokens.jsonl",
        ),
        *(TEMPORARY_PREFIX + "0000000a", "r.tokens.state", "r.jsonl", "R.TOKENS.JSONL", "x" * 238 + ".tokens.jsonl"),
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    """A file that is none of a rollout is passed over."""
    assert rollout_of(name) is None
