"""The errors of the store, grouped by what the caller must do.

Every error is a `TokenStoreError`. The second parent is what callers of older stores catch. Each carries its facts as
attributes, builds its message itself, survives pickling, and never holds token arrays or output text.

| do what | errors |
|---|---|
| mend the call | `InvalidRolloutIdError`, `InvalidEntryError`, `StoreClosedError` |
| give the rollout up | `ConflictingEntryError`, `TokenCaptureFrozenError`, `TokenCaptureRetiredError` |
| retry the same call | `LockTimeoutError`, `DurabilityError`, `RemovalError`, `ShardUnavailableError` |
| mend the configuration, or mount the right disk | `ClusterMismatchError` |
| look at the disk | `CorruptRolloutError` |
| mark the call lost, mend the request | `MissingTokensError`, `EngineAnswerError` otherwise |
| mark the call lost, make a new one | `DisagreeingAnswerError`, `UnfinishedAnswerError`, `EngineFailureError` |
"""

from __future__ import annotations

import copy
import errno as errno_codes
import os
from collections.abc import Mapping
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException | None)


def _revive(cls: type[TokenStoreError], args: tuple[Any, ...], attributes: dict[str, Any]) -> TokenStoreError:
    """Rebuild a pickled error without running its constructor, which takes facts rather than a message."""
    error = cls.__new__(cls, *args)
    error.args = args
    if isinstance(error, OSError):
        OSError.__init__(error, *args)
    error.__dict__.update(attributes)
    return error


class TokenStoreError(Exception):
    """Root of every error that the store raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self.__dict__)


def copy_of(error: E) -> E:
    """The same error for one more who is to raise it; what is no error of ours is given as it is.

    One object raised by several would mix up their tracebacks, and kept, it would keep all that their frames hold.
    """
    if not isinstance(error, TokenStoreError):
        return error
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own


class InvalidRolloutIdError(TokenStoreError, ValueError):
    """A rollout id cannot name files. Mend the id; nothing was changed."""

    def __init__(self, rollout_id: object, problem: str) -> None:
        self.rollout_id = rollout_id if isinstance(rollout_id, str) else None
        self.problem = problem
        super().__init__(
            f"rollout id {_shown(rollout_id)}: {problem}; use 1 to 237 characters of A-Z a-z 0-9 . _ -, not dots alone"
        )


class InvalidEntryError(TokenStoreError, ValueError):
    """An entry cannot be stored. Mend the named field and put again; no byte was written."""

    def __init__(self, field: str, problem: str, *, model_call_id: str | None = None) -> None:
        self.field = field
        self.problem = problem
        self.model_call_id = model_call_id
        where = f"call {_shown(model_call_id)}, {field}" if model_call_id is not None else field
        super().__init__(f"{where}: {problem}")


class StoreClosedError(TokenStoreError, RuntimeError):
    """The store is closed, or belongs to the process that forked this one. Build a store of your own.

    Or nobody can wait for a store here: on a thread of a store's own, or while the interpreter shuts down. Call from
    another thread, or earlier; the message says which.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class ConflictingEntryError(TokenStoreError, ValueError):
    """A call was recorded twice with different facts, and the rollout is marked incomplete: do not train on it.

    Only a refusal repeated with another code leaves the rollout as it is: the first code stands.
    """

    def __init__(self, rollout_id: str, model_call_id: str, problem: str) -> None:
        self.rollout_id = rollout_id
        self.model_call_id = model_call_id
        self.problem = problem
        super().__init__(f"rollout {rollout_id}, call {_shown(model_call_id)}: {problem}")


class TokenCaptureFrozenError(TokenStoreError, RuntimeError):
    """The trainer has frozen the rollout: this write came too late and is not part of it. Do not retry."""

    state = "frozen"

    def __init__(self, rollout_id: str) -> None:
        self.rollout_id = rollout_id
        super().__init__(f"rollout {rollout_id} is already {self.state}")


class TokenCaptureRetiredError(TokenCaptureFrozenError):
    """The rollout was dropped or retired; only its fence is left. Do not retry; `delete` frees the id."""

    state = "retired"


