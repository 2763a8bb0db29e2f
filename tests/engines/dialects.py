"""The forms in which engines answer, written by a table: one call to every form, whole or in chunks.

Made after the protocol classes that the engines' files name, apart from the code that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any

import attrs
from hypothesis import strategies as st

from tokenstore import TokenEntry
from tokenstore.engines import llama_cpp, responses, sglang, vllm

Body = dict[str, Any]
IDS: dict[str, Any] = {"rollout_id": "r", "model_call_id": "c"}


@attrs.frozen
class Spoken:
    """What an engine was asked and what it generated."""

    prompt: list[int]
    ids: list[int]
    log_probs: list[float]

    @classmethod
    def of(cls, entry: TokenEntry) -> Spoken:
        """Take a recorded call."""
        return cls(entry.prompt_token_ids, entry.generation_token_ids, entry.generation_log_probs)

    def text(self, start: int = 0, end: int | None = None) -> str:
        """Give some text for some ids."""
        return "".join(f"<{number}>" for number in self.ids[start:end])

    def same(self, entry: TokenEntry) -> bool:
        """Whether an entry holds these very tokens."""
        found = (entry.prompt_token_ids, entry.generation_token_ids, entry.generation_log_probs)
        return found == (self.prompt, self.ids, self.log_probs)


SMALL = Spoken([1, 2, 3], [5, 6, 7, 6], [-0.5, 0.0, -0.25, -1e-05])


@attrs.frozen
class Dialect:
    """One form of one engine."""

    engine: ModuleType
    whole: Callable[[Spoken], Body]
    chunks: Callable[[Spoken, Sequence[int]], list[Any]]
    gives_prompt: bool = True

    def about(self, spoken: Spoken) -> dict[str, Any]:
        """Give what the caller has to say."""
        return IDS if self.gives_prompt else {**IDS, "prompt_token_ids": spoken.prompt}

    def read(self, spoken: Spoken, answer: Any) -> TokenEntry:
        """Read a whole answer."""
        made: TokenEntry = self.engine.entry_from_response(answer, **self.about(spoken))
        return made

    def read_stream(self, spoken: Spoken, chunks: Sequence[Any]) -> TokenEntry:
        """Read a stream."""
        assembler = self.engine.StreamAssembler(**self.about(spoken))
        for chunk in chunks:
            assembler.feed(chunk)
        made: TokenEntry = assembler.entry()
        return made


def spans(spoken: Spoken, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut the ids into parts."""
    return pairwise([0, *sorted(cuts), len(spoken.ids)])


def body_of(chunks: Sequence[Any]) -> bytes:
    """Write chunks as server-sent events."""
    events = [chunk if isinstance(chunk, str) else json.dumps(chunk, ensure_ascii=False) for chunk in chunks]
    return "".join(f"data: {event}\n\n" for event in events).encode()


def spoken_calls() -> st.SearchStrategy[Spoken]:
    """Draw calls: some ids, a log probability each, many of them exactly 0."""
    ids = st.integers(0, 2**32 - 1) | st.integers(0, 3)  # small ones repeat, so that parts look like wholes
    log_probs = st.just(0.0) | st.floats(-9999.0, 0.0, width=32)
    pairs = st.lists(st.tuples(ids, log_probs), min_size=1, max_size=12)
    return st.builds(
        lambda prompt, both: Spoken(prompt, [one for one, _ in both], [other for _, other in both]),
        st.lists(ids, min_size=1, max_size=5),
        pairs,
    )


def _usage(spoken: Spoken) -> Body:
    prompt, generated = len(spoken.prompt), len(spoken.ids)
    return {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}


def _content(spoken: Spoken, start: int = 0, end: int | None = None, *, named: bool = True) -> Body:
    tokens = [f"token_id:{number}" if named else f"<{number}>" for number in spoken.ids[start:end]]
    pairs = zip(tokens, spoken.log_probs[start:end], strict=True)
    return {"content": [{"token": token, "logprob": lp, "bytes": None, "top_logprobs": []} for token, lp in pairs]}


def _head(kind: str) -> Body:
    return {"id": "answer-1", "object": kind, "created": 1785000000, "model": "m"}


def _vllm_chat(spoken: Spoken, *, named: bool = True) -> Body:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": spoken.text(), "reasoning": None},
        "logprobs": _content(spoken, named=named),
        "finish_reason": "stop",
        "token_ids": spoken.ids,
        "weight_versions": [{"version": "7", "start": 0, "end": len(spoken.ids)}],
    }
    return {
        **_head("chat.completion"),
        "choices": [choice],
        "usage": _usage(spoken),
        "prompt_token_ids": spoken.prompt,
        "prompt_logprobs": None,
    }


def _finished(chunks: list[Any], **more: Any) -> list[Any]:
    chunks[-1]["choices"][0].update(finish_reason="stop", **more)
    return chunks


