"""What the sub-commands share: options, the root, running a coroutine, and how an error becomes an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import anyio

from tokenstore.cli.output import printable
from tokenstore.errors import TokenStoreError

EXIT_OK = 0
"""Everything was done."""
EXIT_FAILED = 1
"""Something was refused or failed; stderr says what."""
EXIT_USAGE = 2
"""The command line was wrong."""
EXIT_BUG = 70
"""A bug of the command itself, as `sysexits.h` counts it."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count it: 128 + SIGINT."""
EXIT_PIPE_CLOSED = 141
"""Whoever read the output has gone: 128 + SIGPIPE."""

ROOT_VARIABLE = "TOKENSTORE_ROOT"
"""Environment variable that stands in for `--root`."""

TRACEBACK_VARIABLE = "TOKENSTORE_TRACEBACK"
"""Environment variable that, if it is set, lets a bug show where it is."""

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class CommandError(Exception):
    """The command cannot go on; its message is for the user."""


class UsageError(CommandError):
    """The command line is wrong in a way that argparse does not see."""


def add_root(parser: argparse.ArgumentParser) -> None:
    """Give a sub-command its `--root`, which the environment may supply."""
    default = os.environ.get(ROOT_VARIABLE) or None
    parser.add_argument(
        "--root",
        metavar="DIR",
        type=_root,
        default=default,
        required=default is None,
        help=f"directory of the store (default: ${ROOT_VARIABLE})",
    )


def _root(text: str) -> str:
    """Refuse an empty name, as an unset variable of a shell leaves it: it would mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; name the directory, . for this one")
    return text


def add_output(parser: argparse.ArgumentParser) -> None:
    """Give a sub-command the options that all have."""
    parser.add_argument("--json", action="store_true", help="write JSON to stdout and nothing else")
    parser.add_argument(
        "--backend", choices=("asyncio", "trio"), default="asyncio", help="event loop to run on (default: asyncio)"
    )


def complete_rollouts(argument: argparse.Action) -> None:
    """Let the shell complete an argument with the ids of the rollouts in the directory."""
    argument.completer = _rollouts_in  # type: ignore[attr-defined]  # argcomplete looks for it


def _rollouts_in(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Give the ids that begin so; without reading a file, since somebody waits at a prompt."""
    root = getattr(parsed_args, "root", None)
    if not root:
        return []
    with suppress(OSError, RuntimeError):  # not there, or ~ of nobody: the shell has not replaced it yet
        names = (path.name.rpartition(".tokens.")[0] for path in Path(root).expanduser().iterdir())
        return sorted({name for name in names if name and name.startswith(prefix)})
    return []


def existing_root(root: str) -> Path:
    """Return the directory of a store that is there; a reading command must not make one.

    Raises:
        CommandError: There is no such directory.
    """
    path = Path(root)
    if not path.is_dir():
        problem = "is not a directory" if path.exists() else "does not exist"
        raise CommandError(f"the root {printable(root)} {problem}")
    return path


def run_async(
    function: Callable[[*Arguments], Awaitable[Result]],
    *arguments: *Arguments,
    backend: str,
    options: dict[str, Any] | None = None,
) -> Result:
    """Run a coroutine function to its end on the chosen event loop, which may have options.

    Raises:
        CommandError: That event loop is not installed.
    """
    if find_spec(backend) is None:
        raise CommandError(f"the backend {backend} is not installed; 'pip install {backend}' adds it")
    return anyio.run(function, *arguments, backend=backend, backend_options=options)


def settle_streams() -> None:
    """Stand in for what the caller closed: nothing is read from there and complaints go nowhere.

    Raises:
        CommandError: It is stdout, and there is nowhere to put a result.
    """
    sys.stdin = sys.stdin or TextIOWrapper(BytesIO())
    sys.stderr = sys.stderr or TextIOWrapper(BytesIO())
    if sys.stdout is None:  # as the interpreter leaves it, whatever the type says
        raise CommandError("stdout is closed")


def explain(error: BaseException) -> int:
    """Tell the user about an error and return the exit status. Another than those expected is a bug, told as such."""
    cause = _first_cause(error)
    if isinstance(cause, KeyboardInterrupt):
        _complain("interrupted; what was acknowledged is safe", EXIT_INTERRUPTED)
        _settle_stdout()
        return EXIT_INTERRUPTED
    _settle_stdout()
    if isinstance(cause, BrokenPipeError):
        return EXIT_PIPE_CLOSED
    if isinstance(cause, UsageError):
        return _complain(str(cause), EXIT_USAGE)
    if isinstance(cause, CommandError | TokenStoreError):
        return _complain(str(cause), EXIT_FAILED)
    if isinstance(cause, OSError):
        return _complain(describe(cause), EXIT_FAILED)
    if os.environ.get(TRACEBACK_VARIABLE):
        raise error
    said = printable(f"{type(cause).__name__}: {cause}")
    return _complain(f"a bug, please report it ({said}); {TRACEBACK_VARIABLE}=1 shows where", EXIT_BUG)


def describe(error: OSError) -> str:
    """Say an operating system error in one line, with the file if it names one."""
    reason = error.strerror or str(error)
    return f"{printable(os.fspath(error.filename))}: {reason}" if isinstance(error.filename, str) else reason


def _first_cause(error: BaseException) -> BaseException:
    """Find what happened inside the groups that task groups make; Ctrl-C counts before everything else."""
    while isinstance(error, BaseExceptionGroup):
        error = (error.subgroup(KeyboardInterrupt) or error).exceptions[0]
    return error


def _complain(message: str, status: int) -> int:
    with suppress(OSError):
        sys.stderr.write(f"tokenstore: {message}\n")
        sys.stderr.flush()
    return status


def _settle_stdout() -> None:
    """Give up a stdout that cannot be written, so that the interpreter does not try again when it ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            sys.stdout.close()
