"""What can be asked of a rollout: each question is a value that knows how to ask a journal.

An answer is a plain word, what the journal returned, or `None` where there is nothing to say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from tests.faults.entries import entry
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Begin as BeginRequest
from tokenstore.journal.requests import Put as PutRequest
from tokenstore.journal.requests import Request
from tokenstore.records import TokenCaptureSnapshot

ROOT = Path("/root-of-the-store")
"""Where the store of the scripts is."""
LARGE = 1024 * 1024
"""Bytes that are more than any file of a script has."""
R, S = "r", "s"
"""The rollouts of the scripts."""
Word: TypeAlias = Literal["acked", "conflict", "frozen", "retired", "unknown"]
Answer: TypeAlias = Word | bool | TokenCaptureSnapshot | None


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

    def request(self, _: str) -> Request:
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
        return journal.finish(journal.dropping(*self.pair))


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
        if self.name == "fence":
            journal.finish(journal.fencing())
        else:
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
