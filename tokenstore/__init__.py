"""A durable store for the token ids and log probabilities of reinforcement-learning rollouts.

A rollout server puts each model call as it happens; a trainer freezes a rollout, takes its snapshot and drops it. What
`put` returned from survives SIGKILL and power loss, and a rollout that lost a call says so.
"""

from tokenstore.capture import Capture
from tokenstore.config import StoreConfig
from tokenstore.errors import (
    ConflictingEntryError,
    CorruptRolloutError,
    DurabilityError,
    InvalidEntryError,
    InvalidRolloutIdError,
    LockTimeoutError,
    RemovalError,
    StoreClosedError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenStoreError,
)
from tokenstore.factory import make_token_store
from tokenstore.ids import validate_rollout_id, validate_rollout_ids
from tokenstore.protocols import TokenSink, TokenSource
from tokenstore.records import (
    RefusalRecord,
    RolloutRemovalPayload,
    RolloutStatus,
    StoreStatistics,
    TokenCaptureSnapshot,
    TokenEntry,
)
from tokenstore.store import TokenCaptureStore

__all__ = [
    "Capture",
    "ConflictingEntryError",
    "CorruptRolloutError",
    "DurabilityError",
    "InvalidEntryError",
    "InvalidRolloutIdError",
    "LockTimeoutError",
    "RefusalRecord",
    "RemovalError",
    "RolloutRemovalPayload",
    "RolloutStatus",
    "StoreClosedError",
    "StoreConfig",
    "StoreStatistics",
    "TokenCaptureFrozenError",
    "TokenCaptureRetiredError",
    "TokenCaptureSnapshot",
    "TokenCaptureStore",
    "TokenEntry",
    "TokenSink",
    "TokenSource",
    "TokenStoreError",
    "make_token_store",
    "validate_rollout_id",
    "validate_rollout_ids",
]
