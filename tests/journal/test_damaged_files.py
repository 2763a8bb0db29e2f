"""Damaged files: what is good is given, what is not is told and masked, and the rollout can always be opened."""

from __future__ import annotations

import json

import attrs
import pytest

from tests.journal.test_catching_up import ENTRIES, OURS, THEIRS, looked_at
from tests.journal.workbench import NAMES, ROOT, STATE, TOKENS, Process, calls, plant
from tests.samples import entry, foreign_line, line_of
from tokenstore.codec import KnownPrompt, encode_entry
from tokenstore.errors import ConflictingEntryError, CorruptRolloutError
from tokenstore.journal.lifecycle import State
from tokenstore.journal.statefile import parse_state, render_state
from tokenstore.testing import SimulatedDisk, agent_rollout


class TestDamage:
    """What a disk may have done to acknowledged bytes."""

    @pytest.mark.parametrize(
        "garbage", [b"{garbage", b"", b"\0\0\0", OURS[1][:30] + b"\0" * 9, OURS[1].replace(b"c1", b"d1")]
    )
    def test_a_damaged_line_masks_and_costs_no_other(self, garbage: bytes) -> None:
        """The range is a reason and counts once, the bytes stay, and good lines around it are given."""
        disk = plant(SimulatedDisk(), [OURS[0], garbage, OURS[2]])
        data = disk.read_file(TOKENS)

        snapshot = looked_at(disk)

        assert (calls(snapshot), snapshot.version) == (["c0", "c2"], 3)
        assert snapshot.incomplete_reasons == (f"damaged:{len(OURS[0]) + 1}+{len(garbage) + 1}",)
        assert disk.read_file(TOKENS) == data

    def test_a_damaged_call_can_be_put_again(self) -> None:
        """The caller's retry of a call whose line was damaged is stored, and the rollout stays masked."""
        disk = plant(SimulatedDisk(), [OURS[0], b"x" + OURS[1][1:], OURS[2]])
        Process(disk).put(ENTRIES[1])

        snapshot = looked_at(disk)
        assert calls(snapshot) == ["c0", "c2", "c1"]
        assert (snapshot.version, len(snapshot.incomplete_reasons)) == (4, 1)

    def test_a_changed_line_is_not_delivered(self) -> None:
        """A foreign line that reads well but is not what the index knows is damage, not an entry."""
        disk = plant(SimulatedDisk(), THEIRS[:3])
        Process(disk).refuse("x")
        disk.write_file(TOKENS, disk.read_file(TOKENS).replace(b'"prompt_token_ids":[1]', b'"prompt_token_ids":[8]'))

        snapshot = looked_at(disk, twice=False)

        assert calls(snapshot) == ["c0", "c2"]
        assert snapshot.incomplete_reasons == (f"damaged:{len(THEIRS[0]) + 1}+{len(THEIRS[1]) + 1}",)

    def test_an_unacceptable_line_masks_without_counting(self) -> None:
        """A well-formed line that is no entry of this rollout is a reason, and no call."""
        other = foreign_line(encode_entry(entry(rollout_id="other")))
        disk = plant(SimulatedDisk(), [OURS[0], other, OURS[2]])

        snapshot = looked_at(disk)

        assert (calls(snapshot), snapshot.version) == (["c0", "c2"], 2)
        assert snapshot.incomplete_reasons == (f"unacceptable:{len(OURS[0]) + 1}",)

    def test_a_newer_line_stops_everything(self) -> None:
        """A line of a newer library is an error for readers and writers, and nothing is written."""
        newer = foreign_line({**encode_entry(entry("new")), "schema_version": 99})
        disk = plant(SimulatedDisk(), [OURS[0], newer], end=b"{fragment")
        files = disk.files(ROOT)
        process = Process(disk)

        for do in (
            process.peek,
            process.freeze,
            process.mark,
            lambda: process.put(ENTRIES[2]),
            lambda: process.begin("x"),
        ):
            with pytest.raises(CorruptRolloutError, match="schema_version 99 is newer"):
                do()
        assert {**disk.files(ROOT), NAMES.lock: b""} == {**files, NAMES.lock: b""}
        assert process.delete() is True
        assert disk.files(ROOT) == {}

    def test_a_lost_base_takes_what_hangs_on_it(self) -> None:
        """Lines whose base is not in the file are left out, masked, and their bytes kept."""
        disk = SimulatedDisk()
        made = agent_rollout("r", turns=4, first_prompt=300)
        Process(disk).put(*made)
        lines = disk.read_file(TOKENS).splitlines()
        disk = plant(SimulatedDisk(), [lines[0], lines[2], lines[3]])

        snapshot = looked_at(disk)

        assert list(snapshot.entries) == made[:1]
        assert snapshot.incomplete_reasons == tuple(f"lost_base:{call.model_call_id}" for call in made[2:])

    def test_a_base_with_other_ids_is_none(self) -> None:
        """A line of the right name whose ids are others is no base: the child is left out."""
        ids = list(range(300))
        wrong = KnownPrompt("c0", b"".join(number.to_bytes(4, "little") for number in ids), 12345)
        child = line_of(entry("child", prompt_token_ids=[*ids, 1]), base=wrong)
        base = entry("c0", prompt_token_ids=ids[:-2], generation_token_ids=ids[-2:])
        disk = plant(SimulatedDisk(), [line_of(base), child, OURS[1]])

        snapshot = Process(disk).freeze()

        assert calls(snapshot) == ["c0", "c1"]
        assert snapshot.incomplete_reasons == ("lost_base:child",)
        assert Process(disk).freeze() == snapshot

    def test_a_retry_of_a_call_whose_base_is_lost_never_passes_for_stored(self) -> None:
        """What cannot be compared is not taken for the same: the caller is told, and the rollout is masked."""
        ids = list(range(300))
        wrong = KnownPrompt("c0", b"".join(number.to_bytes(4, "little") for number in ids), 12345)
        child = entry("child", prompt_token_ids=[*ids, 1])
        base = entry("c0", prompt_token_ids=ids[:-2], generation_token_ids=ids[-2:])
        disk = plant(SimulatedDisk(), [line_of(base), line_of(child, base=wrong)])

        with pytest.raises(ConflictingEntryError):
            Process(disk).put(child)
        assert Process(disk).freeze().incomplete


