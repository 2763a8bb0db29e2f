"""What `build` gives: trajectories as arrays, and a report of what became of every call.

Arrays are numpy's where numpy is installed, `array.array` where it is not; both are writable buffers of the same item
types, so that `torch.as_tensor` or `memoryview` take either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import attrs

Strategy = Literal["prefix", "per_call"]
"""`prefix` joins calls that extend each other; `per_call` gives each call as a trajectory of its own."""
Duplicates = Literal["supersede", "keep"]
"""What happens to calls with the same prompt: one of them counts, or all are trained (best of n)."""
Fate = Literal["trained", "empty", "superseded", "unresolved", "ambiguous"]
"""What became of a call's tokens; `fates` has the rules."""
Reason = Literal["incomplete", "unresolved", "ambiguous", "nothing_trained"]
"""Why a rollout is not to be trained on, unless `allow` names it; one with open calls is incomplete too."""


@attrs.frozen(kw_only=True)
class Span:
    """One call's generated tokens inside a trajectory."""

    model_call_id: str
    """The call."""
    start: int
    """Position of its first generated token."""
    stop: int
    """Position behind its last one."""
    trained: bool
    """False where branches share the call and another one trains it; the mask is 0 there."""
    weight_version: Any = None
    """The weights that generated it, from `extra["weight_version"]`; None where that is not known."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Trajectory:
    """A sequence to train on: the last call's prompt and generation, with the earlier calls of its chain inside."""

    rollout_id: str
    """The rollout."""
    token_ids: Any
    """Prompt and generated ids, shape (length,), int32."""
    loss_mask: Any
    """1 on tokens that the policy generated and that this trajectory trains, else 0; shape (length,), uint8."""
    log_probs: Any
    """The recorded log probability of each trained token, 0.0 where masked; shape (length,), float32."""
    spans: tuple[Span, ...]
    """The calls of the chain, the root first."""
    routed_experts: tuple[Any, ...] | None = None
    """What each call of the chain recorded, as it is, in the order of `spans`; None if one recorded none."""
    group_id: Any = None
    """`extra["group_id"]` of the last call of the chain that has one."""
    reward: Any = None
    """`extra["reward"]` of the last call of the chain that has one."""

    def __len__(self) -> int:
        """How many tokens it has."""
        return len(self.token_ids)

    def __repr__(self) -> str:
        """Name the rollout and the lengths; tokens stay out of logs and tracebacks."""
        calls = [span.model_call_id for span in self.spans]
        return f"Trajectory(rollout_id={self.rollout_id!r}, tokens={len(self)}, calls={calls!r})"

    @property
    def trained_tokens(self) -> int:
        """How many tokens have a mask of 1."""
        return sum(span.stop - span.start for span in self.spans if span.trained)


@attrs.frozen(kw_only=True)
class CallFate:
    """What became of one call."""

    model_call_id: str
    """The call."""
    fate: Fate
    """Trained, or the reason why not."""
    tokens: int
    """How many tokens it generated."""
    parent: str | None = None
    """The call that it extends; of identical ones the first in file order."""


@attrs.frozen(kw_only=True)
class Break:
    """A prompt that leaves an earlier call's tokens further on than its parent's: an altered history, or a fork.

    A prompt that an earlier call had too is a retry and no break.
    """

    model_call_id: str
    """The call whose prompt it is."""
    agrees: int
    """How many tokens at the start of the prompt are those of the earlier call's prompt and generation."""
    against: str
    """The earlier call, in file order, that agrees furthest; of several the first."""
    inside: Literal["prompt", "generation"]
    """Which part of the earlier call holds the first token that differs."""
    expected: int
    """The earlier call's token at that place."""
    found: int | None
    """The prompt's token there; None if the prompt ends."""


@attrs.frozen(kw_only=True)
class BuildReport:
    """What was in a rollout, what became of it, and whether to train on it."""

    calls: int
    """Entries of the snapshot."""
    roots: int
    """Trained calls that extend no other call."""
    chains: int
    """Trajectories given."""
    fates: tuple[CallFate, ...] = attrs.field(repr=lambda given: f"<{len(given)}>")
    """Every call, in file order."""
    tokens: Mapping[Fate, int]
    """Generated tokens by their fate; together they are all there are."""
    breaks: tuple[Break, ...] = attrs.field(repr=lambda given: f"<{len(given)}>")
    """Prompts that leave an earlier call's tokens, in file order."""
    weight_versions: tuple[Any, ...]
    """The known weight versions of trained calls, each once, in file order."""
    reasons: tuple[Reason, ...]
    """What stands against training on it, allowed or not."""
    trainable: bool
    """True if nothing does but what was allowed."""

    @property
    def mixed_weight_versions(self) -> bool:
        """Whether different weights generated the trained tokens."""
        return len(self.weight_versions) > 1

    def listed(self, fate: Fate) -> tuple[str, ...]:
        """Name the calls that have a fate, in file order."""
        return tuple(call.model_call_id for call in self.fates if call.fate == fate)


@attrs.frozen(kw_only=True, eq=False)
class Built(Sequence[Trajectory]):
    """The trajectories of a rollout, ordered by the place of their last call in the file, and the report."""

    trajectories: tuple[Trajectory, ...] = attrs.field(repr=lambda given: f"<{len(given)}>")
    """A trajectory for each branch."""
    main: Trajectory | None = attrs.field(repr=False)
    """The chain of the earliest root: the one that trains it. None if nothing is trained."""
    report: BuildReport
    """What became of every call."""

    @overload
    def __getitem__(self, index: int) -> Trajectory: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Trajectory]: ...
    def __getitem__(self, index: int | slice) -> Trajectory | Sequence[Trajectory]:
        return self.trajectories[index]

    def __len__(self) -> int:
        return len(self.trajectories)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)
