"""A batch is one append and one sync, and its prompts are shared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.journal.workbench import INTENTS, NAMES, ROOT, TOKENS, Process, RecordingDisk, calls
from tests.samples import entry, line_of
from tokenstore.errors import ConflictingEntryError, DurabilityError, InvalidEntryError
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk, agent_rollout

AGENT = agent_rollout("r", turns=6, first_prompt=400)


def stored(disk: SimulatedDisk) -> list[dict[str, Any]]:
    """Read the lines of a rollout as JSON."""
    return [json.loads(line) for line in disk.read_file(TOKENS).splitlines()]


class TestBatches:
    """What one commit costs."""

    def test_many_puts_are_one_write_and_one_sync(self) -> None:
        """A batch of puts and begins appends once to each file and syncs each once."""
        disk = RecordingDisk(SimulatedDisk())
        process = Process(disk)
        process.begin("first")
        process.put(entry("first"))
        disk.take()
        process.outcomes(*[entry(f"c{number}") for number in range(100)], *[f"c{number}" for number in range(50, 150)])

        assert disk.take_calls() == [
            f"write {NAMES.tokens}",
            f"datasync {NAMES.tokens}",
            f"write {NAMES.intents}",
            f"datasync {NAMES.intents}",
        ]
        assert process.peek().open_calls == tuple(f"c{number}" for number in range(100, 150))

    def test_the_directory_is_synced_before_the_first_ack(self) -> None:
        """The first put and the first begin of a rollout sync the names of the files that they made."""
        for do in (lambda process: process.put(entry("c0")), lambda process: process.begin("c0")):
            disk = RecordingDisk(SimulatedDisk())
            do(Process(disk))  # type: ignore[no-untyped-call]
            assert disk.take_calls()[-1] == "sync directory"

    def test_counters_tell_what_was_done(self) -> None:
        """Entries, batches, conflicts and syncs are counted, no-ops and refused entries are not entries."""
        process = Process(SimulatedDisk())
        process.outcomes(entry("c0"), entry("c0"), entry("bad", prompt_token_ids=[-1]))
        process.outcomes(entry("c0", prompt_token_ids=[9]))

        counters = process.root.counters
        assert (counters.puts, counters.batches, counters.conflicts, counters.poisoned) == (1, 2, 1, 0)

    def test_an_answered_call_is_not_begun_again(self) -> None:
        """A begin behind the put of its call, in one batch or later, writes nothing."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.outcomes(entry("c0"), "c0", "c1", "c1", entry("c1"))
        process.begin("c0", "c1")

        assert disk.read_file(INTENTS) == b"c1\n"
        assert process.peek().open_calls == ()

    def test_a_failed_sync_fails_the_whole_batch(self) -> None:
        """If the lines cannot be made durable, nothing of the batch is there; the retry stores each once."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        process = Process(disk)
        process.put(entry("c0"))
        disk.fault = Fault(call="datasync")

        with pytest.raises(DurabilityError):
            process.put(entry("c1"), entry("c2"))
        assert calls(process.peek()) == ["c0"]
        process.put(entry("c1"), entry("c2"))
        assert calls(Process(simulated).freeze()) == ["c0", "c1", "c2"]

    @pytest.mark.parametrize("fault", [Fault(call="write", name_suffix=NAMES.marker), Fault(call="replace")])
    def test_a_conflict_that_cannot_be_marked_is_not_answered_as_one(self, fault: Fault) -> None:
        """If the mark of a conflict cannot be made durable, that put alone fails; the next one marks and tells."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        process = Process(disk)
        process.put(entry("c0"))
        disk.fault = fault

        outcomes = process.outcomes(entry("c0", prompt_token_ids=[9]), entry("c1"))
        assert [type(outcome) for outcome in outcomes] == [DurabilityError, type(None)]
        with pytest.raises(ConflictingEntryError):
            process.put(entry("c0", prompt_token_ids=[9]))
        snapshot = Process(simulated).freeze()
        assert (calls(snapshot), snapshot.incomplete_reasons) == (["c0", "c1"], ("conflict:c0",))
        assert snapshot.version == 4

    def test_a_poisoned_journal_answers_nothing(self) -> None:
        """After a sync that could not be undone every method raises the failure; a new journal goes on."""
        simulated = SimulatedDisk()
        disk = FailingDisk(FailingDisk(simulated, Fault(call="datasync")), Fault(call="truncate"))
        process = Process(disk)
        with pytest.raises(DurabilityError) as failure:
            process.put(entry("c0"))
        assert process.journal.poisoned

        for do in (process.peek, process.freeze, process.mark, lambda: process.put(entry("c0"))):
            with pytest.raises(DurabilityError) as again:
                do()
            assert str(again.value) == str(failure.value)
        process.journal.offer_index()
        process.journal.close()
        Process(disk).put(entry("c0"))
        assert calls(Process(simulated).freeze()) == ["c0"]