class TestStates:
    """What a state file may say."""

    @pytest.mark.parametrize("data", [b"", b"\0" * 64, b"\x93\xff garbage", b'{"frozen":tr'])
    def test_a_lost_state_is_rebuilt_and_masks(self, data: bytes) -> None:
        """Entries are all there, the rollout works on and is masked, and the state is whole again."""
        disk = plant(SimulatedDisk(), OURS[:2], state=data)

        snapshot = looked_at(disk)
        Process(disk).put(ENTRIES[2])

        assert (calls(snapshot), snapshot.version, snapshot.frozen) == (["c0", "c1"], 2, False)
        assert snapshot.incomplete_reasons == ("state_lost",)
        assert parse_state(disk.read_file(STATE)).damage == ("state_lost",)
        assert calls(Process(disk).freeze()) == ["c0", "c1", "c2"]

    def test_no_state_with_every_intent_answered_is_complete(self) -> None:
        """Without a state the lines and intents are enough."""
        snapshot = Process(plant(SimulatedDisk(), OURS[:2], intents=b"c0\nc1\n")).freeze()

        assert (calls(snapshot), snapshot.version, snapshot.incomplete) == (["c0", "c1"], 3, False)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_an_older_reference_covers_all_lines(self, frozen: bool) -> None:
        """A state without an index covers the whole file, and its version stays."""
        state = json.dumps({"frozen": frozen, "snapshot_id": "s" * frozen, "version": 7, "incomplete": False}).encode()
        disk = plant(SimulatedDisk(), OURS[:2], state=state)

        snapshot = looked_at(disk)

        assert (snapshot.version, snapshot.frozen, calls(snapshot)) == (7, frozen, ["c0", "c1"])
        assert parse_state(disk.read_file(STATE)).indexed_size == len(disk.read_file(TOKENS))
        assert parse_state(disk.read_file(STATE)).version == 7

    def test_bytes_behind_the_seal_are_never_delivered(self) -> None:
        """A late write of a process that had lost its right to write makes no difference to a frozen rollout."""
        disk = SimulatedDisk()
        Process(disk).put(*ENTRIES[:2])
        snapshot = Process(disk).freeze()
        for late in (OURS[2] + b"\n", b"{garbage\n", b"\0\0\0", b"{frag"):
            disk.write_file(TOKENS, disk.read_file(TOKENS) + late)
            assert Process(disk).peek() == snapshot
            assert Process(disk).freeze() == snapshot
        with pytest.raises(RuntimeError, match="already frozen"):
            Process(disk).put(ENTRIES[2])

    def test_damage_behind_our_seal_masks_and_writes_nothing(self) -> None:
        """A sealed line that was changed since is not delivered, the answer is masked, and the files stay."""
        disk = SimulatedDisk()
        Process(disk).put(*ENTRIES[:2])
        sealed = Process(disk).freeze()
        disk.write_file(TOKENS, disk.read_file(TOKENS).replace(b"hello", b"hallo", 1))
        files = disk.files(ROOT)

        snapshot = Process(disk).freeze()

        assert calls(snapshot) == ["c1"]
        assert (snapshot.version, snapshot.snapshot_id) == (sealed.version, sealed.snapshot_id)
        assert snapshot.incomplete
        assert disk.files(ROOT) == files

    def test_a_mark_after_freeze_moves_the_version_alone(self) -> None:
        """The seal's id and lines stay; the reason and the version are new; a drop with the old pair is false."""
        disk = SimulatedDisk()
        Process(disk).put(ENTRIES[0])
        before = Process(disk).freeze()
        Process(disk).mark("c0")
        after = Process(disk).freeze()

        assert after == attrs.evolve(
            before, incomplete=True, incomplete_reasons=("marked:c0",), version=before.version + 1
        )
        assert Process(disk).drop(before.snapshot_id, before.version) is False
        assert Process(disk).drop(after.snapshot_id, after.version) is True

    def test_a_marker_of_another_library_is_folded_in(self) -> None:
        """Lines that another process adds to the marker count, each call once, also of a frozen rollout."""
        disk = SimulatedDisk()
        Process(disk).put(ENTRIES[0])
        frozen = Process(disk).freeze()
        disk.write_file(ROOT / NAMES.marker, b"a\nb\na\n\n\xff\n")

        snapshot = looked_at(disk)

        assert snapshot.version == frozen.version + 3
        assert snapshot.incomplete_reasons == ("marked:a", "marked:b", "marked:")
        assert Process(disk).drop(frozen.snapshot_id, frozen.version) is False

    def test_an_empty_marker_is_a_reason_without_a_name(self) -> None:
        """The marker's existence means incomplete."""
        snapshot = looked_at(plant(SimulatedDisk(), OURS[:1], marker=b""))

        assert (snapshot.incomplete_reasons, snapshot.version) == (("flagged",), 1)
        assert Process(plant(SimulatedDisk(), OURS[:1], marker=b"")).journal.is_incomplete() is True

    def test_unknown_keys_of_the_state_stay(self) -> None:
        """Keys of other writers survive every write of the state."""
        state = render_state(State(unknown={"theirs": {"a": 1}}))
        disk = plant(SimulatedDisk(), OURS[:1], state=state)
        process = Process(disk)
        process.mark()
        process.refuse("x")
        process.freeze()
        assert json.loads(disk.read_file(STATE))["theirs"] == {"a": 1}
        process.retire()

        assert json.loads(disk.read_file(STATE))["theirs"] == {"a": 1}


def test_intents_that_are_no_ids_are_lost_calls() -> None:
    """Torn or unreadable lines of the intents never stop a freeze, and mask it at worst."""
    disk = plant(SimulatedDisk(), OURS[:1], intents=b"c0\n\xff\xfe\n" + "é".encode()[:1])
    assert Process(disk).peek().open_calls == ("\\ufffd\\ufffd",)
    snapshot = Process(disk).freeze()

    assert snapshot.incomplete_reasons == ("lost_call:\\ufffd\\ufffd",)
