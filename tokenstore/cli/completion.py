"""`tokenstore completion SHELL`: sub-commands, options and rollout ids at the press of Tab.

It prints the script of argcomplete for a shell to evaluate; the shell then runs the command with `_ARGCOMPLETE` set,
which answers instead of running.
"""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tokenstore.cli.common import EXIT_OK, CommandError
from tokenstore.cli.output import Output

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_SHELLS = {
    "bash": 'eval "$(tokenstore completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(tokenstore completion zsh)" in ~/.zshrc, after compinit',
    "fish": "tokenstore completion fish | source in ~/.config/fish/config.fish",
}


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    lines = "\n".join(f"  {shell}: {how}" for shell, how in _SHELLS.items())
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and rollout ids",
        description=f"Print a script that lets a shell complete sub-commands, options and rollout ids:\n\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(_SHELLS), help="whose script")
    parser.add_argument("--json", action="store_true", help="the script as a JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Print the script."""
    if find_spec("argcomplete") is None:
        raise CommandError("completion needs argcomplete; \"pip install 'tokenstore[cli]'\" adds it")
    from argcomplete.shell_integration import shellcode

    script = shellcode(["tokenstore"], shell=arguments.shell)
    if output.json:
        output.document({"shell": arguments.shell, "script": script})
    else:
        output.text(script)
    return EXIT_OK


def answer_the_shell(parser: argparse.ArgumentParser) -> None:
    """If a shell asks for completions, answer and end the process."""
    if "_ARGCOMPLETE" in os.environ and find_spec("argcomplete") is not None:
        import argcomplete

        argcomplete.autocomplete(parser)
