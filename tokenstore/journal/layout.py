"""Every file name, in one place: one flat directory, five files a rollout.

| file | content |
|---|---|
| `R.tokens.jsonl` | one entry a line |
| `R.tokens.state.json` | lifecycle facts and an index, replaced atomically |
| `R.tokens.intents` | calls that were about to be sent, one id a line |
| `R.tokens.incomplete` | the marker: lost calls, one id a line, maybe blank; its existence means incomplete |
| `R.tokens.lock` | empty, the target of flock |

The layout is that of the file store of NVIDIA NeMo Gym (`nemo_gym.token_id_capture`), whose directories are continued.
"""

from __future__ import annotations

import re

import attrs

from tokenstore.errors import InvalidRolloutIdError
from tokenstore.ids import validate_rollout_id

TEMPORARY_PREFIX = ".tokens-state-"
"""A state on its way to be moved into place: this and eight of `[A-Za-z0-9_]`."""

_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"[A-Za-z0-9_]{8}")
_TOKENS = ".tokens.jsonl"
_STATE = ".tokens.state.json"
_INTENTS = ".tokens.intents"
_MARKER = ".tokens.incomplete"
_LOCK = ".tokens.lock"


@attrs.frozen
class Names:
    """The names of a rollout's files."""

    tokens: str
    state: str
    intents: str
    marker: str
    lock: str

    @classmethod
    def of(cls, rollout_id: str) -> Names:
        """The names for a valid rollout id."""
        return cls(*(rollout_id + suffix for suffix in (_TOKENS, _STATE, _INTENTS, _MARKER, _LOCK)))

    @property
    def records(self) -> tuple[str, str, str]:
        """What a removal takes away: lines, intents and marker."""
        return self.tokens, self.intents, self.marker

    @property
    def evidence(self) -> tuple[str, str, str, str]:
        """The files of which one must be there for the rollout to exist, the telling ones first."""
        return self.tokens, self.state, self.intents, self.marker


def rollout_of(name: str) -> str | None:
    """The rollout whose evidence a file name is, or None if it is none."""
    return _stem(name, (_TOKENS, _STATE, _INTENTS, _MARKER))


def rollout_of_lock(name: str) -> str | None:
    """The rollout whose lock a file name is, or None if it is none."""
    return _stem(name, (_LOCK,))


def is_temporary(name: str) -> bool:
    """Whether a file name is that of a state on its way to be moved into place."""
    return _TEMPORARY.fullmatch(name) is not None


def _stem(name: str, suffixes: tuple[str, ...]) -> str | None:
    for suffix in suffixes:
        if name.endswith(suffix):
            try:
                return validate_rollout_id(name.removesuffix(suffix))
            except InvalidRolloutIdError:
                return None
    return None
