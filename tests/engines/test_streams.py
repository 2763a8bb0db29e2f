"""Streams are put together the same, however they were cut, and never around what could not be read."""

from __future__ import annotations

import copy
import itertools
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.dialects import DIALECTS, IDS, SMALL, Dialect, Spoken, body_of, spoken_calls
from tests.engines.samples import read_stream
from tests.engines.test_damage import cuts_of
from tokenstore.engines import responses, sglang, vllm
from tokenstore.errors import (
    DisagreeingAnswerError,
    EngineAnswerError,
    EngineFailureError,
    UnfinishedAnswerError,
)

SOME = settings(derandomize=True, database=None, deadline=None, max_examples=60)
STREAMS = sorted(DIALECTS)


@SOME
@given(spoken=spoken_calls(), name=st.sampled_from(STREAMS), data=st.data())
def test_cuts_make_no_difference(spoken: Spoken, name: str, data: st.DataObject) -> None:
    """A stream of one chunk and one of any other chunks give the same entry, text and all."""
    dialect = DIALECTS[name]

    entry = dialect.read_stream(spoken, dialect.chunks(spoken, data.draw(cuts_of(spoken))))

    assert entry == dialect.read_stream(spoken, dialect.chunks(spoken, []))
    assert spoken.same(entry)
    assert content(entry.output_items) in (None, spoken.text())


@SOME
@given(spoken=spoken_calls(), name=st.sampled_from(STREAMS), data=st.data())
def test_bytes_may_be_cut_anywhere(spoken: Spoken, name: str, data: st.DataObject) -> None:
    """The body of a stream in pieces, cut inside lines and letters, gives what its events give."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(spoken, data.draw(cuts_of(spoken)))
    body = body_of(chunks) + data.draw(st.sampled_from([b"", b": keep-alive\r\n\r\n", b"event: end\n"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))

    entry = dialect.read_stream(spoken, [body[start:end] for start, end in itertools.pairwise([0, *cuts, len(body)])])

    assert entry == dialect.read_stream(spoken, chunks)


def content(items: list[dict[str, Any]]) -> str | None:
    """Give the text of a message, None if it is elsewhere."""
    found = items[0].get("content") if items else None
    return found if isinstance(found, str) else None


@pytest.mark.parametrize("name", STREAMS)
def test_lines_are_taken_with_and_without_their_prefix(name: str) -> None:
    """A `str` is whole lines: bare JSON, or as they stand in the body."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [2])
    bare = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]

    for lines in (bare, body_of(chunks).decode().splitlines(), [body_of(chunks).decode()]):
        assert dialect.read_stream(SMALL, lines) == dialect.read_stream(SMALL, chunks)


@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_stream_is_unfinished(name: str) -> None:
    """Whatever the last chunk that came, without the one that says why it ended there is no entry."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [1, 2])
    end = next(at for at, chunk in enumerate(chunks) if finishes(chunk))

    for length in range(end + 1):
        with pytest.raises(UnfinishedAnswerError):
            dialect.read_stream(SMALL, chunks[:length])


def finishes(chunk: Any) -> bool:
    """Whether a chunk says why the answer ended."""
    text = json.dumps(chunk)
    return '"finish_reason": "' in text or '"finish_reason": {' in text or '"stop": true' in text or "completed" in text


@pytest.mark.parametrize("name", STREAMS)
def test_a_body_cut_inside_a_line_is_unfinished(name: str) -> None:
    """A last line that is half there is no chunk, and the stream no answer."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [1])
    end = next(at for at, chunk in enumerate(chunks) if finishes(chunk))
    body = body_of(chunks[: end + 1])

    with pytest.raises(UnfinishedAnswerError):
        dialect.read_stream(SMALL, [body[:-9]])


