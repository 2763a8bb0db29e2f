"""What a script can do: each operation is a value that says what it asks of which rollout, and how to ask it.

An operation is asked of one process of the script (`by`). It consists of questions, each of one rollout, and gives an
answer to each: a plain word (`"acked"`, `"conflict"`, `"frozen"`, `"retired"`, `"unknown"`), what the journal returned,
or `None` where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from tests.faults.entries import entry
from tokenstore.codec import dumps, loads, prepare
from tokenstore.journal.journal import Journal
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.journal.requests import Begin as BeginRequest
from tokenstore.journal.requests import Put as PutRequest
from tokenstore.journal.requests import Request
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import PersistencePolicy
from tokenstore.testing.simulated_files import SimulatedDirectory

if TYPE_CHECKING:
    from tests.faults.process import Process

ROOT = Path("/root-of-the-store")
"""Where the store of the scripts is."""
LARGE = 1024 * 1024
"""Bytes that are more than any file of a script has."""
R, S = "r", "s"
"""The rollouts of the scripts."""
Word: TypeAlias = Literal["acked", "conflict", "frozen", "retired", "unknown"]
Answer: TypeAlias = Word | bool | TokenCaptureSnapshot | None


# ---------------------------------------------------------------------------------------------- questions


@attrs.frozen
class Put:
    """Store a call's entry."""

    call: str
    variant: int = 0

    def request(self, rollout: str) -> Request:
        """Ask a journal for it."""
        return PutRequest(entry(rollout, self.call, self.variant))


@attrs.frozen
class Begin:
    """Record that a call is about to be sent."""

    call: str

    def request(self, rollout: str) -> Request:
        """Ask a journal for it."""
        return BeginRequest(self.call)


@attrs.frozen
class Refuse:
    """Record that the engine refused a call."""

    call: str
    code: str | None = "code"

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        journal.refuse(self.call, self.code, 1.5)
        return "acked"


@attrs.frozen
class Mark:
    """Record that a call was lost."""

    call: str = ""
    only_if_open: bool = False

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        journal.mark(self.call, only_if_open=self.only_if_open)
        return "acked"


@attrs.frozen
class Freeze:
    """End writing."""

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        return journal.freeze()


@attrs.frozen
class Peek:
    """Look without changing anything."""

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        return journal.peek()


@attrs.frozen
class Scan:
    """Read the entries one by one; the answer is a snapshot that holds them and nothing else of worth."""

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        cursor = journal.open_cursor()
        found: list[Any] = []
        while part := journal.read_slice(cursor):
            found += part
        return attrs.evolve(journal.peek(), entries=tuple(found))


@attrs.frozen
class Drop:
    """Remove a frozen rollout if it is still as a snapshot says; the snapshot is the last one taken, or an older."""

    age: int = 0
    """How many snapshots of the rollout were taken since."""
    pair: tuple[str, int] = attrs.field(default=("none", 0), hash=False)  # it is random, see Seal
    """Its id and version, filled in when the question is asked."""

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        return journal.drop(*self.pair)


@attrs.frozen
class Remove:
    """Remove a rollout whatever its state; the answer tells whether there were records."""

    delete: bool = False


@attrs.frozen
class RemovalStep:
    """One step of a removal, so that another process may come between two of them."""

    name: Literal["fence", "remove_records", "remove_fence", "remove_lock"]

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        getattr(journal, self.name)()
        return "acked"


@attrs.frozen
class Disguise:
    """Make the state one that this library has not written: it says less of what its version counts."""


@attrs.frozen
class Recover:
    """Do what every operation begins with, and nothing else."""

    def ask(self, journal: Journal) -> Answer:
        """Ask a journal for it."""
        journal.recover()
        return "acked"


Single: TypeAlias = Refuse | Mark | Freeze | Peek | Scan | Drop | RemovalStep | Recover
Question: TypeAlias = Put | Begin | Single | Remove | Disguise
Asked: TypeAlias = tuple[str, Question]
"""A rollout and what is asked of it."""

# ---------------------------------------------------------------------------------------------- operations


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
        self._step(process, answers, Journal.fence, first=True)
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
                answer = process.answer(lambda of=rollout: step(process.journal(of)), rollout)
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
        line = prepare(entry(self.on, self.call), max_entry_bytes=LARGE).line(checksum=True) + b"\n"
        file.write(file.stat().size, line[: self.keep])
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
