"""Stores that break one promise each, beside the name of the check that must catch it."""

from __future__ import annotations

from tests.testing.broken import calls, concurrency, consuming, recording, removing, values
from tests.testing.broken.base import BROKEN_STORES, BrokenStore

__all__ = ["BROKEN_STORES", "BrokenStore", "calls", "concurrency", "consuming", "recording", "removing", "values"]