LOSSLESS = ("sglang generate, cumulative", "responses")
"""Chunks of these hold what others held before, or nothing that is read."""


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("what", ["lost", "twice"])
def test_a_chunk_lost_or_twice_is_no_entry(name: str, what: str) -> None:
    """A chunk that never came, or came twice, gives the same tokens or an error; the one with tokens an error."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [1, 3])

    for at, chunk in enumerate(chunks):
        if (name, what, at) == ("sglang generate, deltas", "twice", 0):
            continue  # the first chunk holds everything so far, and may say it again
        changed = [*chunks[:at], *([chunk] * 2 if what == "twice" else []), *chunks[at + 1 :]]
        try:
            entry = dialect.read_stream(SMALL, changed)
        except EngineAnswerError:
            continue
        assert SMALL.same(entry)
        assert name in LOSSLESS or not brings_tokens(chunk)


def brings_tokens(chunk: Any) -> bool:
    """Whether a chunk brings new log probabilities."""
    text = json.dumps(chunk)
    return '"logprob":' in text or '"token_logprobs": [-' in text or '"output_token_logprobs": [[' in text


@pytest.mark.parametrize("name", STREAMS)
def test_a_refused_chunk_spoils_the_stream(name: str) -> None:
    """After a chunk that cannot be read nothing else is taken, and there is no entry."""
    dialect = DIALECTS[name]
    assembler = dialect.engine.StreamAssembler(**dialect.about(SMALL))
    with pytest.raises(EngineAnswerError) as first:
        assembler.feed([])

    for chunk in dialect.chunks(SMALL, []):
        with pytest.raises(EngineAnswerError) as again:
            assembler.feed(chunk)
        assert again.value is first.value
    with pytest.raises(EngineAnswerError) as last:
        assembler.entry()
    assert last.value is first.value


@pytest.mark.parametrize("name", STREAMS)
def test_an_entry_may_be_asked_for_again(name: str) -> None:
    """`entry` changes nothing."""
    dialect = DIALECTS[name]
    assembler = dialect.engine.StreamAssembler(**dialect.about(SMALL))
    for chunk in dialect.chunks(SMALL, [2]):
        assembler.feed(chunk)

    assert assembler.entry() == assembler.entry()


@pytest.mark.parametrize("name", [name for name in STREAMS if name != "responses"])
def test_two_streams_mixed_are_refused(name: str) -> None:
    """A stream behind another one is not taken for its end."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [2])

    with pytest.raises(EngineAnswerError):
        dialect.read_stream(SMALL, [*chunks, *chunks])


@pytest.mark.parametrize("name", ["vllm chat", "vllm completions", "vllm generate", "sglang chat"])
def test_a_chunk_of_another_answer_is_refused(name: str) -> None:
    """The id of the answer is the same in all chunks."""
    dialect = DIALECTS[name]
    chunks = copy.deepcopy(dialect.chunks(SMALL, [2]))
    chunks[1].update({key: "answer-2" for key in ("id", "request_id") if key in chunks[1]})

    with pytest.raises(DisagreeingAnswerError, match="of another answer: two streams were mixed"):
        dialect.read_stream(SMALL, chunks)


@pytest.mark.parametrize("name", STREAMS)
def test_an_error_in_the_stream_is_a_failure(name: str) -> None:
    """An error among the chunks says its status, its code and how many ids had come."""
    dialect = DIALECTS[name]
    chunks = dialect.chunks(SMALL, [3])
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    before = chunks[: 1 + (name in ("vllm chat", "vllm chat, text tokens"))]

    with pytest.raises(EngineFailureError) as caught:
        dialect.read_stream(SMALL, [*before, error])

    expected = 0 if name == "responses" else 3
    assert (caught.value.status, caught.value.code, caught.value.generated) == (500, "InternalServerError", expected)


def test_prompt_ids_may_come_twice_if_they_are_the_same() -> None:
    """Prompt ids may stand on a second role chunk, as with vLLM; other ones are refused."""
    chunks = DIALECTS["vllm chat"].chunks(SMALL, [])
    again = {**chunks[0], "prompt_token_ids": [1, 2, 4]}

    assert SMALL.same(read_stream(vllm, [chunks[0], *chunks]))
    with pytest.raises(DisagreeingAnswerError, match=r"prompt_token_ids\[2\]"):
        read_stream(vllm, [chunks[0], again, *chunks[1:]])


