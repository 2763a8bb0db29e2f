"""How the processes of the scripts use the store."""

from __future__ import annotations

from tokenstore.config import StoreConfig

SHARED = StoreConfig()
FULL = StoreConfig(prompt_storage="full")
TOGETHER = StoreConfig(sync="filesystem")
"""Batches wait for a sync of the whole file system."""
TIGHT = StoreConfig(max_open_files=1)
"""Descriptors are given away after every operation, so that files have to be recognised."""
