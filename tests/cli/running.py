"""What a command line came to, and how to run one as a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

COMMAND = [sys.executable, "-W", "error", "-m", "tokenstore"]
"""The command line as a process, in which a warning is an error too."""


class Run(NamedTuple):
    """What a command line came to."""

    status: int
    out: str
    err: str


Runner = Callable[..., Run]