@pytest.mark.parametrize("name", ["vllm chat", "sglang generate, deltas"])
def test_a_long_prompt_is_not_copied_for_each_chunk(name: str) -> None:
    """Once the prompt is known, chunks that do not repeat it take no memory of its size."""
    dialect, spoken = DIALECTS[name], Spoken(list(range(100_000)), [5, 6, 7], [-0.5, -0.25, -1.0])
    first, *rest = dialect.chunks(spoken, [1, 2])
    for chunk in rest[:-1]:
        chunk.pop("prompt_token_ids", None)
    assembler = dialect.engine.StreamAssembler(**dialect.about(spoken))
    assembler.feed(first)
    tracemalloc.start()

    try:
        for chunk in rest:
            assembler.feed(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert spoken.same(assembler.entry())
    assert peak < 100_000


@pytest.mark.parametrize("name", ["vllm chat", "vllm completions", "sglang chat"])
def test_routed_experts_of_a_stream_are_kept(name: str) -> None:
    """The routing comes with the last choice, or in SGLang's `sglext`; another one beside it is refused."""
    chunks = DIALECTS[name].chunks(SMALL, [2])
    holders = [chunk.get("sglext") or (chunk["choices"] or [None])[0] for chunk in chunks if isinstance(chunk, dict)]
    holder = [found for found in holders if found and ("output_ids" in found or found.get("finish_reason"))][-1]
    holder["routed_experts"] = "AAEC"

    kept = DIALECTS[name].read_stream(SMALL, chunks)
    chunks[0]["choices"][0]["routed_experts"] = "BBBB"

    assert kept.routed_experts == "AAEC"
    with pytest.raises(DisagreeingAnswerError, match="routed_experts: comes a second time, and differs"):
        DIALECTS[name].read_stream(SMALL, chunks)


def test_cumulative_usage_beside_ids_is_checked_at_once() -> None:
    """With `continuous_usage_stats` a lost chunk shows in the next one, by both numbers."""
    chunks = copy.deepcopy(DIALECTS["vllm chat"].chunks(SMALL, [1, 2]))
    for chunk, count in zip(chunks[:4], (0, 1, 2, 4), strict=True):
        chunk["usage"] = {"prompt_tokens": 3, "completion_tokens": count}
    assembler = vllm.StreamAssembler(**IDS)
    for chunk in (chunks[0], chunks[1]):
        assembler.feed(chunk)

    with pytest.raises(DisagreeingAnswerError, match="is 4, but 3 ids have come") as caught:
        assembler.feed(chunks[3])

    assert caught.value.numbers == {"counted": 4, "found": 3}
    assert SMALL.same(read_stream(vllm, chunks))


def test_a_log_prob_cannot_be_made_up_for_by_another_chunk() -> None:
    """Ids and log probabilities must fit chunk by chunk, not only in sum."""
    dialect = DIALECTS["vllm chat, text tokens"]
    chunks = copy.deepcopy(dialect.chunks(SMALL, [2]))
    moved = chunks[1]["choices"][0]["logprobs"]["content"].pop()
    chunks[2]["choices"][0]["logprobs"]["content"].insert(0, moved)

    with pytest.raises(DisagreeingAnswerError, match=r"brings 2 ids and 1 log probs"):
        dialect.read_stream(SMALL, chunks)


def test_tool_calls_and_reasoning_are_put_together() -> None:
    """Parts of tool calls are joined by their index, names and ids kept, reasoning joined like text."""
    chunks = DIALECTS["vllm chat"].chunks(SMALL, [1, 2, 3])
    deltas: list[dict[str, Any]] = [
        {"reasoning": "let "},
        {"reasoning": "me", "tool_calls": [{"index": 0, "id": "t0", "type": "function", "function": {"name": "f"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}, {"index": 1, "id": "t1", "function": None}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}], "content": None},
    ]
    for chunk, delta in zip(chunks[1:5], deltas, strict=True):
        chunk["choices"][0]["delta"] = delta

    [item] = read_stream(vllm, chunks).output_items

    assert item["reasoning"] == "let me"
    assert item["tool_calls"] == [
        {"id": "t0", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "t1"},
    ]


def test_parts_of_tool_calls_need_a_number() -> None:
    """A tool call whose index is no int is refused, since its parts could not be told apart."""
    chunks = DIALECTS["vllm chat"].chunks(SMALL, [])
    chunks[1]["choices"][0]["delta"] = {"tool_calls": [{"index": "0", "function": {"arguments": "{"}}]}

    with pytest.raises(EngineAnswerError, match=r"tool_calls\[0\].index: is no int"):
        read_stream(vllm, chunks)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "it broke"}}},
        {"type": "error", "code": "server_error", "message": "it broke"},
    ],
)
def test_a_failed_response_is_a_failure(event: dict[str, Any]) -> None:
    """Both events with which a stream of a response fails are failures with the server's code."""
    with pytest.raises(EngineFailureError) as caught:
        read_stream(responses, [{"type": "response.created"}, event])

    assert caught.value.code == "server_error"


