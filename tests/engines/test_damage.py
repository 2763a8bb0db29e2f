"""One field of an answer damaged: the same tokens or an error, never other tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.damage import damages
from tests.engines.dialects import DIALECTS, SMALL, Spoken, body_of, spoken_calls
from tokenstore import TokenEntry
from tokenstore.errors import EngineAnswerError

CARRIERS = {
    *("prompt_token_ids", "token_ids", "response_token_ids", "output_ids", "input_ids", "token_logprobs", "tokens"),
    *("output_token_logprobs", "completion_probabilities", "generation_token_ids", "generation_log_probs"),
}
"""Lists that hold tokens."""
DAMAGES = ("shortened", "doubled")
SOME = settings(derandomize=True, database=None, deadline=None, max_examples=80)


def outcome(read: Any, spoken: Spoken, damaged: Any) -> TokenEntry | None:
    """Read a damaged answer: an entry, or None if it was refused in the way that answers are."""
    try:
        entry: TokenEntry = read(spoken, damaged)
    except EngineAnswerError:
        return None
    return entry


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_no_damage_is_misread(name: str, stream: bool) -> None:
    """Whatever single field is removed, nulled, shortened or doubled, tokens come out right or not at all."""
    dialect = DIALECTS[name]
    body: Any = dialect.chunks(SMALL, [1, 3]) if stream else dialect.whole(SMALL)
    read: Any = dialect.read_stream if stream else dialect.read
    assert SMALL.same(read(SMALL, body))

    outcomes = [(damage, outcome(read, SMALL, damage.done_to(body))) for damage in damages(body)]

    assert [damage for damage, entry in outcomes if entry is not None and not SMALL.same(entry)] == []
    assert sum(entry is None for _, entry in outcomes) > len(outcomes) // 4
    lists = [one for one in outcomes if one[0].path[-1] in CARRIERS and one[0].how in DAMAGES and one[0].value]
    assert lists
    assert [damage for damage, entry in lists if entry is not None] == []


@pytest.mark.parametrize("name", DIALECTS)
def test_a_field_twice_in_the_text_is_refused(name: str) -> None:
    """JSON text in which an object has two members of one name is refused, whichever of them would count."""
    dialect = DIALECTS[name]
    key = "output" if name == "responses" else "tokens" if name == "llama.cpp" else "meta_info"
    key = key if key in dialect.whole(SMALL) else "choices"
    text = body_of([dialect.whole(SMALL)]).decode().removeprefix("data: ").strip()

    with pytest.raises(EngineAnswerError, match="two members of one name"):
        dialect.read(SMALL, text.replace("{", f'{{"{key}":[],', 1))


@SOME
@given(spoken=spoken_calls(), name=st.sampled_from(sorted(DIALECTS)), data=st.data())
def test_no_damage_of_any_call_is_misread(spoken: Spoken, name: str, data: st.DataObject) -> None:
    """For any call in any form, whole or in any chunks, one damage gives the same tokens or an error."""
    dialect = DIALECTS[name]
    stream = data.draw(st.booleans())
    body = dialect.chunks(spoken, data.draw(cuts_of(spoken))) if stream else dialect.whole(spoken)
    damage = data.draw(st.sampled_from(list(damages(body))))

    entry = outcome(dialect.read_stream if stream else dialect.read, spoken, damage.done_to(body))

    assert entry is None or spoken.same(entry), damage


def cuts_of(spoken: Spoken) -> st.SearchStrategy[list[int]]:
    """Draw where a stream of a call is cut."""
    return st.lists(st.integers(0, len(spoken.ids)), max_size=4)


def test_the_dialects_are_of_all_engines() -> None:
    """Each engine's file has a form in the table."""
    engines = {dialect.engine.__name__.rpartition(".")[2] for dialect in DIALECTS.values()}

    assert engines == {"vllm", "sglang", "responses", "llama_cpp"}
