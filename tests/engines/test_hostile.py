"""Whatever stands in an answer, it is refused by the errors that say so, quickly, and never taken for tokens."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.damage import paths
from tests.engines.dialects import DIALECTS, IDS, SMALL
from tests.engines.samples import read_stream
from tests.samples import nested
from tokenstore.engines import llama_cpp, responses, sglang, vllm
from tokenstore.errors import EngineAnswerError, InvalidEntryError

ENGINES = (vllm, sglang, responses, llama_cpp)
SOME = settings(derandomize=True, database=None, deadline=None, max_examples=80)


class Liar:
    """Stands in for an object of a client library that dumps to nonsense."""

    def model_dump(self) -> Any:
        """Give no mapping."""
        return 7


HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1.5, math.nan, math.inf, -math.inf, 2**63, -(2**70), 10**400, "", "7", "token_id:5"),
    *([], {}, [[]], [None], [True], [-1], [1.0], ["5"], [[5, 6]], [{}], [math.nan], [2**32], {"": None}, {"5": 5}),
    *(b"\x00", object(), Liar(), {"error": None}, {"content": [{}]}, {"type": "abort"}, "\ud800", nested(2000)),
]
"""What a field may hold that it must not."""


def may_stand_for(value: Any, number: Any) -> bool:
    """Whether a value is as good an id, or log probability, as the one it replaces."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    good_log_prob = isinstance(number, float) and -math.inf < value <= 0
    return good_log_prob or (type(number) is int and type(value) is int and 0 <= value < 2**32)


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_any_value_in_any_place(name: str, stream: bool) -> None:
    """A hostile value in any place of an answer gives the same tokens or an error of the right kind."""
    dialect = DIALECTS[name]
    sound = dialect.chunks(SMALL, [2]) if stream else dialect.whole(SMALL)
    read = dialect.read_stream if stream else dialect.read
    text, wrong = json.dumps(sound), []

    for at, path in enumerate(paths(sound)):
        for value in itertools.islice(itertools.cycle(HOSTILE), 8 * at, 8 * at + 8):  # each place, some of them
            body = holder = json.loads(text)
            for key in path[:-1]:
                holder = holder[key]
            if may_stand_for(value, holder[path[-1]]):
                continue
            holder[path[-1]] = value
            try:
                entry = read(SMALL, body)
            except (EngineAnswerError, InvalidEntryError):
                continue
            if not SMALL.same(entry):
                wrong.append((path, value))

    assert wrong == []


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
@pytest.mark.parametrize("answer", HOSTILE, ids=lambda answer: type(answer).__name__)
def test_any_value_as_an_answer(engine: Any, answer: Any) -> None:
    """What is no answer at all is refused, whole and as a chunk."""
    with pytest.raises(EngineAnswerError):
        engine.entry_from_response(answer, **IDS)
    with pytest.raises(EngineAnswerError):
        read_stream(engine, [answer])


@SOME
@given(answer=st.binary(max_size=40) | st.text(max_size=40).map(str.encode), engine=st.sampled_from(ENGINES))
def test_any_bytes_as_an_answer(answer: bytes, engine: Any) -> None:
    """Bytes that are no answer are refused, whole and as the body of a stream."""
    with pytest.raises(EngineAnswerError):
        engine.entry_from_response(answer, **IDS)
    with pytest.raises(EngineAnswerError):
        read_stream(engine, [answer])


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '{"choices":[' + "1," * 10**5])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.ENGINE)
def test_deep_and_endless_texts(engine: Any, text: str) -> None:
    """Texts that a parser chokes on are refused like any other."""
    with pytest.raises(EngineAnswerError):
        engine.entry_from_response(text, **IDS)


def test_errors_hold_neither_tokens_nor_text() -> None:
    """Messages name places and numbers; what was generated stays out of logs."""
    body = DIALECTS["vllm chat"].whole(SMALL)
    body["choices"][0]["message"]["content"] = "a secret"
    body["choices"][0]["token_ids"] = [5, "a secret", 7, 6]

    with pytest.raises(EngineAnswerError) as caught:
        vllm.entry_from_response(body, **IDS)

    assert "secret" not in str(caught.value)
    assert caught.value.field == "choices[0].token_ids[1]"


@pytest.mark.parametrize("count", [2**40, 2**63, 10**39])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_counts_beyond_all_memory(stream: bool, count: int) -> None:
    """An endless prompt that an answer counts, of which it holds the end, is refused and not made room for."""
    dialect = DIALECTS["sglang generate, cumulative"]
    body: Any = dialect.chunks(SMALL, [2]) if stream else dialect.whole(SMALL)
    meta = (body[0] if stream else body)["meta_info"]
    meta |= {"prompt_tokens": count, "input_token_logprobs": [[-0.5, 3, None]]}

    with pytest.raises(EngineAnswerError, match="prompt_tokens: is above 67108864, which no engine counts"):
        (dialect.read_stream if stream else dialect.read)(SMALL, body)


@pytest.mark.parametrize("tokens", [["token_id:5\ntoken_id:6"], ["token_id:5\n", "token_id:6"], ["token_id:05"]])
def test_ids_that_are_nearly_written_as_such(tokens: list[str]) -> None:
    """A token is one id in the one way to write it: several in one, or with what else, are refused."""
    content = [{"token": token, "logprob": -0.5} for token in tokens]
    answer = DIALECTS["vllm chat"].whole(SMALL)
    answer["choices"][0] |= {"logprobs": {"content": content}, "token_ids": None}

    with pytest.raises(EngineAnswerError):
        vllm.entry_from_response(answer, **IDS)
