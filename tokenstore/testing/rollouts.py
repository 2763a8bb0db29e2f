"""Seeded rollouts that look like those of real agents, for tests, the demo and benchmarks.

`agent_rollout` makes the common kind: a chat in which every prompt begins with the whole previous prompt and
generation. `SHAPES` names the other kinds that engines and trainers have left in recordings, the valid but odd ones
included.

1. A rollout depends on its arguments alone: the same on every machine and on Python 3.11 to 3.13. So only additions,
   multiplications and the generator's oldest methods are used, no libm, no `hash`.
2. Every log probability is exactly a float32, none is positive, and a fifth to three fifths are exactly 0.0, as in
   recordings of vLLM. `edge_values` is the exception.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from tokenstore.records import TokenEntry

MODEL = "demo/agent-8b"
"""Model name of every generated call."""
MAX_TOKEN_ID = 2**32 - 1
"""Largest id that the store takes."""

_EPOCH = 1_775_592_437.0
_PHRASES = (
    "Let me look at the failing test first. ",
    "The fix is to close the file before renaming it.\n",
    'He said "use a \\\\server\\share path" </think> ',
    "Größe und Maß stimmen überein. ",
    "お客様の注文を確認しました。",
    "Готово: все тесты прошли. ",
    "تم حفظ الملف بنجاح. ",
    "✅ done 😊 ",
    "👩‍👩‍👧‍👦 and 🏳️‍🌈 are many code points, cafe\u0301 too. ",
    "def area(r):\n\treturn 3.14159 * r ** 2\n",
    "$$\\frac{a}{b} \\le \\sum_{i=1}^{n} x_i$$ ",
    "| name | value |\n|---|---|\n| π | 3.14 |\n",
)
_AS_JSON_TEXT = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})
_TOOLS = ("terminal", "read_file", "edit_file", "search_web", "run_tests")


class _Episode:
    """One rollout while it is being made: a stream of chance, and the calls so far."""

    def __init__(self, rollout_id: str, seed: int, *, vocabulary: int = 150_000, item_chars: int = 200) -> None:
        self.calls: list[TokenEntry] = []
        self._rollout_id = rollout_id
        self._chance = random.Random(f"{seed}/{rollout_id}")  # noqa: S311 - test data, no secrets
        self._vocabulary = range(vocabulary)
        self._item_chars = item_chars
        self._zeros = 0.2 + 0.4 * self._chance.random()
        self._group = f"group-{self._hex(4)}"
        self._clock = _EPOCH + int(self._chance.random() * 1e6)

    def ids(self, count: int) -> list[int]:
        """Draw token ids."""
        return self._chance.choices(self._vocabulary, k=count)

    def log_probs(self, count: int) -> list[float]:
        """Draw log probabilities, exact float32 values."""
        draw = self._chance.random
        return array("f", [_log_prob(draw(), self._zeros) for _ in range(count)]).tolist()

    def call(self, prompt: list[int], generation: list[int], **fields: Any) -> list[int]:
        """Add a call and return its prompt and generation, with which an append-only next prompt begins."""
        items, carrier = self._items() if self._item_chars else ([], None)
        self._clock += 0.5 + int(self._chance.random() * 4096) / 1024  # powers of two: sums are exact
        known: dict[str, Any] = {
            "model_call_id": f"{len(self.calls):04d}-{self._hex(6)}",
            "generation_log_probs": self.log_probs(len(generation)),
            "model": MODEL,
            "output_items": items,
            "token_item_index": carrier,
            "response_id": f"resp_{self._hex(16)}",
            "created_at": self._clock,
            "extra": self._extra(),
        }
        known.update(fields)
        entry = TokenEntry(
            rollout_id=self._rollout_id, prompt_token_ids=prompt, generation_token_ids=generation, **known
        )
        self.calls.append(entry)
        return prompt + generation

    def _hex(self, count: int) -> str:
        return self._chance.randbytes(count).hex()

    def _extra(self) -> dict[str, Any]:
        reward = int(self._chance.random() * 17) / 16
        return {"group_id": self._group, "weight_version": 7 + len(self.calls) // 4, "reward": reward}

    def _text(self) -> str:
        text = ""
        while len(text) < self._item_chars:
            text += self._chance.choice(_PHRASES)
        return text[: self._item_chars]

    def _items(self) -> tuple[list[dict[str, Any]], int]:
        """Make what an answer holds; as with most frameworks the last item carried the tokens."""
        kind = self._chance.random()
        items = [self._function_call()] if kind < 0.6 else [self._message()]
        if kind < 0.3:
            items.insert(0, self._message())
        elif kind > 0.8:
            items.insert(0, self._reasoning())
        return items, len(items) - 1

    def _message(self) -> dict[str, Any]:
        content: dict[str, Any] = {"annotations": [], "text": self._text(), "type": "output_text", "logprobs": None}
        return {
            "id": f"msg_{self._hex(16)}",
            "content": [content],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }

    def _function_call(self) -> dict[str, Any]:
        call_id = f"call_{self._hex(12)}"
        return {
            "arguments": f'{{"command": "{self._text().translate(_AS_JSON_TEXT)}"}}',
            "call_id": call_id,
            "name": self._chance.choice(_TOOLS),
            "type": "function_call",
            "id": call_id,
            "status": "completed",
        }

    def _reasoning(self) -> dict[str, Any]:
        summary = [{"text": self._text(), "type": "summary_text"}]
        return {"id": f"rs_{self._hex(16)}", "summary": summary, "type": "reasoning", "encrypted_content": None}


def _log_prob(chance: float, zeros: float) -> float:
    """Turn an even chance into a log probability: often 0.0, mostly near it, now and then as low as -12."""
    if chance < zeros:
        return 0.0
    doubt = (chance - zeros) / (1.0 - zeros)
    return -12.0 * doubt * doubt * doubt * doubt - 1e-7


def agent_rollout(
    rollout_id: str,
    *,
    seed: int = 0,
    turns: int = 10,
    first_prompt: int = 2000,
    generated: int = 200,
    added: int = 300,
    vocabulary: int = 150_000,
    item_chars: int = 200,
) -> list[TokenEntry]:
    """Make the calls of one agent's rollout: each prompt is the whole previous prompt, its generation, and fresh ids.

    Args:
        rollout_id: Names the rollout; it goes into the seed, so that equal arguments give different rollouts.
        seed: Another number makes other rollouts.
        turns: Model calls.
        first_prompt: Ids of the first prompt.
        generated: Ids that each call generates.
        added: Ids of the tool output or the user's words between two calls.
        vocabulary: Ids are drawn from 0 up to this number.
        item_chars: Characters of each text in the output items; 0 makes calls without items.

    Returns:
        The calls in order. Equal arguments give equal calls.
    """
    episode = _Episode(rollout_id, seed, vocabulary=vocabulary, item_chars=item_chars)
    prompt = episode.ids(first_prompt)
    for _ in range(turns):
        prompt = episode.call(prompt, episode.ids(generated)) + episode.ids(added)
    return episode.calls


def shaped_rollout(shape: str, rollout_id: str, *, seed: int = 0) -> list[TokenEntry]:
    """Make a small rollout of one of the kinds in `SHAPES`.

    Raises:
        ValueError: There is no such shape; the message names those there are.
    """
    if shape not in SHAPES:
        raise ValueError(f"no shape {shape!r}, there are {', '.join(SHAPES)}")
    episode = _Episode(rollout_id, seed)
    SHAPES[shape](episode)
    return episode.calls


def _append_only(episode: _Episode) -> None:
    prompt = episode.ids(600)
    for _ in range(5):
        prompt = episode.call(prompt, episode.ids(60)) + episode.ids(80)


def _single_call(episode: _Episode) -> None:
    episode.call(episode.ids(110), episode.ids(500))


def _prefix_breaks(episode: _Episode) -> None:
    history = episode.ids(400)
    for _ in range(4):
        generation = episode.ids(90)
        episode.call(history, generation)
        history = history + generation[:1] + generation[60:] + episode.ids(70)


def _late_break(episode: _Episode) -> None:
    seen = episode.call(episode.ids(3000), episode.ids(700))
    merged = seen[:2900] + episode.ids(1) + seen[2902:]
    episode.call(merged + episode.ids(40), episode.ids(50))


def _retries(episode: _Episode) -> None:
    base = episode.ids(350)
    longer = base + episode.ids(200)
    for prompt in (base, base, longer, longer, base, longer):
        episode.call(prompt, episode.ids(45))


def _one_token(episode: _Episode) -> None:
    prompt = episode.ids(90)
    for _ in range(9):
        prompt = episode.call(prompt, episode.ids(1)) + episode.ids(6)


def _empty_generation(episode: _Episode) -> None:
    seen = episode.call(episode.ids(300), [])
    episode.call(seen + episode.ids(20), [])


def _empty_prompt(episode: _Episode) -> None:
    seen = episode.call([], episode.ids(280))
    episode.call(seen, episode.ids(300))


def _empty_ids(episode: _Episode) -> None:
    for _ in range(3):
        episode.call([], [])


def _padding(episode: _Episode) -> None:
    episode.call([], [128_001] * 2048, generation_log_probs=[0.0] * 2048, output_items=[], token_item_index=None)


def _branches(episode: _Episode) -> None:
    """Interleave the main thread, a sub-agent that starts from its history, and one that starts afresh."""
    main = episode.call(episode.ids(500), episode.ids(40)) + episode.ids(60)
    forked, fresh = main + episode.ids(30), episode.ids(280)
    for _ in range(3):
        forked = episode.call(forked, episode.ids(40)) + episode.ids(20)
        fresh = episode.call(fresh, episode.ids(30)) + episode.ids(20)
        main = episode.call(main, episode.ids(40)) + episode.ids(60)


def _twins(episode: _Episode) -> None:
    prompt, generation, log_probs = episode.ids(300), episode.ids(20), episode.log_probs(20)
    for _ in range(3):
        episode.call(prompt, generation, generation_log_probs=log_probs)


def _no_items(episode: _Episode) -> None:
    bare: dict[str, Any] = {"output_items": [], "token_item_index": None, "response_id": None, "model": "", "extra": {}}
    seen = episode.call(episode.ids(700), episode.ids(200), **bare)
    episode.call(seen + episode.ids(30), episode.ids(100), **bare)


def _first_carrier(episode: _Episode) -> None:
    seen = episode.call(episode.ids(300), episode.ids(40), token_item_index=0)
    episode.call(seen + episode.ids(10), episode.ids(40), token_item_index=None)


def _routed_experts(episode: _Episode) -> None:
    generation = episode.ids(12)
    experts = [[[episode.ids(1)[0] % 64 for _ in range(8)] for _ in range(4)] for _ in generation]
    seen = episode.call(episode.ids(260), generation, routed_experts=experts)
    episode.call(seen, episode.ids(5), routed_experts={"dtype": "uint8", "data": "AAEC/w==", "shape": [1, 4]})


def _edge_values(episode: _Episode) -> None:
    """Hold the values on which encoders fail: both ends of the ids and of the floats, and unusual text."""
    log_probs = [0.0, -0.0, 5e-324, -5e-324, -9999.0, -1e-5, -1.25e-5, -9.999e-5, -1e-4, -0.1, -1.7976931348623157e308]
    text = '\x00\x1f\x7f\x85\u2028\u2029\ufeff\U0010ffff "quoted" \\ / </script> e\u0301 é'
    item: dict[str, Any] = {"type": "message", "text": text, text: None, "": [[], {}, [[{}]]]}
    item["numbers"] = [0, 0.0, -0.0, 1, 1.0, True, None]
    edges = [0, MAX_TOKEN_ID, 1, 2**31, 2**31 - 1, 255, 256, 65_535, 65_536, 0, MAX_TOKEN_ID]
    episode.call(
        edges * 30,
        edges,
        generation_log_probs=log_probs,
        model=text,
        output_items=[{}, item],
        token_item_index=1,
        created_at=0.1,
        extra={"Ключ": {"b": 1, "a": [1, [2, [3]]]}, "": 2**53, "false": False, "null": None, "small": 1e-7},
    )
    episode.call(edges * 30 + edges, [0], generation_log_probs=[0], created_at=0.0, response_id="")


SHAPES: Mapping[str, Callable[[_Episode], None]] = MappingProxyType(
    {
        "append_only": _append_only,
        "single_call": _single_call,
        "prefix_breaks": _prefix_breaks,
        "late_break": _late_break,
        "retries": _retries,
        "one_token": _one_token,
        "empty_generation": _empty_generation,
        "empty_prompt": _empty_prompt,
        "empty_ids": _empty_ids,
        "padding": _padding,
        "branches": _branches,
        "twins": _twins,
        "no_items": _no_items,
        "first_carrier": _first_carrier,
        "routed_experts": _routed_experts,
        "edge_values": _edge_values,
    }
)
"""Every shape by its name, for `shaped_rollout`: the kinds of calls that recordings of real engines hold."""