class TestSglangAbort:
    """Aborts among deltas, where SGLang repeats the last id and everything else."""

    def chunks(self, known: int, fresh: int) -> list[Any]:
        """Write a stream in which an abort comes after so many ids, with so many still waiting to be sent."""
        spoken = Spoken([1, 2, 3], [5, 6, 7, 7][: known + fresh], [-0.5, 0.0, -0.25, -1.0][: known + fresh])
        dialect = DIALECTS["sglang generate, deltas"]
        sent = dialect.chunks(spoken, [*range(1, known), known])[:known]
        [whole] = dialect.chunks(spoken, [])[:1]
        pairs = whole["meta_info"]["output_token_logprobs"]
        meta = {
            "id": "answer-1",
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "completion_tokens": known + fresh,
            "output_token_logprobs": pairs[known:] + pairs,
            "output_token_logprobs_length": known + fresh,
        }
        for chunk in sent:
            chunk["meta_info"]["finish_reason"] = None
        ids = spoken.ids[known:] + spoken.ids[-1:]
        return [*sent, {"text": spoken.text(known) + spoken.text(), "output_ids": ids, "meta_info": meta}, "[DONE]"]

    @pytest.mark.parametrize(("known", "fresh"), [(1, 0), (2, 0), (4, 0), (3, 1), (2, 1), (2, 2), (1, 3)])
    def test_nothing_is_counted_twice(self, known: int, fresh: int) -> None:
        """Ids, log probabilities and text are there once."""
        entry = read_stream(sglang, self.chunks(known, fresh), accept_aborted=True)

        spoken = Spoken([1, 2, 3], [5, 6, 7, 7][: known + fresh], [-0.5, 0.0, -0.25, -1.0][: known + fresh])
        assert spoken.same(entry)
        assert entry.output_items[0]["content"] == spoken.text()
        assert entry.extra["finish_reason"] == "abort"

    def test_ids_that_look_like_those_before_are_told_apart(self) -> None:
        """New ids that begin like what is known are not taken for everything."""
        chunks = self.chunks(1, 2)
        chunks[1]["output_ids"] = [5, 6, 6]
        pairs = [[-0.5, 5, None], [-1.5, 5, None], [-0.25, 6, None]]
        chunks[1]["meta_info"]["output_token_logprobs"] = pairs[1:] + pairs

        entry = read_stream(sglang, chunks, accept_aborted=True)

        assert Spoken([1, 2, 3], [5, 5, 6], [-0.5, -1.5, -0.25]).same(entry)

    @pytest.mark.parametrize(
        ("known", "fresh", "member", "value", "problem"),
        [
            (2, 1, "output_ids", [7], "brings 1 ids to 2 known and counts 3"),
            (2, 1, "output_ids", [7, 8], "brings 2 ids to 2 known and counts 3"),
            (2, 0, "output_ids", [], "makes it 2 ids and 4 log probs"),
            (1, 2, "output_token_logprobs", [[-9.0, 6], [-0.25, 7], [-0.5, 5], [0.0, 6], [-0.25, 7]], "other ones"),
            (2, 1, "output_token_logprobs", [[-0.25, 7], [-9.0, 5], [0.0, 6], [-0.25, 7]], "other ones"),
            (2, 1, "output_token_logprobs", [[-0.25, 7], [-0.5, 5], [0.0, 9], [-0.25, 7]], "is of another id"),
            (2, 1, "output_token_logprobs", [[-0.25, 7]], "makes it 3 ids and 1 log probs"),
        ],
    )
    def test_what_it_repeats_must_be_the_same(
        self, known: int, fresh: int, member: str, value: Any, problem: str
    ) -> None:
        """Ids and log probabilities that come again must be those that came, and as many as are counted."""
        chunks = self.chunks(known, fresh)
        holder = chunks[known] if member == "output_ids" else chunks[known]["meta_info"]
        holder[member] = value

        with pytest.raises(DisagreeingAnswerError, match=problem):
            read_stream(sglang, chunks, accept_aborted=True)

    def test_is_refused_unless_asked_for(self) -> None:
        """An aborted answer is an error with the numbers of what it holds."""
        with pytest.raises(UnfinishedAnswerError, match="holds 3 ids and 3 log probs") as caught:
            read_stream(sglang, self.chunks(2, 1))

        assert caught.value.numbers == {"generation_token_ids": 3, "generation_log_probs": 3}

    def test_an_abort_because_of_an_error_is_a_failure(self) -> None:
        """An abort that names a status is no partial answer."""
        chunks = self.chunks(2, 0)
        chunks[2]["meta_info"]["finish_reason"].update(status_code=503, err_type="ServiceUnavailable")

        with pytest.raises(EngineFailureError) as caught:
            read_stream(sglang, chunks, accept_aborted=True)

        assert (caught.value.status, caught.value.code, caught.value.generated) == (503, "ServiceUnavailable", 2)


