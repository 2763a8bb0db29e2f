"""Writing and reading the lines of one rollout with shared prompts, apart from files."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tests.samples import LIMIT, entry
from tokenstore.codec import PromptCache, PromptReader, StoredLine, decode_line, prepare
from tokenstore.records import TokenEntry


class LineWriter:
    """Writes lines as the journal does: the longest known call is the base, and every line is remembered."""

    def __init__(self, cache: PromptCache | None = None) -> None:
        self.cache = cache or PromptCache()
        self.lines: list[bytes] = []

    def write(self, value: TokenEntry) -> StoredLine:
        """Write an entry and tell what its line holds itself."""
        draft = prepare(value, max_entry_bytes=LIMIT)
        base = self.cache.find(value.rollout_id, draft.prompt)
        self.lines.append(draft.line(base, checksum=True))
        self.cache.remember(value.rollout_id, value.model_call_id, draft.prompt, draft.generation, base)
        return decode_line(self.lines[-1], value.rollout_id)

    def base_of(self, value: TokenEntry) -> str | None:
        """Write an entry and name the base of its line."""
        base = self.write(value).base
        return base.model_call_id if base else None


class LineFile:
    """The lines of one file, read in order through a prompt reader; it counts how often lines are read again."""

    def __init__(self, lines: Iterable[bytes], max_tokens: int = LIMIT, rollout_id: str = "r") -> None:
        self.lines = list(lines)
        self.reloads = 0
        self._rollout_id = rollout_id
        self._reader = PromptReader(self._reload, max_tokens)

    def _reload(self, offset: int) -> StoredLine:
        self.reloads += 1
        return decode_line(self.lines[offset], self._rollout_id)

    def read(self) -> list[TokenEntry | None]:
        """Give every entry whole, None where the base is lost."""
        return list(self)

    def __iter__(self) -> Iterator[TokenEntry | None]:
        for place, line in enumerate(self.lines):
            yield self._reader.whole(decode_line(line, self._rollout_id), place)


def call(name: str, prompt: Iterable[int], generation: Iterable[int] = (9,)) -> TokenEntry:
    """Make an entry of these ids."""
    ids = list(generation)
    return entry(name, prompt_token_ids=list(prompt), generation_token_ids=ids, generation_log_probs=[0.0] * len(ids))


def everything(value: TokenEntry) -> list[int]:
    """The ids with which a prompt that follows a call begins."""
    return value.prompt_token_ids + value.generation_token_ids


def wandering_rollout(seed: int, calls: int) -> list[TokenEntry]:
    """Make calls that extend, fork from, repeat, cut and break earlier ones at random, ids drawn from two."""
    chance = random.Random(seed)  # noqa: S311 - test data
    made: list[TokenEntry] = []
    for number in range(calls):
        start = everything(chance.choice(made[-3:])) if made and chance.random() < 0.9 else []
        kind = chance.random()
        if kind < 0.06:
            start = start[: chance.randrange(len(start) + 1)]
        elif kind < 0.12 and start:
            start[chance.randrange(len(start))] ^= 1
        fresh = [chance.getrandbits(1) for _ in range(chance.choice((0, 1, 40, 300)))]
        made.append(
            call(f"c{number}", start + fresh, [chance.getrandbits(1) for _ in range(chance.choice((0, 1, 30)))])
        )
    return made
