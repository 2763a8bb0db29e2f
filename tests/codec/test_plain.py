"""JSON is written in one form and read strictly, and plain objects become entries or are refused with the field."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from tests.samples import entry
from tokenstore.codec import decode_entry, dumps, encode_entry, loads, to_plain
from tokenstore.errors import InvalidEntryError, InvalidRolloutIdError
from tokenstore.records import REQUIRED_FIELDS, RefusalRecord, TokenCaptureSnapshot

PLAIN: dict[str, Any] = {
    "rollout_id": "r",
    "model_call_id": "c0",
    "prompt_token_ids": [1, 2, 3],
    "generation_token_ids": [4, 5],
    "generation_log_probs": [-0.5, -1.25],
}


class TestJson:
    """Writing and reading JSON."""

    def test_is_written_in_one_form(self) -> None:
        """Keys are sorted, there are no spaces, and neither slashes nor letters beyond ASCII are escaped."""
        value = {"b": [1, 1.0, None, True], "a": {"ü": "a/b\u2028😊", "Z": '"\\\n\t\x7f'}, "\uffff": 1, "\U00010000": 2}

        assert dumps(value).decode() == (
            '{"a":{"Z":"\\"\\\\\\n\\t\x7f","ü":"a/b\u2028😊"},"b":[1,1.0,null,true],"\uffff":1,"\U00010000":2}'
        )

    @pytest.mark.parametrize(
        "text",
        [
            *(
                "01",
                "[1.]",
                "[.5]",
                "[-]",
                "[-,-0.2]",
                "1e400",
                "-1e999",
                "NaN",
                "[Infinity]",
                "-Infinity",
                "+1",
                "0x10",
            ),
            *(
                '"a\nb"',
                '"\x00"',
                '"\x1f"',
                "'a'",
                "{a:1}",
                "[1,]",
                '{"a":1,}',
                "[1 2]",
                "",
                " ",
                "nul",
                "True",
                "{",
                "]",
            ),
            *("[1]x", '"\\x41"', '"\\ud8"', "1_000", "\ufeff1", "{}{}", "// x\n1", "1e", "[1]\0"),
        ],
        ids=ascii,
    )
    def test_is_read_strictly(self, text: str) -> None:
        """What RFC 8259 does not allow, or no double can hold, is refused rather than read as something near it."""
        with pytest.raises(ValueError, match=r"."):
            loads(text)
        with pytest.raises(ValueError, match=r"."):
            loads(text.encode())

    @pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', "1".encode("utf-16")])
    def test_only_utf8_is_read(self, data: bytes) -> None:
        """Bytes that are no UTF-8 are refused."""
        with pytest.raises(ValueError, match=r"."):
            loads(data)

    def test_members_of_one_name_are_refused_on_request(self) -> None:
        """Two members of one name are read as most readers do, or refused, at any depth, where that is asked for."""
        text = '[{"a":1,"b":{"a":2,"a":2}}]'

        assert loads(text) == [{"a": 1, "b": {"a": 2}}]
        assert loads('{"a":{"a":1}}', unique_keys=True) == {"a": {"a": 1}}
        with pytest.raises(ValueError, match="two members of one name"):
            loads(text, unique_keys=True)

    @pytest.mark.parametrize("text", ["-0.0", "5e-324", "1.7976931348623157e308", "-1.25e-5", "-0.0000125", "0", "2e0"])
    def test_numbers_keep_their_bits(self, text: str) -> None:
        """A number is read as the double that Python reads, and an integer stays one."""
        assert repr(loads(text)) == repr(json.loads(text))


class TestEntries:
    """Plain objects and entries."""

    def test_an_entry_comes_back(self) -> None:
        """What `encode_entry` writes, `decode_entry` reads, unknown fields beside the declared ones."""
        made = entry(extra={"reward": 1.0}, response_id="x", routed_experts=[[1]])

        assert decode_entry(encode_entry(made)) == made
        assert encode_entry(made)["reward"] == 1.0
        assert "extra" not in encode_entry(made)

    def test_all_declared_fields_are_written(self) -> None:
        """Defaults are written too, but for the id of an answer that has none."""
        assert encode_entry(entry()).keys() == {
            *(*PLAIN, "model", "routed_experts", "output_items", "token_item_index", "created_at", "schema_version"),
        }
        assert encode_entry(entry(response_id=""))["response_id"] == ""

    def test_defaults_are_filled_in(self) -> None:
        """The five fields without a default are enough."""
        made = decode_entry(PLAIN)

        assert (made.model, made.output_items, made.created_at, made.extra) == ("", [], 0.0, {})

    @pytest.mark.parametrize("missing", REQUIRED_FIELDS)
    def test_a_missing_field_is_named(self, missing: str) -> None:
        """An object without a field that has no default is refused with its name."""
        with pytest.raises(InvalidEntryError, match=f"^{missing}: is missing"):
            decode_entry({name: value for name, value in PLAIN.items() if name != missing})

    @pytest.mark.parametrize("value", [None, 7, "text", [PLAIN], b"{}"])
    def test_only_objects_are_entries(self, value: Any) -> None:
        """Anything but an object is refused with its type."""
        with pytest.raises(
            InvalidEntryError, match=f"^entry: is of type {type(value).__name__}, it must be a JSON object"
        ):
            decode_entry(value)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"model_call_id": 7}, "model_call_id"),
            ({"model": 7}, "model"),
            ({"generation_log_probs": "123"}, "generation_log_probs"),
            ({"prompt_token_ids": None}, "prompt_token_ids"),
            ({"prompt_token_ids": {"0": 1}}, "prompt_token_ids"),
            ({"output_items": [1]}, "output_items"),
            ({"schema_version": "1"}, "schema_version"),
            ({"crc32": 1}, "extra"),
        ],
    )
    def test_nothing_is_converted(self, changes: dict[str, Any], field: str) -> None:
        """A value of another kind is refused with its field, never turned into the right one."""
        with pytest.raises(InvalidEntryError) as refusal:
            decode_entry({**PLAIN, **changes})
        assert refusal.value.field == field

    def test_rollout_ids_are_checked(self) -> None:
        """An object of a rollout that cannot name files is refused as one."""
        with pytest.raises(InvalidRolloutIdError, match="'a/b'"):
            decode_entry({**PLAIN, "rollout_id": "a/b"})


def test_any_record_becomes_plain_json() -> None:
    """Snapshots and what they hold become plain objects, entries as a line holds them."""
    snapshot = TokenCaptureSnapshot(
        rollout_id="r",
        entries=(entry(extra={"reward": 1}),),
        incomplete=False,
        snapshot_id="s",
        version=1,
        refusals=(RefusalRecord(model_call_id="c1", code="x", created_at=2.0),),
    )

    plain = to_plain(snapshot)

    assert json.loads(dumps(plain)) == plain
    assert plain["entries"] == [encode_entry(snapshot.entries[0])]
    assert plain["refusals"] == [attrs.asdict(snapshot.refusals[0])]
