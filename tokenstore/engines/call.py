"""What the caller knows about a call, and how everything that is wrong with its answer is said."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal, NoReturn, TypedDict

import attrs

from tokenstore.errors import (
    DisagreeingAnswerError,
    EngineAnswerError,
    EngineFailureError,
    MissingTokensError,
    UnfinishedAnswerError,
)

LogProbsMode = Literal["raw", "processed"]
"""Of the model's own distribution, or of the one after temperature and filters that was sampled from."""


class About(TypedDict, total=False):
    """What a caller may say about a call beside its ids; see the fields of `Call`."""

    prompt_token_ids: Any
    sampling: Mapping[str, Any] | None
    logprobs_mode: LogProbsMode | None
    accept_aborted: bool
    extra: Mapping[str, Any] | None


def _mode(_: Call, __: attrs.Attribute[Any], value: object) -> None:
    if value is not None and value not in ("raw", "processed"):
        raise ValueError(f"logprobs_mode is {value!r}, 'raw' and 'processed' are allowed; logits are no log probs")


def _mapping(_: Call, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, Mapping | None):
        raise TypeError(f"{field.name} is of type {type(value).__name__}, it must be a mapping")


def _flag(_: Call, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{field.name} is of type {type(value).__name__}, it must be True or False")


@attrs.frozen(kw_only=True)
class Call:
    """A call to an engine, as its sender knows it."""

    engine: str
    """Whose form the answer has."""
    rollout_id: str
    """The rollout."""
    model_call_id: str
    """The call inside it."""
    prompt_token_ids: Any = None
    """The ids that were sent, for engines that do not give them back; those that do must agree."""
    sampling: Mapping[str, Any] | None = attrs.field(default=None, validator=_mapping)
    """Temperature and whatever else was asked, kept in `extra`."""
    logprobs_mode: LogProbsMode | None = attrs.field(default=None, validator=_mode)
    """What the engine was started with, kept in `extra`."""
    accept_aborted: bool = attrs.field(default=False, validator=_flag)
    """Take what an aborted answer holds, with `finish_reason` saying so; partial rollouts need it."""
    extra: Mapping[str, Any] | None = attrs.field(default=None, validator=_mapping)
    """The caller's own fields, such as `group_id` and `reward`."""

    def wrong(self, field: str, problem: str, **numbers: int) -> NoReturn:
        """Say that something has the wrong form.

        Raises:
            EngineAnswerError: Always.
        """
        self._raise(EngineAnswerError, field, problem, numbers)

    def missing(self, field: str, problem: str, **numbers: int) -> NoReturn:
        """Say that ids or log probabilities are not there.

        Raises:
            MissingTokensError: Always.
        """
        self._raise(MissingTokensError, field, problem, numbers)

    def disagree(self, field: str, problem: str, **numbers: int) -> NoReturn:
        """Say that two places contradict each other.

        Raises:
            DisagreeingAnswerError: Always.
        """
        self._raise(DisagreeingAnswerError, field, problem, numbers)

    def unfinished(self, field: str, problem: str, **numbers: int) -> NoReturn:
        """Say that the end of the answer is not there.

        Raises:
            UnfinishedAnswerError: Always.
        """
        self._raise(UnfinishedAnswerError, field, problem, numbers)

    def failed(self, *, status: int | None, code: str, generated: int) -> NoReturn:
        """Say that the engine failed.

        Raises:
            EngineFailureError: Always.
        """
        call_id = self.model_call_id
        raise EngineFailureError(self.engine, status=status, code=code, generated=generated, model_call_id=call_id)

    def _raise(self, kind: type[EngineAnswerError], field: str, problem: str, numbers: dict[str, int]) -> NoReturn:
        raise kind(self.engine, field, problem, model_call_id=self.model_call_id, numbers=numbers) from None


def options_of(known: Mapping[str, Mapping[str, Any]], endpoint: str) -> dict[str, Any]:
    """Give the options of an endpoint, a copy that is the caller's own.

    Raises:
        ValueError: It is none of those known.
    """
    if endpoint not in known:
        raise ValueError(f"endpoint {endpoint!r} is not known, there are {', '.join(known)}")
    return deepcopy(dict(known[endpoint]))
