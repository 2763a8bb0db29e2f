"""Shared prompts: a line names an earlier call whose ids its prompt begins with, and holds only the rest.

An agent repeats its whole history in each prompt; 200 turns take 1.6 MB this way instead of 65 MB. The writer keeps the
packed ids of the last calls and finds a base by comparing bytes; the reader builds each prompt from its base's lists,
so that the int objects are shared. A cumulative checksum over the ids ties the two together: crc32 over the first
`length` ids as little-endian uint32.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs

from tokenstore.codec.packing import ID_BYTES, Places
from tokenstore.errors import InvalidEntryError
from tokenstore.records import TokenEntry

if TYPE_CHECKING:
    from tokenstore.codec.line import StoredLine

MIN_SHARED = 256
"""Ids from which naming a base is shorter than repeating it, by a good margin."""
CACHE_BYTES = 128 * 1024 * 1024
"""Packed ids kept over a whole store: the latest context of 256 agents at 131,072 ids each."""
CALLS_A_ROLLOUT = 4
"""Calls kept of one rollout: the last one and room for a fork or two."""


@attrs.frozen
class PromptBase:
    """What a line says of its base."""

    model_call_id: str
    """The earlier call."""
    length: int
    """How many ids its prompt and generation have together."""
    crc32: int
    """Checksum over those ids."""

    @classmethod
    def structure(cls, value: Any) -> Self:
        """Read it from a line.

        Raises:
            InvalidEntryError: It is not of this form.
        """
        match value:
            case {"model_call_id": str(call_id), "length": int(length), "crc32": int(crc32)}:
                return cls(call_id, length, crc32)
        raise InvalidEntryError("prompt_base", "is not of the form that this library writes")


@attrs.frozen
class KnownPrompt:
    """The packed ids of a call, that a later prompt may begin with: its own prompt, then what was generated."""

    model_call_id: str
    prompt: bytes
    crc32: int
    generation: bytes = b""
    small: Places = None
    """Where they are 0 or 1."""

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return len(self.prompt) + len(self.generation)

    @property
    def length(self) -> int:
        """How many ids these are."""
        return self.size // ID_BYTES

    def begins(self, packed: bytes) -> bool:
        """Whether packed ids begin with these."""
        return packed.startswith(self.prompt) and packed.startswith(self.generation, len(self.prompt))

    def as_base(self) -> PromptBase:
        """What a line says of it."""
        return PromptBase(self.model_call_id, self.length, self.crc32)


class PromptCache:
    """The last calls of the rollouts being written, bounded over a whole store, least recently used out first."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._calls: OrderedDict[tuple[str, str], KnownPrompt] = OrderedDict()
        self._rollouts: dict[str, list[str]] = {}
        self._left: dict[str, object] = {}
        self._guard = threading.Lock()

    def find(self, rollout_id: str, prompt: bytes) -> KnownPrompt | None:
        """The longest known call that the packed prompt begins with."""
        found = next(self.fitting(rollout_id, prompt), None)
        if found is not None:
            with self._guard:
                self._use(rollout_id, found.model_call_id)
        return found

    def _use(self, rollout_id: str, call_id: str) -> None:
        """Make it the last to go: many calls may begin with the same one."""
        if (rollout_id, call_id) in self._calls:
            self._calls.move_to_end((rollout_id, call_id))
            calls = self._rollouts[rollout_id]
            calls.append(calls.pop(calls.index(call_id)))

    def fitting(self, rollout_id: str, prompt: bytes) -> Iterator[KnownPrompt]:
        """The known calls that the packed prompt begins with, the longest first."""
        return (call for call in self.known(rollout_id) if call.begins(prompt))

    def known(self, rollout_id: str) -> list[KnownPrompt]:
        """The last calls of a rollout, the longest first."""
        with self._guard:
            known = [self._calls[rollout_id, call_id] for call_id in self._rollouts.get(rollout_id, ())]
        return sorted(known, key=lambda call: call.size, reverse=True)

    def remember(
        self,
        rollout_id: str,
        call_id: str,
        prompt: bytes,
        generation: bytes,
        base: KnownPrompt | None,
        *,
        small: Places = None,
    ) -> None:
        """Keep a call that is surely in the file, or will be before any line that names it, if it is worth naming.

        A short one is not, and would take more memory than its ids: half a kilobyte.
        """
        self._let_go(rollout_id, call_id)
        if len(prompt) + len(generation) < MIN_SHARED * ID_BYTES:
            return
        crc32 = zlib.crc32(memoryview(prompt)[base.size :], base.crc32) if base else zlib.crc32(prompt)
        call = KnownPrompt(call_id, prompt, zlib.crc32(generation, crc32), generation, small)
        with self._guard:
            self._rollouts.setdefault(rollout_id, []).append(call_id)
            self._calls[rollout_id, call_id] = call
            self._bytes += call.size
            if len(self._rollouts[rollout_id]) > CALLS_A_ROLLOUT:
                self._remove(rollout_id, self._rollouts[rollout_id][0])
            while self._bytes > self._max_bytes:
                self._remove(*next(iter(self._calls)))

    def _let_go(self, rollout_id: str, call_id: str) -> None:
        """Let go of one call, if it is there."""
        with self._guard:
            if (rollout_id, call_id) in self._calls:
                self._remove(rollout_id, call_id)

    def forget(self, rollout_id: str) -> None:
        """Let go of a rollout, because its file is not the one it was or its last lines may be cut off."""
        with self._guard:
            for call_id in list(self._rollouts.get(rollout_id, ())):
                self._remove(rollout_id, call_id)

    def leave(self, rollout_id: str, file: object) -> None:
        """Note what a rollout's file is while nobody looks at it; the prompts stay good for who finds it so."""
        with self._guard:
            if rollout_id in self._rollouts:
                self._left[rollout_id] = file

    def left(self, rollout_id: str) -> object:
        """What a rollout's file was when it was left; None if that is not known, or nothing is cached."""
        return self._left.get(rollout_id)

    def _remove(self, rollout_id: str, call_id: str) -> None:
        self._bytes -= self._calls.pop((rollout_id, call_id)).size
        self._rollouts[rollout_id].remove(call_id)
        if not self._rollouts[rollout_id]:
            del self._rollouts[rollout_id]
            self._left.pop(rollout_id, None)


