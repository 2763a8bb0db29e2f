"""A line has one form, ends in its checksum, and is read back whole."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from tests.samples import entry, line_of, vouched
from tokenstore.codec import (
    DamagedLineError,
    KnownPrompt,
    LineHead,
    NewerSchemaError,
    UnacceptableLineError,
    decode_line,
    dumps,
    inspect_line,
)
from tokenstore.codec.prompts import PromptBase
from tokenstore.testing import SHAPES, first_difference, shaped_rollout

FULL = (
    '{"created_at":1.5,"generation_log_probs":[-0.5,-1.25],"generation_token_ids":[4,5],"model":"m","model_call_id":"c0",'
    '"output_items":[{"text":"hé/","type":"message"}],"prompt_token_ids":[1,2,3],"rollout_id":"r","routed_experts":null,'
    '"schema_version":1,"token_item_index":null}'
)
"""The line of an entry as the reference's library writes it."""


def known_prompt(call_id: str, ids: list[int]) -> KnownPrompt:
    """Make what a writer knows of an earlier call."""
    packed = b"".join(number.to_bytes(4, "little") for number in ids)
    return KnownPrompt(call_id, packed, zlib.crc32(packed))


class TestForm:
    """How a line is written."""

    def test_full_lines_are_the_references(self) -> None:
        """Without a checksum a line holds the declared members, sorted, without spaces, and nothing else."""
        made = entry(output_items=[{"type": "message", "text": "hé/"}])

        assert line_of(made, checksum=False).decode() == FULL

    def test_the_checksum_is_last(self) -> None:
        """With a checksum the same line ends in its crc32, over the bytes from the brace to before the comma."""
        made = entry(output_items=[{"type": "message", "text": "hé/"}])
        body = FULL.removesuffix("}").encode()

        assert line_of(made) == body + b',"crc32":%d}' % zlib.crc32(body)

    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_lines_are_canonical(self, shape: str, checksum: bool) -> None:
        """Every kind of entry becomes one line of sorted members that is spelt as `dumps` spells it, `crc32` last."""
        for made in shaped_rollout(shape, "r"):
            line = line_of(made, checksum=checksum)

            members = json.loads(line, object_pairs_hook=list)
            names = [name for name, _ in members]
            crc32 = b',"crc32":%d' % json.loads(line)["crc32"] if checksum else b""
            assert b"\n" not in line
            assert names == [*sorted(set(names) - {"crc32"}), *(["crc32"] if checksum else [])]
            assert (
                line
                == dumps({name: value for name, value in json.loads(line).items() if name != "crc32"})[:-1]
                + crc32
                + b"}"
            )

    def test_unknown_fields_stand_among_the_others(self) -> None:
        """Unknown fields are members like the declared ones, wherever the alphabet puts them."""
        names = (
            "",
            "a",
            "generation_log_probz",
            "prompt_a",
            "prompt_bases",
            "prompt_resu",
            "prompt_token_id",
            "zz",
            "é",
            "\n",
        )
        made = entry(extra=dict.fromkeys(names, 1))

        line = line_of(made)

        assert list(json.loads(line))[:-1] == sorted(list(json.loads(line))[:-1])
        assert decode_line(line, "r").entry == made

    def test_a_shared_prompt_names_its_base(self) -> None:
        """With a base the line has no prompt but the base's call, length and checksum, and the rest of the ids."""
        base = known_prompt("b", list(range(300)))
        made = entry(prompt_token_ids=[*range(300), 7, 8], extra={"prompt_c": 1})

        value = json.loads(line_of(made, base=base, checksum=False))

        assert value["prompt_base"] == {"model_call_id": "b", "length": 300, "crc32": base.crc32}
        assert value["prompt_rest"] == [7, 8]
        assert "prompt_token_ids" not in value
        assert list(value) == [*sorted(value.keys() - {"crc32"}), "crc32"]

    def test_an_answers_id_is_written_only_when_set(self) -> None:
        """`response_id` is left out when it is None, and kept when it is empty."""
        assert b"response_id" not in line_of(entry())
        assert b'"response_id":"",' in line_of(entry(response_id=""))


