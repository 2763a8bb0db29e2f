"""`tokenstore delete ROLLOUT...`: remove rollouts and their fences."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tokenstore.cli.acting import add_removal
from tokenstore.store import TokenCaptureStore

if TYPE_CHECKING:
    from argparse import _SubParsersAction


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Remove rollouts and their fences, so that the ids start empty: only when nothing writes to them any more, "
        "or a late write would begin them anew. Asks unless --yes."
    )
    add_removal(commands, "delete", about, brief="remove rollouts and their fences", remove=TokenCaptureStore.delete)
