"""A prompt that begins with an earlier call is stored as that call and the rest."""

from __future__ import annotations

import zlib

import pytest

from tests.codec.sharing import LineFile, LineWriter, call, everything, wandering_rollout
from tests.samples import line_of, vouched
from tokenstore.codec import KnownPrompt, PromptCache, dumps, encode_entry
from tokenstore.codec.prompts import CALLS_A_ROLLOUT, MIN_SHARED
from tokenstore.testing import agent_rollout, first_difference

BASE = call("base", range(MIN_SHARED - 1))
"""A call of just as many ids as a base needs."""


def packed(ids: list[int]) -> bytes:
    """Pack ids as a writer does."""
    return b"".join(number.to_bytes(4, "little") for number in ids)


class TestChoosing:
    """Which base a writer names."""

    def test_a_base_has_at_least_256_ids(self) -> None:
        """Naming a call of 256 ids is worth it, naming one of 255 is not."""
        writer = LineWriter()
        short = call("short", range(1000, 1000 + MIN_SHARED - 2))
        for value in (BASE, short):
            writer.write(value)

        assert writer.base_of(call("c1", [*everything(BASE), 7])) == "base"
        assert writer.base_of(call("c2", [*everything(short), 7])) is None

    def test_the_prompt_must_hold_the_whole_base(self) -> None:
        """A prompt that ends before the base does, or differs in one id, has no base; one that equals it has."""
        writer = LineWriter()
        writer.write(BASE)

        assert writer.base_of(call("c1", everything(BASE)[:-1])) is None
        assert writer.base_of(call("c2", [*everything(BASE)[:-1], 8, 8])) is None
        assert writer.base_of(call("c3", everything(BASE))) == "base"

    def test_the_longest_base_wins(self) -> None:
        """Of several calls with which a prompt begins, the longest is named, whatever their order."""
        longer = call("longer", [*everything(BASE), *range(50)])
        for first, second in ((BASE, longer), (longer, BASE)):
            writer = LineWriter()
            writer.write(first)
            writer.write(second)
            assert writer.base_of(call("c1", [*everything(longer), 1])) == "longer"
            assert writer.base_of(call("c2", [*everything(BASE), 999])) == "base"

    def test_forks_name_the_same_base(self) -> None:
        """Two prompts that go on from one call in different ways both name it, and each its own way after."""
        writer = LineWriter()
        left, right = (call(name, [*everything(BASE), number]) for name, number in (("left", 1), ("right", 2)))
        writer.write(BASE)

        assert [writer.base_of(left), writer.base_of(right)] == ["base", "base"]
        assert writer.base_of(call("c1", [*everything(right), 3])) == "right"
        assert writer.base_of(call("c2", [*everything(left), 3])) == "left"

    def test_only_the_last_calls_are_known(self) -> None:
        """A rollout's writer knows its last four calls; an older one is no base."""
        writer = LineWriter()
        made = [call(f"c{number}", [number] * MIN_SHARED) for number in range(CALLS_A_ROLLOUT + 1)]
        for value in made:
            writer.write(value)

        assert writer.base_of(call("d1", [*everything(made[1]), 7])) == "c1"
        assert writer.base_of(call("d0", [*everything(made[0]), 7])) is None

    def test_a_base_in_use_stays_known(self) -> None:
        """Any number of prompts may begin with the same call, one after the other."""
        writer = LineWriter()
        writer.write(BASE)
        forks = [call(f"c{number}", [*everything(BASE), number]) for number in range(2 * CALLS_A_ROLLOUT)]
        bases = [writer.base_of(fork) for fork in forks]

        assert bases == ["base"] * len(forks)

    def test_rollouts_do_not_mix(self) -> None:
        """The call of one rollout is no base in another, and forgetting one leaves the other."""
        cache = PromptCache()
        ids = packed(everything(BASE))
        cache.remember("a", "base", packed(BASE.prompt_token_ids), packed([9]), None)
        assert cache.find("b", ids) is None
        cache.remember("b", "base", packed(BASE.prompt_token_ids), packed([9]), None)

        cache.forget("a")
        cache.forget("a")

        assert cache.find("a", ids) is None
        assert cache.find("b", ids) is not None

    def test_a_call_remembered_again_is_known_once(self) -> None:
        """The later ids of a call take the place of the earlier ones."""
        cache = PromptCache()
        for number in (1, 2):
            cache.remember("r", "c", packed([number] * 300), b"", None)

        assert cache.find("r", packed([1] * 300)) is None
        assert cache.find("r", packed([2] * 300)) is not None

    def test_checksums_are_over_all_ids(self) -> None:
        """What a line says of its base is the crc32 over the base's whole ids, however the base itself is stored."""
        writer = LineWriter()
        made = agent_rollout("r", turns=4, first_prompt=300, generated=10, added=10)
        for value in made[:3]:
            writer.write(value)

        base = writer.write(made[3]).base

        assert base is not None
        assert (base.model_call_id, base.length) == (made[2].model_call_id, len(everything(made[2])))
        assert base.crc32 == zlib.crc32(packed(everything(made[2])))


