"""Errors carry their facts, travel between processes, and say what to do without showing tokens or text."""

from __future__ import annotations

import copy
import errno
import pickle
from typing import Any

import pytest

from tokenstore import errors
from tokenstore.errors import (
    ClusterMismatchError,
    ConflictingEntryError,
    CorruptRolloutError,
    DisagreeingAnswerError,
    DurabilityError,
    EngineAnswerError,
    EngineFailureError,
    InvalidEntryError,
    InvalidRolloutIdError,
    LockTimeoutError,
    MissingTokensError,
    RemovalError,
    ShardUnavailableError,
    StoreClosedError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenStoreError,
    UnfinishedAnswerError,
)

NO_SPACE = OSError(errno.ENOSPC, "No space left on device", "/secret/path")

EXAMPLES: dict[str, tuple[TokenStoreError, type[Exception], str, dict[str, Any]]] = {
    "root": (TokenStoreError("it failed"), Exception, "it failed", {}),
    "rollout id": (
        InvalidRolloutIdError("a/b", "it holds other characters"),
        ValueError,
        "rollout id 'a/b': it holds other characters; use 1 to 237 characters of A-Z a-z 0-9 . _ -, not dots alone",
        {"rollout_id": "a/b", "problem": "it holds other characters"},
    ),
    "no rollout id": (
        InvalidRolloutIdError(7, "it is not a string"),
        ValueError,
        "rollout id of type int: it is not a string; use 1 to 237 characters of A-Z a-z 0-9 . _ -, not dots alone",
        {"rollout_id": None, "problem": "it is not a string"},
    ),
    "entry": (
        InvalidEntryError("model", "is None, it must be a string"),
        ValueError,
        "model: is None, it must be a string",
        {"field": "model", "problem": "is None, it must be a string", "model_call_id": None},
    ),
    "entry of a call": (
        InvalidEntryError("generation_log_probs", "position 3 holds None", model_call_id="c0"),
        ValueError,
        "call 'c0', generation_log_probs: position 3 holds None",
        {"field": "generation_log_probs", "problem": "position 3 holds None", "model_call_id": "c0"},
    ),
    "closed": (StoreClosedError("the store is closed"), RuntimeError, "the store is closed", {}),
    "conflict": (
        ConflictingEntryError("r", "c0", "is stored already with other content"),
        ValueError,
        "rollout r, call 'c0': is stored already with other content",
        {"rollout_id": "r", "model_call_id": "c0", "problem": "is stored already with other content"},
    ),
    "frozen": (
        TokenCaptureFrozenError("r"),
        RuntimeError,
        "rollout r is already frozen",
        {"rollout_id": "r", "state": "frozen"},
    ),
    "retired": (
        TokenCaptureRetiredError("r"),
        TokenCaptureFrozenError,
        "rollout r is already retired",
        {"rollout_id": "r", "state": "retired"},
    ),
    "lock": (
        LockTimeoutError("/root/r.tokens.lock", 30.0),
        TimeoutError,
        "[Errno 110] /root/r.tokens.lock stayed locked by another holder for 30 s; see who with 'fuser'",
        {"path": "/root/r.tokens.lock", "seconds": 30.0, "errno": errno.ETIMEDOUT},
    ),
    "durability": (
        DurabilityError("write", "r.tokens.jsonl", NO_SPACE),
        OSError,
        "[Errno 28] write of r.tokens.jsonl failed: No space left on device; nothing was acknowledged, retry is safe",
        {"operation": "write", "file": "r.tokens.jsonl", "errno": errno.ENOSPC, "filename": None},
    ),
    "durability without a code": (
        DurabilityError("sync", "r.tokens.jsonl", OSError("odd")),
        OSError,
        "[Errno 5] sync of r.tokens.jsonl failed: Input/output error; nothing was acknowledged, retry is safe",
        {"operation": "sync", "file": "r.tokens.jsonl", "errno": errno.EIO},
    ),
    "removal": (
        RemovalError({"removed": ["a"], "absent": ["b"]}, {"c": CorruptRolloutError("a", "damaged")}),
        TokenStoreError,
        "1 rollouts were not removed, the first is c: a: damaged",
        {"payload": {"removed": ["a"], "absent": ["b"]}},
    ),
    "corrupt": (
        CorruptRolloutError("r.tokens.jsonl", "the line at byte 0 is of a newer schema"),
        ValueError,
        "r.tokens.jsonl: the line at byte 0 is of a newer schema",
        {"file": "r.tokens.jsonl", "problem": "the line at byte 0 is of a newer schema"},
    ),
    "shard": (
        ShardUnavailableError("runs", 3, "no answer within 120 s", outcome_unknown=True),
        TimeoutError,
        "[Errno 110] cluster store runs, shard 3: no answer within 120 s; the outcome of the call is unknown",
        {"store": "runs", "shard": 3, "outcome_unknown": True, "errno": errno.ETIMEDOUT},
    ),
    "cluster": (
        ShardUnavailableError("runs", None, "there is no such store", outcome_unknown=False),
        OSError,
        "[Errno 110] cluster store runs: there is no such store; nothing of the call was done",
        {"shard": None, "outcome_unknown": False},
    ),
    "another shard's directory": (
        ClusterMismatchError("/data/shard.json", "count", found=4, expected=8),
        ValueError,
        "/data/shard.json: count is 4, expected 8; nothing was changed",
        {"where": "/data/shard.json", "field": "count", "found": 4, "expected": 8},
    ),
    "answer": (
        EngineAnswerError("vllm", "choices", "are 2, one is needed", model_call_id="c0", numbers={"choices": 2}),
        ValueError,
        "vllm, call 'c0', choices: are 2, one is needed",
        {"engine": "vllm", "field": "choices", "model_call_id": "c0", "numbers": {"choices": 2}},
    ),
    "answer without tokens": (
        MissingTokensError("vllm", "prompt_token_ids", "are 0"),
        EngineAnswerError,
        "vllm, prompt_token_ids: are 0",
        {"problem": "are 0", "model_call_id": None, "numbers": {}},
    ),
    "answer against itself": (
        DisagreeingAnswerError("sglang", "usage", "is 4, but there are 3", numbers={"counted": 4, "found": 3}),
        EngineAnswerError,
        "sglang, usage: is 4, but there are 3",
        {"numbers": {"counted": 4, "found": 3}},
    ),
    "cut answer": (
        UnfinishedAnswerError("vllm", "finish_reason", "is not there"),
        EngineAnswerError,
        "vllm, finish_reason: is not there",
        {"engine": "vllm", "field": "finish_reason"},
    ),
    "failed engine": (
        EngineFailureError("vllm", status=500, code="InternalServerError", generated=3, model_call_id="c0"),
        EngineAnswerError,
        "vllm, call 'c0', error: the engine failed with status 500, code 'InternalServerError', after 3 generated ids",
        {"status": 500, "code": "InternalServerError", "generated": 3, "numbers": {"generated": 3, "status": 500}},
    ),
    "failed engine without a status": (
        EngineFailureError("vllm", status=None, code="error", generated=0),
        ValueError,
        "vllm, error: the engine failed with status None, code 'error', after 0 generated ids",
        {"status": None, "numbers": {"generated": 0}},
    ),
}
"""An error of each kind: its second parent, its message and its facts."""