def test_what_cannot_be_told_is_refused() -> None:
    """Without a count, a chunk that begins with all that is known may be everything or new: it is not guessed."""
    first = {"text": "a", "output_ids": [5], "meta_info": {"output_token_logprobs": [[-0.5, 5]], "finish_reason": None}}
    more = [[-0.5, 5], [0.0, 6]]
    meta = {"output_token_logprobs": more, "finish_reason": {"type": "stop"}}
    second = {"text": "ab", "output_ids": [5, 6], "meta_info": meta}

    with pytest.raises(DisagreeingAnswerError, match="brings 2 ids to 1 known and gives no count"):
        read_stream(sglang, [first, second], prompt_token_ids=[1])


def test_deltas_without_counts_are_told_by_looking() -> None:
    """Where nothing is counted, as by lmdeploy, a chunk that does not begin with what is known is new."""
    chunks = [
        {"text": "a", "output_ids": [5], "meta_info": {"output_token_logprobs": [[-0.5, 5]], "finish_reason": None}},
        {"text": "b", "output_ids": [6, 7], "meta_info": {"output_token_logprobs": [[0.0, 6], [-0.25, 7]]}},
        {"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "stop"}}},
    ]

    entry = read_stream(sglang, chunks, prompt_token_ids=[1, 2])

    assert (entry.generation_token_ids, entry.generation_log_probs) == ([5, 6, 7], [-0.5, 0.0, -0.25])
    assert entry.output_items[0]["content"] == "ab"


def test_every_dialect_is_a_stream() -> None:
    """The table of forms has a stream for each."""
    assert all(isinstance(DIALECTS[name], Dialect) for name in STREAMS)


class TestEachChunk:
    """What is wrong with a chunk is said when it comes, also where the sums would be right again."""

    def refused(self, name: str, chunks: list[Any], problem: str) -> None:
        """See that the last of some chunks is refused."""
        dialect = DIALECTS[name]
        assembler = dialect.engine.StreamAssembler(**dialect.about(SMALL))
        for chunk in chunks[:-1]:
            assembler.feed(chunk)

        with pytest.raises(EngineAnswerError, match=problem):
            assembler.feed(chunks[-1])

    def test_ids_in_one_and_log_probs_in_another(self) -> None:
        """A chunk of ids alone is not completed by one of log probabilities alone."""
        chunks = DIALECTS["vllm chat, text tokens"].chunks(SMALL, [2])
        chunks[1]["choices"][0]["logprobs"] = None
        chunks[2]["choices"][0]["token_ids"] = None

        self.refused("vllm chat, text tokens", chunks[:3], "brings 0 ids and 2 log probs")

    def test_one_chunk_holds_one_choice(self) -> None:
        """A choice twice in a chunk is refused, also where no usage would show it; so are null choices."""
        twice, null = ([DIALECTS["vllm chat"].chunks(SMALL, [2])[1]] for _ in range(2))
        twice[0]["choices"] *= 2
        null[0]["choices"] = None

        self.refused("vllm chat", twice, "choices: are 2, one is needed.*ask for n=1")
        self.refused("vllm chat", null, "choices: are not there")

    def test_tokens_after_the_end(self) -> None:
        """What comes behind the reason to end is of another stream."""
        chunks = DIALECTS["vllm chat"].chunks(SMALL, [2])
        chunks[1]["choices"][0]["finish_reason"] = "stop"
        chunks[2]["choices"][0]["finish_reason"] = None

        self.refused("vllm chat", chunks[:3], "brings 2 ids after the finish_reason")

    def test_chunks_after_done(self) -> None:
        """Nothing comes behind `[DONE]`, harmless as it may look."""
        chunks = DIALECTS["vllm chat"].chunks(SMALL, [])

        self.refused("vllm chat", [*chunks, chunks[-2]], r"comes after \[DONE\]")

    def test_everything_so_far_must_begin_with_what_was(self) -> None:
        """A cumulative chunk that changes what came before is refused."""
        chunks = DIALECTS["sglang generate, cumulative"].chunks(SMALL, [1])
        chunks[1]["output_ids"] = [9, 6, 7, 6]
        chunks[1]["meta_info"]["output_token_logprobs"][0][1] = 9

        self.refused("sglang generate, cumulative", chunks[:2], "brings 4 ids to 1 known and counts 4, not everything")

    def test_log_probs_so_far_must_stay(self) -> None:
        """So is one that changes a log probability."""
        chunks = DIALECTS["sglang generate, cumulative"].chunks(SMALL, [1])
        chunks[1]["meta_info"]["output_token_logprobs"][0][0] = -0.75

        self.refused("sglang generate, cumulative", chunks[:2], "repeats 1 log probs, but other ones")

    def test_log_probs_are_counted(self) -> None:
        """SGLang's own count of them must be what came."""
        chunks = DIALECTS["sglang generate, deltas"].chunks(SMALL, [2])
        chunks[1]["meta_info"]["output_token_logprobs_length"] = 5

        self.refused("sglang generate, deltas", chunks[:2], "output_token_logprobs_length: is 5, but 4 log probs")

    def test_llama_cpp_counts_as_it_goes(self) -> None:
        """A lost chunk shows in the next one."""
        chunks = DIALECTS["llama.cpp"].chunks(SMALL, [1, 2])

        self.refused("llama.cpp", [chunks[0], chunks[2]], "is 4, but 3 ids have come")

    def test_llama_cpp_pairs_as_it_goes(self) -> None:
        """A log probability is not made up for by the next chunk."""
        chunks = DIALECTS["llama.cpp"].chunks(SMALL, [2])
        del chunks[0]["completion_probabilities"]

        self.refused("llama.cpp", chunks[:1], "brings 2 ids and 0 log probs")
