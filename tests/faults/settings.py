"""How the processes of the scripts use the store."""

from __future__ import annotations

from tokenstore.config import StoreConfig

SHARED = StoreConfig()
FULL = StoreConfig(prompt_storage="full")
TIGHT = StoreConfig(max_open_files=1)
"""Descriptors are given away after every operation, so that files have to be recognised."""