@pytest.mark.parametrize(("error", "parent", "message", "facts"), EXAMPLES.values(), ids=EXAMPLES)
def test_says_what_happened(
    error: TokenStoreError, parent: type[Exception], message: str, facts: dict[str, Any]
) -> None:
    """An error is a TokenStoreError and what callers of older stores catch, builds its message, and holds its facts."""
    assert isinstance(error, TokenStoreError)
    assert isinstance(error, parent)
    assert str(error) == message
    assert {name: getattr(error, name) for name in facts} == facts


@pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])  # noqa: S301
@pytest.mark.parametrize("error", [example[0] for example in EXAMPLES.values()], ids=EXAMPLES)
def test_travels_between_processes(error: TokenStoreError, travel: Any) -> None:
    """An error that was pickled or copied is of the same class, with the same message, facts and error number."""
    error.add_note("seen by the test")

    there = travel(error)

    assert type(there) is type(error)
    assert (str(there), there.args) == (str(error), error.args)
    assert there.__dict__.keys() == error.__dict__.keys()
    assert {name: str(value) for name, value in there.__dict__.items()} == {
        name: str(value) for name, value in error.__dict__.items()
    }
    assert getattr(there, "errno", None) == getattr(error, "errno", None)


def test_examples_are_complete() -> None:
    """The table of these tests has every error of the module."""
    public = {
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TokenStoreError)
    }

    assert {type(example[0]) for example in EXAMPLES.values()} == public


def test_long_ids_are_cut() -> None:
    """An id in a message is cut to what a log line can bear; the attribute holds it whole."""
    error = InvalidRolloutIdError("x" * 10_000, "it has 10000 characters")

    assert len(str(error)) < 250
    assert error.rollout_id == "x" * 10_000
    assert "xxx...'" in str(error)


@pytest.mark.parametrize("kind", list(dict.fromkeys(type(example[0]) for example in EXAMPLES.values()))[1:])
def test_says_what_to_do(kind: type[TokenStoreError]) -> None:
    """The docstring of each error tells its reader what to do about it."""
    text = (kind.__doc__ or "").lower()

    assert any(word in text for word in ("mend", "retry", "build", "do not", "do what"))