class LockTimeoutError(TokenStoreError, TimeoutError):
    """Another process held the rollout's lock until the deadline. Nothing was changed; retry, or find the holder."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.seconds = seconds
        super().__init__(
            errno_codes.ETIMEDOUT, f"{path} stayed locked by another holder for {seconds:g} s; see who with 'fuser'"
        )


class DurabilityError(TokenStoreError, OSError):
    """The disk failed, so nothing was acknowledged. Free space or mend the disk, then retry the same call.

    Attributes:
        operation: what was being done, in a word or two.
        file: the name of the file inside the store's root.
    """

    def __init__(self, operation: str, file: str, cause: OSError) -> None:
        self.operation = operation
        self.file = file
        code = cause.errno or errno_codes.EIO
        reason = cause.strerror or os.strerror(code)
        super().__init__(code, f"{operation} of {file} failed: {reason}; nothing was acknowledged, retry is safe")


class RemovalError(TokenStoreError):
    """Some rollouts of a batch could not be removed. Retry those in `causes`; the others are done.

    Attributes:
        payload: `{"removed": [...], "absent": [...]}` of the finished ids.
        causes: the error of each id that failed.
    """

    def __init__(self, payload: Mapping[str, list[str]], causes: Mapping[str, Exception]) -> None:
        self.payload = dict(payload)
        self.causes = dict(causes)
        first = next(iter(self.causes.items()), ("", None))
        super().__init__(f"{len(self.causes)} rollouts were not removed, the first is {first[0]}: {first[1]}")


class CorruptRolloutError(TokenStoreError, ValueError):
    """A file holds what recovery must not touch. Nothing was written; do what the message says, then retry."""

    def __init__(self, file: str, problem: str) -> None:
        self.file = file
        self.problem = problem
        super().__init__(f"{file}: {problem}")


class ShardUnavailableError(TokenStoreError, TimeoutError):
    """A shard of a cluster store did not answer. Retry the same call, but not `delete` if its outcome is unknown.

    Attributes:
        store: name of the cluster store.
        shard: index of the shard; None if the store itself was not found.
        problem: what happened.
        outcome_unknown: whether the call may have been done; if not, nothing of it was.
    """

    def __init__(self, store: str, shard: int | None, problem: str, *, outcome_unknown: bool) -> None:
        self.store = store
        self.shard = shard
        self.problem = problem
        self.outcome_unknown = outcome_unknown
        outcome = "the outcome of the call is unknown" if outcome_unknown else "nothing of the call was done"
        where = store if shard is None else f"{store}, shard {shard}"
        super().__init__(errno_codes.ETIMEDOUT, f"cluster store {where}: {problem}; {outcome}")


class ClusterMismatchError(TokenStoreError, ValueError):
    """A directory or a store is not what a cluster store expects. Nothing was changed; mend what the message names.

    Attributes:
        where: the file, or the cluster store.
        field: what differs.
        found: what is there.
        expected: what should be.
    """

    def __init__(self, where: str, field: str, *, found: object, expected: object) -> None:
        self.where = where
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{where}: {field} is {found}, expected {expected}; nothing was changed")


class EngineAnswerError(TokenStoreError, ValueError):
    """An engine's answer is not of a form that can be trusted. Do not guess: mark the rollout incomplete.

    Attributes:
        engine: whose form was read, for example `vllm`.
        field: where in the answer, for example `choices[0].token_ids`.
        problem: what is wrong there, without text or tokens.
        model_call_id: the call.
        numbers: the counts that the message is about, by name.
    """

    def __init__(
        self,
        engine: str,
        field: str,
        problem: str,
        *,
        model_call_id: str | None = None,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        self.engine = engine
        self.field = field
        self.problem = problem
        self.model_call_id = model_call_id
        self.numbers = dict(numbers or {})
        where = engine if model_call_id is None else f"{engine}, call {_shown(model_call_id)}"
        super().__init__(f"{where}, {field}: {problem}")


class MissingTokensError(EngineAnswerError):
    """The answer lacks ids or log probabilities. Mend the request with the engine's `request_options`."""


class DisagreeingAnswerError(EngineAnswerError):
    """Two places of one answer contradict each other, so tokens were lost or mixed. Do not train on the rollout."""


class UnfinishedAnswerError(EngineAnswerError):
    """The answer was cut or aborted. Retry it as a new call; `accept_aborted=True` takes an abort that is whole."""


class EngineFailureError(EngineAnswerError):
    """The engine says that it failed. Retry as a new call; `refusal_from_response` tells whether it was a refusal.

    Attributes:
        status: the HTTP status that the engine names, None if it names none.
        code: the engine's error code, a word.
        generated: how many ids had come before it; 1 if text had come without any, or an answer with it.
    """

    def __init__(
        self, engine: str, *, status: int | None, code: str, generated: int, model_call_id: str | None = None
    ) -> None:
        self.status = status
        self.code = code
        self.generated = generated
        problem = f"the engine failed with status {status}, code {_shown(code)}, after {generated} generated ids"
        numbers = {"generated": generated} | ({} if status is None else {"status": status})
        super().__init__(engine, "error", problem, model_call_id=model_call_id, numbers=numbers)


def _shown(value: object) -> str:
    """Render an id for a message, cut to a length that a log line can bear."""
    text = repr(value) if isinstance(value, str) else f"of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]}...'"
