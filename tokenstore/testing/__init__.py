"""For tests of stores and of code that uses one: a store in memory, a conformance suite, made-up rollouts, fault disks.

No test framework is needed. Reading order: `memory` (the lifecycle in short), `conformance` (the promises, one check
each), `rollouts` (the data), `disks` (the faults).
"""

from __future__ import annotations

from tokenstore.testing.conformance import CHECKS, check_token_store, run_check
from tokenstore.testing.disks import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk
from tokenstore.testing.equality import first_difference
from tokenstore.testing.memory import InMemoryTokenStore, MemoryBackend
from tokenstore.testing.rollouts import SHAPES, agent_rollout, shaped_rollout
from tokenstore.testing.trial import ConformanceError

__all__ = [
    "CHECKS",
    "SHAPES",
    "ConformanceError",
    "FailingDisk",
    "Fault",
    "InMemoryTokenStore",
    "MemoryBackend",
    "PersistencePolicy",
    "PowerCut",
    "SimulatedDisk",
    "agent_rollout",
    "check_token_store",
    "first_difference",
    "run_check",
    "shaped_rollout",
]