@attrs.frozen
class _Seen:
    """A line that a later one may name: where it is, and what its ids add up to."""

    offset: int
    length: int
    crc32: int
    base: _Seen | None


class PromptReader:
    """Gives whole prompts while the lines of a file are read in order.

    Args:
        reload: Reads again the line that begins at an offset.
        max_tokens: How many prompt ids of earlier entries to hold; what falls out is read again when it is named.
    """

    def __init__(self, reload: Callable[[int], StoredLine], max_tokens: int) -> None:
        self._reload = reload
        self._max_tokens = max_tokens
        self._tokens = 0
        self._seen: dict[str, list[_Seen]] = {}
        self._held: OrderedDict[int, tuple[list[int], list[int]]] = OrderedDict()

    def whole(self, line: StoredLine, offset: int) -> TokenEntry | None:
        """The entry of the next line with its whole prompt; None if the base that it names is lost."""
        base = None
        if line.base is not None:
            base = self._find(line.base)
            if base is None:
                return None
        seen = self._note(line, offset, base)
        return self._build(seen, line)

    def _find(self, wanted: PromptBase) -> _Seen | None:
        for seen in self._seen.get(wanted.model_call_id, ()):
            if (seen.length, seen.crc32) == (wanted.length, wanted.crc32):
                return seen
        return None

    def _note(self, line: StoredLine, offset: int, base: _Seen | None) -> _Seen:
        own = line.own_ids
        length = len(own) // ID_BYTES + (base.length if base else 0)
        seen = _Seen(offset, length, zlib.crc32(own, base.crc32 if base else 0), base)
        self._seen.setdefault(line.entry.model_call_id, []).append(seen)
        return seen

    def _build(self, seen: _Seen, line: StoredLine) -> TokenEntry:
        """Climb to the nearest base that is held or whole, then come down again: no recursion, 5,000 turns are fine."""
        chain = [(seen.offset, _ids(line))]
        base = seen.base
        while base is not None and base.offset not in self._held:
            chain.append((base.offset, _ids(self._reload(base.offset))))
            base = base.base
        prompt, generation = self._held[base.offset] if base is not None else ([], [])
        for offset, (rest, generated) in reversed(chain):
            # One allocation of the right size; unpacking would let the list grow twice, and touch more memory.
            prompt = prompt + (generation + rest) if prompt or generation else rest
            generation = generated
            self._hold(offset, prompt, generation)
        return line.entry if seen.base is None else line.with_prompt(prompt)

    def _hold(self, offset: int, prompt: list[int], generation: list[int]) -> None:
        # Only the ids: an entry's items may be megabytes, of which the bound on tokens knows nothing.
        self._held[offset] = prompt, generation
        self._tokens += len(prompt)
        while self._tokens > self._max_tokens and len(self._held) > 1:
            _, (dropped, _) = self._held.popitem(last=False)
            self._tokens -= len(dropped)


def _ids(line: StoredLine) -> tuple[list[int], list[int]]:
    return line.entry.prompt_token_ids, line.entry.generation_token_ids
