"""The store itself, with each way of syncing that it has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from benchmarks.contenders import Contender, Sink
from tokenstore import StoreConfig, TokenCaptureStore

CONFIGS = {"tokenstore": StoreConfig(), "tokenstore, filesystem": StoreConfig(sync="filesystem")}
"""Each way by the name under which it is measured."""


def _opener(config: StoreConfig) -> Callable[[Path], AbstractAsyncContextManager[Sink]]:
    return lambda root: TokenCaptureStore(root, config=config)


def _stored(root: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in root.glob("*.tokens.jsonl"))


CONTENDERS = tuple(Contender(name=name, open=_opener(config), stored=_stored) for name, config in CONFIGS.items())
PER_FILE = CONTENDERS[0]
"""The store with its defaults."""