class TestCacheBounds:
    """The cache keeps within its bytes."""

    @pytest.mark.parametrize("max_bytes", [0, 4 * MIN_SHARED - 4, 40_000])
    def test_stays_within_its_bytes(self, max_bytes: int) -> None:
        """Whatever is remembered, what is known together is within the bound, and a larger call is not kept at all."""
        cache = PromptCache(max_bytes)
        known: dict[tuple[str, str], bytes] = {}
        for number in range(200):
            rollout, name, ids = f"r{number % 7}", f"c{number}", packed([number] * (MIN_SHARED + 13 * (number % 50)))
            cache.remember(rollout, name, ids, b"", None)
            known[rollout, name] = ids
            found = [ids for (rollout, _), ids in known.items() if cache.find(rollout, ids)]
            assert sum(map(len, found)) <= max_bytes

    def test_a_call_too_short_to_be_named_is_not_kept(self) -> None:
        """What takes more memory than its ids, and is no base, takes no memory, nor the place of a base."""
        cache = PromptCache()
        cache.remember("r", "base", packed([7] * (MIN_SHARED - 1)), packed([8]), None)
        for number in range(CALLS_A_ROLLOUT):
            cache.remember("r", f"short{number}", packed([number] * (MIN_SHARED - 2)), packed([8]), None)

        assert [known.model_call_id for known in cache.known("r")] == ["base"]

    def test_the_least_recently_used_goes_first(self) -> None:
        """A call that was named again stays, and the one that nobody used since goes."""
        ids = {name: packed([number] * MIN_SHARED) for number, name in enumerate("abc")}
        cache = PromptCache(2 * len(ids["a"]))
        cache.remember("ra", "a", ids["a"], b"", None)
        cache.remember("rb", "b", ids["b"], b"", None)
        cache.find("ra", ids["a"])

        cache.remember("rc", "c", ids["c"], b"", None)

        assert [bool(cache.find(f"r{name}", ids[name])) for name in "abc"] == [True, False, True]

    def test_without_a_cache_lines_are_whole(self) -> None:
        """A writer that may keep nothing writes whole prompts."""
        writer = LineWriter(PromptCache(0))

        for value in agent_rollout("r", turns=5, first_prompt=300):
            assert writer.write(value).base is None


class TestReading:
    """How prompts become whole again."""

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("max_tokens", [0, 1, 500, 5000, 10**9])
    def test_every_prompt_is_whole(self, seed: int, max_tokens: int) -> None:
        """Calls that extend, fork, repeat and break come back, however few tokens the reader may hold."""
        made = wandering_rollout(seed, 60)
        writer = LineWriter()
        shared = sum(writer.write(value).base is not None for value in made)

        read = LineFile(writer.lines, max_tokens).read()

        assert shared > 10, f"seed {seed}"
        assert read == made, f"seed {seed}"

    def test_what_is_held_is_not_read_again(self) -> None:
        """A reader that may hold everything reads no line twice; one that may hold nothing climbs down every fork."""
        writer = LineWriter()
        made = wandering_rollout(0, 60)
        for value in made:
            writer.write(value)
        rich, poor = LineFile(writer.lines), LineFile(writer.lines, 0)

        assert rich.read() == poor.read()
        assert rich.reloads == 0
        assert poor.reloads > 20

    def test_the_ids_are_shared(self) -> None:
        """The int objects of a prompt are those of its base, so that a long rollout needs little memory."""
        writer = LineWriter()
        for value in agent_rollout("r", turns=3, first_prompt=1000):
            writer.write(value)

        first, _, last = LineFile(writer.lines).read()

        assert first is not None
        assert last is not None
        assert all(mine is theirs for mine, theirs in zip(first.prompt_token_ids, last.prompt_token_ids, strict=False))

    def test_a_chain_of_5000_turns(self) -> None:
        """Five thousand turns are read without recursion, and again from the last one upwards when nothing is held."""
        turns = 5000
        lines, ids = chain_of_lines(turns)
        file = LineFile([*lines[:-1], line_of(call("elsewhere", [5])), lines[-1]], max_tokens=0)

        count, last = 0, None
        for last in file:  # one by one: all together they hold fourteen million ids
            count += last is not None

        assert count == turns + 1
        assert last is not None
        assert everything(last) == ids
        assert file.reloads == turns - 1


