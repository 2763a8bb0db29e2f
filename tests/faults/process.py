"""One process of a script: a root of its own on the disk, an actor's journal for each rollout, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.faults.ledger import WrongError
from tests.faults.questions import ROOT, Answer, Word
from tokenstore.config import StoreConfig
from tokenstore.errors import (
    ConflictingEntryError,
    DurabilityError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenStoreError,
)
from tokenstore.journal.disk import Disk
from tokenstore.journal.journal import Journal
from tokenstore.journal.requests import Request
from tokenstore.journal.root import Root

_WORDS: tuple[tuple[type[TokenStoreError], Word], ...] = (
    (ConflictingEntryError, "conflict"),
    (TokenCaptureRetiredError, "retired"),
    (TokenCaptureFrozenError, "frozen"),
    (DurabilityError, "unknown"),
)


class Process:
    """A process that uses the store.

    Args:
        disk: Its disk, perhaps a failing one.
        config: Its configuration.
        failures: What has failed so far, so that an error without a failure is seen.
    """

    def __init__(self, disk: Disk, config: StoreConfig, failures: Sequence[str] = ()) -> None:
        self.config = config
        self.root = Root(disk.open_root(ROOT), config)
        self._failures = failures
        self._seen = len(failures)
        self._journals: dict[str, Journal] = {}

    def journal(self, rollout: str) -> Journal:
        """The journal of a rollout's actor; a new one if the last was poisoned."""
        if rollout in self._journals and self._journals[rollout].poisoned:
            self.end_actor(rollout)
        if rollout not in self._journals:
            self._journals[rollout] = Journal(self.root, rollout)
        return self._journals[rollout]

    def commit(self, rollout: str, requests: Sequence[Request]) -> Answer:
        """Ask for a batch."""
        journal = self.journal(rollout)
        journal.finish(journal.committing(requests))
        return "acked"

    def step(self, step: Callable[[Journal], Answer], rollout: str) -> Answer:
        """Ask for a step of a removal."""
        return self.answer(lambda: step(self.journal(rollout)), rollout)

    def answer(self, ask: Callable[[], Answer], rollout: str) -> Answer:
        """Ask, and turn an error that the contract knows into a word."""
        self._seen = len(self._failures)
        try:
            return ask()
        except TokenStoreError as error:
            return self.word(error, rollout)

    def word(self, error: TokenStoreError, rollout: str) -> Answer:
        """The word for an error; nothing is unknown unless the disk failed now, at this rollout's files.

        Raises:
            WrongError: The error is none that may be given.
        """
        word = next((word for kind, word in _WORDS if isinstance(error, kind)), None)
        if word is None:
            raise WrongError(f"{rollout}: {type(error).__name__}: {error}") from error
        if word == "unknown" and not any(_concerns(failure, rollout) for failure in self._failures[self._seen :]):
            raise WrongError(f"{rollout}: {error}, but no call failed") from error
        return word

    def end_actor(self, rollout: str) -> None:
        """Let an actor's journal go."""
        self._journals.pop(rollout).close()

    def close(self) -> None:
        """End, and give all descriptors away."""
        for rollout in list(self._journals):
            self.end_actor(rollout)
        self.root.directory.close()


def _concerns(failure: str, rollout: str) -> bool:
    """Whether a failed call was of a rollout's files, of the directory, or of a state on its way."""
    _, _, name = failure.partition(" ")
    return not rollout or not name or name.startswith((f"{rollout}.", "."))