class TestReading:
    """How a line is read."""

    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize("shape", SHAPES)
    def test_every_shape_comes_back(self, shape: str, checksum: bool) -> None:
        """An entry of any kind that engines leave comes back to the last bit."""
        for made in shaped_rollout(shape, "r"):
            line = line_of(made, checksum=checksum)

            assert first_difference(made, decode_line(line, "r").entry) is None
            assert inspect_line(line, "r") == LineHead(made.model_call_id, None)

    def test_the_rest_of_a_shared_prompt_comes_back(self) -> None:
        """A line with a base gives what it holds itself, and the base."""
        base = known_prompt("b", list(range(300)))
        line = line_of(entry(prompt_token_ids=[*range(300), 7, 8]), base=base)

        stored = decode_line(line, "r")

        assert stored.entry == entry(prompt_token_ids=[7, 8])
        assert stored.base == PromptBase("b", 300, base.crc32)
        assert stored.own_ids == known_prompt("", [7, 8, 4, 5]).prompt
        assert stored.with_prompt([1]) == entry(prompt_token_ids=[1])
        assert inspect_line(line, "r") == LineHead("c0", "b")

    def test_unknown_fields_are_kept(self) -> None:
        """Members of the same schema that this library does not know come back in `extra`."""
        made = entry(extra={"reward": 1.0, "nested": {"crc32": 1, "prompt_base": None}, "zz": [[]]})

        for checksum in (True, False):
            assert decode_line(line_of(made, checksum=checksum), "r").entry == made

    @pytest.mark.parametrize("read", [decode_line, inspect_line])
    @pytest.mark.parametrize("checksum", [True, False])
    def test_newer_lines_are_told_apart(self, read: Any, checksum: bool) -> None:
        """A line of a newer schema is neither damaged nor unacceptable, and the message has the version."""
        line = FULL.replace('"schema_version":1', '"schema_version":99,"shape":"unknown"').encode()

        with pytest.raises(NewerSchemaError, match="schema_version 99 is newer than 1; upgrade"):
            read(vouched(line) if checksum else line, "r")

    @pytest.mark.parametrize("read", [decode_line, inspect_line])
    @pytest.mark.parametrize("checksum", [True, False])
    @pytest.mark.parametrize(
        "line",
        [
            b'{"a":1}',
            FULL.replace('"rollout_id":"r"', '"rollout_id":"s"').encode(),
            FULL.replace('"rollout_id":"r"', '"rollout_id":"a/b"').encode(),
            FULL.replace('"rollout_id":"r"', '"rollout_id":7').encode(),
            FULL.replace('"model_call_id":"c0"', '"model_call_id":"a\\nb"').encode(),
            FULL.replace('"model_call_id":"c0"', '"model_call_id":""').encode(),
            FULL.replace('"model_call_id":"c0"', '"model_call_id":7').encode(),
            FULL.replace('"model_call_id":"c0",', "").encode(),
        ],
        ids=range(8),
    )
    def test_lines_of_others_are_unacceptable(self, read: Any, line: bytes, checksum: bool) -> None:
        """A well-formed line that is of another rollout, or names no call, is unacceptable."""
        with pytest.raises(UnacceptableLineError):
            read(vouched(line) if checksum else line, "r")

    @pytest.mark.parametrize(
        "prompt",
        [
            '"prompt_base":null,"prompt_rest":[]',
            '"prompt_base":{},"prompt_rest":[]',
            '"prompt_base":{"model_call_id":"b","length":"3","crc32":1},"prompt_rest":[]',
            '"prompt_base":{"model_call_id":7,"length":3,"crc32":1},"prompt_rest":[]',
            '"prompt_base":{"model_call_id":"b","length":3},"prompt_rest":[]',
            '"prompt_base":{"model_call_id":"b","length":3,"crc32":1}',
            '"prompt_base":{"model_call_id":"b","length":3,"crc32":1},"prompt_rest":null',
            '"prompt_rest":[1]',
            '"prompt_base":{"model_call_id":"b","length":3,"crc32":1},"prompt_rest":[1],"prompt_token_ids":[1,2]',
            '"prompt_rest":[1],"prompt_token_ids":[1,2]',
        ],
    )
    def test_odd_bases_are_unacceptable(self, prompt: str) -> None:
        """A vouched line whose base is not of the form that this library writes is unacceptable."""
        line = vouched(FULL.replace('"prompt_token_ids":[1,2,3]', prompt).encode())

        with pytest.raises(UnacceptableLineError):
            decode_line(line, "r")

    @pytest.mark.parametrize("base", ["null", "{}", "[]", '{"model_call_id":7,"length":3,"crc32":1}'])
    def test_odd_bases_are_seen_at_a_first_look(self, base: str) -> None:
        """A line that is only looked at for its call and its base is refused too if the base is none."""
        line = FULL.replace('"prompt_token_ids":[1,2,3]', f'"prompt_base":{base},"prompt_rest":[]').encode()

        with pytest.raises(UnacceptableLineError):
            inspect_line(vouched(line), "r")

    @pytest.mark.parametrize("checksum", [b"", b',"crc32":7', b',"crc32":null'])
    def test_a_shared_prompt_needs_a_checksum(self, checksum: bytes) -> None:
        """A line that names a base but has no right checksum is damaged, never a fragment of a prompt."""
        line = line_of(entry(prompt_token_ids=[*range(300), 7]), base=known_prompt("b", list(range(300))))
        bare = line[: line.rindex(b',"crc32"')]

        for read in (decode_line, inspect_line):
            with pytest.raises(DamagedLineError):
                read(bare + checksum + b"}", "r")

    @pytest.mark.parametrize("levels", [600, 5000, 100_000])
    @pytest.mark.parametrize("read", [decode_line, inspect_line])
    def test_foreign_nesting_is_unacceptable(self, levels: int, read: Any) -> None:
        """A line without a checksum that is nested too deep is unacceptable, however deep, and never a crash."""
        nest = "[" * levels + "]" * levels
        line = FULL.replace('"routed_experts":null', f'"routed_experts":{nest}').encode()

        with pytest.raises(UnacceptableLineError, match="nested"):
            read(line, "r")