def chain_of_lines(turns: int) -> tuple[list[bytes], list[int]]:
    """Write the lines of a rollout in which each prompt is the call before, and tell the last call's ids."""
    ids = list(range(MIN_SHARED))
    lines = [line_of(call("c0", ids, []))]
    crc32 = zlib.crc32(packed(ids))
    for number in range(1, turns):
        base = {"model_call_id": f"c{number - 1}", "length": len(ids), "crc32": crc32}
        members = encode_entry(call(f"c{number}", [], [number]))
        members.update(prompt_base=base, prompt_rest=members.pop("prompt_token_ids"))
        lines.append(vouched(dumps(members)))
        ids.append(number)
        crc32 = zlib.crc32(packed([number]), crc32)
    return lines, ids


class TestLosing:
    """What a reader does when the base is not there."""

    def lines(self) -> list[bytes]:
        """Write a base, a child, a grandchild and a call of its own."""
        writer = LineWriter()
        child = call("child", [*everything(BASE), 1])
        for value in (BASE, child, call("grandchild", [*everything(child), 2]), call("other", [1])):
            writer.write(value)
        return writer.lines

    def read(self, *lines: bytes) -> list[str | None]:
        """Read lines and name the calls that came back."""
        return [value.model_call_id if value else None for value in LineFile(lines).read()]

    def test_a_lost_base_loses_its_line(self) -> None:
        """Without the base, what hangs on it is left out, never given as a fragment; the rest is given."""
        base, child, grandchild, other = self.lines()

        assert self.read(base, child, grandchild, other) == ["base", "child", "grandchild", "other"]
        assert self.read(child, grandchild, other) == [None, None, "other"]
        assert self.read(base, grandchild, other) == ["base", None, "other"]

    def test_a_base_lies_before_its_child(self) -> None:
        """A call that comes later in the file is no base."""
        base, child, *_ = self.lines()

        assert self.read(child, base) == [None, "base"]

    @pytest.mark.parametrize("ids", [everything(BASE)[:-1], [*everything(BASE), 9], [*everything(BASE)[:-1], 8]])
    def test_another_call_of_that_name_is_no_base(self, ids: list[int]) -> None:
        """A call of the same name whose length or ids differ is not taken; of two, the one that fits is."""
        base, child, *_ = self.lines()
        impostor = line_of(call("base", ids, []))

        assert self.read(impostor, child) == ["base", None]
        assert self.read(impostor, base, child) == ["base", "base", "child"]
        assert self.read(base, impostor, child) == ["base", "base", "child"]

    def test_the_same_ids_cut_elsewhere_are_the_base(self) -> None:
        """Only the ids of prompt and generation together count."""
        _, child, *_ = self.lines()

        assert self.read(line_of(call("base", everything(BASE)[:5], everything(BASE)[5:])), child) == ["base", "child"]


def test_the_packed_base_of_a_known_prompt() -> None:
    """What a writer knows of a call tells its length and what a line says of it."""
    known = KnownPrompt("c", packed([1, 2, 3]), 7)

    assert known.length == 3
    assert (known.as_base().model_call_id, known.as_base().length, known.as_base().crc32) == ("c", 3, 7)


def test_agents_share_nearly_everything() -> None:
    """The lines of an agent's rollout hold each id once, and come back whole."""
    writer = LineWriter()
    made = agent_rollout("r", turns=20)
    own = [len(writer.write(value).entry.prompt_token_ids) for value in made]

    read = LineFile(writer.lines).read()

    assert own == [2000] + [300] * 19
    assert [first_difference(before, after) for before, after in zip(made, read, strict=True) if after] == [None] * 20