def _last(spoken: Spoken, kind: str) -> list[Any]:
    return [{**_head(kind), "choices": [], "usage": _usage(spoken)}, "[DONE]"]


def _vllm_chat_chunks(spoken: Spoken, cuts: Sequence[int], *, named: bool = True) -> list[Any]:
    head = _head("chat.completion.chunk")
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    chunks: list[Any] = [{**head, "choices": [role], "prompt_token_ids": spoken.prompt}]
    for start, end in spans(spoken, cuts):
        choice = {
            "index": 0,
            "delta": {"content": spoken.text(start, end)},
            "logprobs": _content(spoken, start, end, named=named),
            "finish_reason": None,
            "token_ids": spoken.ids[start:end],
        }
        chunks.append({**head, "choices": [choice]})
    versions = [{"version": "7", "start": 0, "end": len(spoken.ids)}]
    return _finished(chunks, weight_versions=versions) + _last(spoken, "chat.completion.chunk")


def _completion_choice(spoken: Spoken, start: int = 0, end: int | None = None) -> Body:
    return {
        "index": 0,
        "text": spoken.text(start, end),
        "logprobs": {
            "text_offset": [0] * len(spoken.ids[start:end]),
            "token_logprobs": spoken.log_probs[start:end],
            "tokens": [f"token_id:{number}" for number in spoken.ids[start:end]],
            "top_logprobs": [None] * len(spoken.ids[start:end]),
        },
        "finish_reason": None,
        "token_ids": spoken.ids[start:end],
    }


def _completions(spoken: Spoken) -> Body:
    choice = {**_completion_choice(spoken), "finish_reason": "length", "prompt_token_ids": spoken.prompt}
    return {**_head("text_completion"), "choices": [choice], "usage": _usage(spoken)}


def _completions_chunks(spoken: Spoken, cuts: Sequence[int]) -> list[Any]:
    parts = [_completion_choice(spoken, start, end) for start, end in spans(spoken, cuts)]
    parts[0]["prompt_token_ids"] = spoken.prompt
    chunks: list[Any] = [{**_head("text_completion"), "choices": [part]} for part in parts]
    return _finished(chunks) + _last(spoken, "text_completion")


def _numbered(spoken: Spoken, start: int = 0, end: int | None = None) -> Body:
    pairs = zip(spoken.ids[start:end], spoken.log_probs[start:end], strict=True)
    return {"content": [{"token_id": number, "logprob": lp, "rank": 1, "top_logprobs": []} for number, lp in pairs]}


def _vllm_generate(spoken: Spoken) -> Body:
    choice = {"index": 0, "finish_reason": "stop", "token_ids": spoken.ids, "logprobs": _numbered(spoken)}
    return {"request_id": "answer-1", "model": "m", "usage": _usage(spoken), "choices": [choice]}


def _vllm_generate_chunks(spoken: Spoken, cuts: Sequence[int]) -> list[Any]:
    chunks: list[Any] = [
        {
            "request_id": "answer-1",
            "choices": [{"index": 0, "token_ids": spoken.ids[a:b], "logprobs": _numbered(spoken, a, b)}],
        }
        for a, b in spans(spoken, cuts)
    ]
    return [*_finished(chunks), {"request_id": "answer-1", "choices": [], "usage": _usage(spoken)}, "[DONE]"]


def _meta(spoken: Spoken, start: int, end: int, *, finished: bool) -> Body:
    pairs = zip(spoken.log_probs[start:end], spoken.ids[start:end], strict=True)
    return {
        "id": "answer-1",
        "finish_reason": {"type": "stop", "matched": 7} if finished else None,
        "prompt_tokens": len(spoken.prompt),
        "weight_version": "7",
        "output_token_logprobs": [[lp, number, None] for lp, number in pairs],
        "output_token_logprobs_length": end,
        "completion_tokens": end,
    }


def _sglang_generate(spoken: Spoken) -> Body:
    meta = _meta(spoken, 0, len(spoken.ids), finished=True)
    return {"text": spoken.text(), "output_ids": spoken.ids, "meta_info": meta, "prompt_token_ids": spoken.prompt}


def _sglang_chunks(spoken: Spoken, cuts: Sequence[int], *, cumulative: bool) -> list[Any]:
    chunks: list[Any] = []
    for start, end in spans(spoken, cuts):
        begin = 0 if cumulative else start
        chunk = {
            "text": spoken.text(begin, end),
            "output_ids": spoken.ids[begin:end],
            "meta_info": _meta(spoken, begin, end, finished=False),
            "prompt_token_ids": spoken.prompt,
        }
        chunks.append(chunk)
    chunks[-1]["meta_info"]["finish_reason"] = {"type": "stop", "matched": 7}
    return [*chunks, "[DONE]"]


