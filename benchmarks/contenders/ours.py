"""The store itself, with each way of syncing that it has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import attrs

from benchmarks.contenders import Contender, Sink
from tokenstore import StoreConfig, TokenCaptureStore

CONFIGS: dict[str, StoreConfig] = {"tokenstore": StoreConfig()}
"""Each way by the name under which it is measured."""
if "sync" in attrs.fields_dict(StoreConfig):
    _SYNC: dict[str, Any] = {"sync": "filesystem"}
    CONFIGS["tokenstore, filesystem"] = StoreConfig(**_SYNC)


def _opener(config: StoreConfig) -> Callable[[Path], AbstractAsyncContextManager[Sink]]:
    return lambda root: TokenCaptureStore(root, config=config)


def _stored(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*.tokens.jsonl"))


CONTENDERS = tuple(Contender(name=name, open=_opener(config), stored=_stored) for name, config in CONFIGS.items())
PER_FILE = CONTENDERS[0]
"""The store with its defaults."""