class TestSharing:
    """What a line holds of its prompt."""

    def test_prompts_are_shared_within_and_between_batches(self) -> None:
        """Each line names the call before, in the same batch or an earlier one, and holds only the rest."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.put(*AGENT[:3])
        process.put(*AGENT[3:])

        lines = stored(disk)
        assert "prompt_token_ids" in lines[0]
        assert [line["prompt_base"]["model_call_id"] for line in lines[1:]] == [
            call.model_call_id for call in AGENT[:-1]
        ]
        assert [len(line["prompt_rest"]) for line in lines[1:]] == [300] * 5
        assert list(process.freeze().entries) == AGENT

    def test_after_a_restart_a_prompt_is_whole_again(self) -> None:
        """A process that has read nothing of the earlier calls writes a whole prompt, and shares with it from there."""
        disk = SimulatedDisk()
        Process(disk).put(*AGENT[:2])
        process = Process(disk)
        process.put(*AGENT[2:4])

        assert ["prompt_base" in line for line in stored(disk)] == [False, True, False, True]
        assert list(process.freeze().entries) == AGENT[:4]

    def test_full_lines_are_whole(self) -> None:
        """With full prompts every line is the reference's; a process set to share goes on behind it, and back."""
        disk = SimulatedDisk()
        Process(disk, prompt_storage="full").put(*AGENT[:2])
        Process(disk).put(*AGENT[2:4])
        Process(disk, prompt_storage="full").put(*AGENT[4:])

        lines = stored(disk)
        assert ["crc32" in line for line in lines] == [False, False, True, True, False, False]
        assert ["prompt_base" in line for line in lines] == [False, False, False, True, False, False]
        for storage in ("full", "shared"):
            assert list(Process(disk, prompt_storage=storage).peek().entries) == AGENT

    def test_a_base_that_was_cut_back_is_never_named(self) -> None:
        """After a failed batch its calls are no bases: the next line is whole, and reads."""
        simulated = SimulatedDisk()
        disk = FailingDisk(simulated)
        process = Process(disk)
        process.put(entry("c0"))
        for call in ("write", "datasync"):
            disk.fault = Fault(call=call)
            with pytest.raises(DurabilityError):
                process.put(AGENT[0])
        process.put(AGENT[1])

        assert "prompt_base" not in stored(simulated)[1]
        assert list(Process(simulated).freeze().entries) == [entry("c0"), AGENT[1]]

    def test_a_base_that_another_process_took_away_is_never_named(self) -> None:
        """If the rollout was deleted and made anew elsewhere, its old calls are no bases."""
        disk = SimulatedDisk()
        process = Process(disk)
        process.put(AGENT[0])
        other = Process(disk)
        other.delete()
        other.put(entry("new"))
        process.put(AGENT[1])

        assert "prompt_base" not in stored(disk)[1]
        assert list(process.freeze().entries) == [entry("new"), AGENT[1]]

    def test_the_same_call_is_recognised_however_it_is_stored(self) -> None:
        """A retry of a call that is stored as a base and a rest is a no-op, also for a process that reads it first."""
        disk = SimulatedDisk()
        Process(disk).put(*AGENT)
        size = len(disk.read_file(TOKENS))
        for storage in ("shared", "full"):
            process = Process(disk, prompt_storage=storage)
            process.put(*AGENT, *AGENT[::-1])

        assert len(disk.read_file(TOKENS)) == size


def test_a_line_of_ours_is_the_codecs() -> None:
    """What a commit appends is the line that the codec makes, and its newline."""
    disk = SimulatedDisk()
    Process(disk).put(entry("c0"))

    assert disk.read_file(TOKENS) == line_of(entry("c0")) + b"\n"


def test_a_refused_entry_leaves_its_batch() -> None:
    """One bad entry of a batch is answered alone; the others are stored, and so is an earlier one of its call."""
    process = Process(SimulatedDisk())
    bad = entry("bad", prompt_token_ids=[-1])

    outcomes = process.outcomes(entry("c0"), bad, "begun", entry("c0", prompt_token_ids=[5]), entry("c0"), entry("c1"))

    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        InvalidEntryError,
        type(None),
        ConflictingEntryError,
        type(None),
        type(None),
    ]
    snapshot = process.peek()
    assert (calls(snapshot), snapshot.open_calls) == (["c0", "c1"], ("begun",))
    assert (snapshot.version, snapshot.incomplete_reasons) == (3, ("conflict:c0",))


def test_a_batch_of_bad_entries_touches_nothing() -> None:
    """If nothing of a batch can be stored, no file is made."""
    disk = SimulatedDisk()
    process = Process(disk, max_entry_bytes=300)

    outcomes = process.outcomes(entry("a", prompt_token_ids=[-1]), entry("b", generation_log_probs=[None, 0.0]))

    assert [type(outcome) for outcome in outcomes] == [InvalidEntryError] * 2
    assert disk.files(ROOT) == {}


def test_what_others_were_allowed_to_write_is_read() -> None:
    """A process with a lower limit reads the longer lines of one with a higher, and writes nothing about them."""
    disk = SimulatedDisk()
    long = entry("long", model="x" * 1000)
    Process(disk).put(long)
    strict = Process(disk, max_entry_bytes=500)
    strict.begin("c1")
    snapshot = strict.peek()

    assert (snapshot.entries, snapshot.version, snapshot.incomplete) == ((long,), 1, False)


def test_a_line_too_long_is_refused_before_a_byte_is_written() -> None:
    """Whether a line is too long is known when its base is chosen; the rest of the batch goes on."""
    disk = SimulatedDisk()
    process = Process(disk, max_entry_bytes=len(line_of(entry("c0"))))
    outcomes = process.outcomes(entry("long", model="x" * 1000), entry("c0"))

    assert [type(outcome) for outcome in outcomes] == [InvalidEntryError, type(None)]
    assert disk.read_file(TOKENS) == line_of(entry("c0")) + b"\n"