def _sglang_chat(spoken: Spoken) -> Body:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": spoken.text(), "reasoning_content": None},
        "logprobs": _content(spoken, named=False),
        "finish_reason": "stop",
        "prompt_token_ids": spoken.prompt,
        "response_token_ids": spoken.ids,
        "meta_info": _meta(spoken, 0, len(spoken.ids), finished=True),
    }
    return {
        **_head("chat.completion"),
        "choices": [choice],
        "usage": _usage(spoken),
        "metadata": {"weight_version": "7"},
        "sglext": {"input_ids": spoken.prompt, "output_ids": [spoken.ids]},
    }


def _sglang_chat_chunks(spoken: Spoken, cuts: Sequence[int]) -> list[Any]:
    head = _head("chat.completion.chunk")
    chunks: list[Any] = []
    for start, end in spans(spoken, cuts):
        delta = {"role": None, "content": spoken.text(start, end), "tool_calls": None}
        choice = {"index": 0, "delta": delta, "logprobs": _content(spoken, start, end, named=False)}
        chunks.append({**head, "choices": [choice], "usage": None})
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    sglext = {"input_ids": spoken.prompt, "output_ids": [spoken.ids]}
    return [
        *chunks,
        {**head, "choices": [last]},
        {**head, "choices": [], "sglext": sglext},
        *_last(spoken, "chat.completion.chunk"),
    ]


def _response(spoken: Spoken) -> Body:
    arrays = {
        "prompt_token_ids": spoken.prompt,
        "generation_token_ids": spoken.ids,
        "generation_log_probs": spoken.log_probs,
    }
    reasoning = {"type": "reasoning", "summary": []}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": spoken.text()}]}
    prompt, generated = len(spoken.prompt), len(spoken.ids)
    usage = {"input_tokens": prompt, "output_tokens": generated, "total_tokens": prompt + generated}
    return {
        "id": "answer-1",
        "created_at": 1785000000.0,
        "model": "m",
        "object": "response",
        "status": "completed",
        "output": [reasoning, {**message, **arrays}],
        "usage": usage,
    }


def _response_events(spoken: Spoken, cuts: Sequence[int]) -> list[Any]:
    texts = [spoken.text(start, end) for start, end in spans(spoken, cuts)]
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in texts]
    return [{"type": "response.created"}, *deltas, {"type": "response.completed", "response": _response(spoken)}]


def _probabilities(spoken: Spoken, start: int = 0, end: int | None = None) -> list[Body]:
    pairs = zip(spoken.ids[start:end], spoken.log_probs[start:end], strict=True)
    return [{"id": number, "token": f"<{number}>", "logprob": lp, "top_logprobs": []} for number, lp in pairs]


def _llama_end(spoken: Spoken) -> Body:
    return {
        "stop": True,
        "stop_type": "eos",
        "model": "m",
        "truncated": False,
        "tokens_predicted": len(spoken.ids),
        "tokens_evaluated": len(spoken.prompt),
        "generation_settings": {"temperature": 1.0},
    }


def _llama(spoken: Spoken) -> Body:
    tokens = {"tokens": spoken.ids, "completion_probabilities": _probabilities(spoken)}
    return {"index": 0, "content": spoken.text(), **tokens, **_llama_end(spoken)}


def _llama_chunks(spoken: Spoken, cuts: Sequence[int]) -> list[Any]:
    chunks: list[Any] = [
        {
            "content": spoken.text(start, end),
            "tokens": spoken.ids[start:end],
            "stop": False,
            "tokens_predicted": end,
            "tokens_evaluated": len(spoken.prompt),
            "completion_probabilities": _probabilities(spoken, start, end),
        }
        for start, end in spans(spoken, cuts)
    ]
    return [*chunks, {"content": "", "tokens": [], **_llama_end(spoken)}]


DIALECTS: dict[str, Dialect] = {
    "vllm chat": Dialect(vllm, _vllm_chat, _vllm_chat_chunks),
    "vllm chat, text tokens": Dialect(
        vllm,
        lambda spoken: _vllm_chat(spoken, named=False),
        lambda spoken, cuts: _vllm_chat_chunks(spoken, cuts, named=False),
    ),
    "vllm completions": Dialect(vllm, _completions, _completions_chunks),
    "vllm generate": Dialect(vllm, _vllm_generate, _vllm_generate_chunks, gives_prompt=False),
    "sglang generate, cumulative": Dialect(
        sglang, _sglang_generate, lambda spoken, cuts: _sglang_chunks(spoken, cuts, cumulative=True)
    ),
    "sglang generate, deltas": Dialect(
        sglang, _sglang_generate, lambda spoken, cuts: _sglang_chunks(spoken, cuts, cumulative=False)
    ),
    "sglang chat": Dialect(sglang, _sglang_chat, _sglang_chat_chunks),
    "sglang completions": Dialect(sglang, _completions, _completions_chunks),
    "responses": Dialect(responses, _response, _response_events),
    "llama.cpp": Dialect(llama_cpp, _llama, _llama_chunks, gives_prompt=False),
}
"""Every form, by engine and endpoint."""
