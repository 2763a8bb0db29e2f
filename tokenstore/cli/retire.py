"""`tokenstore retire ROLLOUT...`: remove rollouts that nobody will consume, leaving fences."""

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
        "Remove the records of rollouts whatever their state, leaving a fence against late writes for each. What is "
        "not there is told and gets no fence. Asks unless --yes."
    )
    brief = "remove rollouts, leaving fences"
    add_removal(commands, "retire", about, brief=brief, remove=TokenCaptureStore.retire)
