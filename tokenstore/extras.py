"""What is installed with an extra: a missing package is told with the command that adds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str, package: str, what: str) -> Iterator[None]:
    """Import an optional package inside this block.

    Args:
        extra: That adds it.
        package: Its name for `import`.
        what: That needs it, and by what name, to begin the message.

    Raises:
        ModuleNotFoundError: It is not installed; the message gives the command that adds it.
    """
    try:
        yield
    except ImportError as error:
        raise ModuleNotFoundError(f"{what}; \"pip install 'tokenstore[{extra}]'\" adds it", name=package) from error
