"""What a script can do: each operation is a value that says what it asks of which rollout, and how to ask it.

An operation is asked of one process of the script (`by`). It consists of questions, each of one rollout, and gives an
answer to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from tests.faults.entries import entry
from tests.faults.questions import LARGE, Answer, Asked, Begin, Disguise, Put, R, Remove, Single
from tokenstore.codec import dumps, loads, prepare
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.testing import PersistencePolicy
from tokenstore.testing.simulated_files import SimulatedDirectory

if TYPE_CHECKING:
    from tests.faults.process import Process


@attrs.frozen
class Batch:
    """A run of puts and begin_calls in one critical section."""

    questions: tuple[Put | Begin, ...]
    on: str = R
    by: int = 0

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return tuple((self.on, question) for question in self.questions)

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process; an answer to each question."""
        requests = [question.request(self.on) for question in self.questions]
        whole = process.answer(lambda: process.commit(self.on, requests), self.on)
        return [process.word(request.error, self.on) if request.error else whole for request in requests]


@attrs.frozen
class Alone:
    """One question that is asked alone."""

    question: Single
    on: str = R
    by: int = 0

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return ((self.on, self.question),)

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process."""
        return [process.answer(lambda: self.question.ask(process.journal(self.on)), self.on)]


@attrs.frozen
class Removal:
    """A batch of removals, with one directory sync after each step, as `tokenstore.removal` does it."""

    on: tuple[str, ...]
    delete: bool = False
    by: int = 0

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return tuple((rollout, Remove(self.delete)) for rollout in self.on)

    def perform(self, process: Process) -> list[Answer]:
        """Do the steps for all that have not failed."""
        answers: dict[str, Answer] = {}
        self._step(process, answers, lambda journal: journal.finish(journal.fencing()), first=True)
        self._step(process, answers, Journal.remove_records)
        if self.delete:
            self._step(process, answers, Journal.remove_fence)
            if process.config.prompt_storage == "shared":
                self._step(process, answers, Journal.remove_lock, synced=False)
        return [answers[rollout] for rollout in self.on]

    def _step(
        self, process: Process, answers: dict[str, Answer], step: Any, *, first: bool = False, synced: bool = True
    ) -> None:
        for rollout in self.on:
            if first or answers[rollout] != "unknown":
                answer = process.step(step, rollout)
                if first or answer is not None:
                    answers[rollout] = answer
        if synced and process.answer(process.root.sync, "") == "unknown":
            answers.update(dict.fromkeys(self.on, "unknown"))


@attrs.frozen
class Sync:
    """Sync the directory, as a batch of removals does between two steps."""

    by: int = 0
    asked: tuple[Asked, ...] = ()

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process."""
        process.answer(process.root.sync, "")
        return []


@attrs.frozen
class Idle:
    """A rollout's actor retires: it offers its index and goes; the next message starts a new one."""

    on: str = R
    by: int = 0
    asked: tuple[Asked, ...] = ()

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process."""
        process.answer(process.journal(self.on).offer_index, self.on)
        process.end_actor(self.on)
        return []


@attrs.frozen
class Reopen:
    """The process ends without a crash; its next operation finds a new one."""

    by: int = 0
    asked: tuple[Asked, ...] = ()

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process."""
        process.close()
        return []


@attrs.frozen
class Stray:
    """A line that somebody writes without asking: who is killed in the middle of it, or has lost the right to."""

    call: str
    keep: int | None = None
    """How many bytes of the line get in, counted from its end if negative; None for all."""
    on: str = R
    by: int = 0

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return ((self.on, Put(self.call)),)

    def write(self, directory: SimulatedDirectory) -> list[Answer]:
        """Write it past every journal; nobody gets an answer."""
        file = directory.open(Names.of(self.on).tokens, "create")
        size = file.stat().size
        if size and file.read(size - 1, 1) != b"\n":
            return ["unknown"]  # Even who writes without asking has looked where the last line ends.
        line = prepare(entry(self.on, self.call), max_entry_bytes=LARGE).line(checksum=True) + b"\n"
        file.write(size, line[: self.keep])
        return ["unknown"]


@attrs.frozen
class Foreign:
    """The state becomes one that the reference could have written, or an older reference, which kept no index."""

    older: bool = False
    on: str = R
    by: int = 0

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return ((self.on, Disguise()),)

    def write(self, directory: SimulatedDirectory) -> list[Answer]:
        """Replace it in durable steps."""
        name = Names.of(self.on).state
        if directory.stat(name) is None:
            return ["acked"]
        value = loads(directory.open(name, "read").read(0, LARGE))
        for key in ("tokenstore", *(("indexed_size", "entry_digests") if self.older else ())):
            value.pop(key, None)
        temporary, file = directory.create_temporary(TEMPORARY_PREFIX)
        file.write(0, dumps(value))
        file.sync()
        directory.replace(temporary, name)
        directory.sync()
        return ["acked"]


@attrs.frozen
class Interrupted:
    """An operation that does not end: its process is killed at a step, or the power is cut."""

    operation: Batch | Alone | Removal
    at: int
    """The step of the operation that does not take effect, from 1 on."""
    policy: PersistencePolicy | None = None
    """What survives the power cut; None for a kill, that all survives."""
    seed: int = 0

    @property
    def by(self) -> int:
        """The process that does it."""
        return self.operation.by

    @property
    def asked(self) -> tuple[Asked, ...]:
        """What is asked of which rollout."""
        return self.operation.asked

    def perform(self, process: Process) -> list[Answer]:
        """Ask it of a process."""
        return self.operation.perform(process)


Operation: TypeAlias = Batch | Alone | Removal | Sync | Idle | Reopen | Stray | Foreign | Interrupted
Script: TypeAlias = Sequence[Operation]
