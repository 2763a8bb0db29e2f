"""What a command says and where: results on stdout, everything else on stderr.

On a terminal, with the extra `cli` installed, results are rich tables, or lines where it is too narrow for one, and
long work shows a progress bar. Otherwise they are plain text. With `--json` stdout holds one JSON document or one JSON
object a line, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from tokenstore.codec import dumps

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WORD = 12
"""Letters of a column of text that a line of its cell holds at least."""


@attrs.frozen
class Column:
    """A column of a table; numbers go to the right."""

    name: str
    right: bool = False


class Output:
    """Where a command puts its result, its progress and its complaints."""

    def __init__(self, *, json: bool) -> None:
        self.json = json
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # a call id may hold letters that the terminal's encoding lacks
                stream.reconfigure(errors="backslashreplace")

    def document(self, value: Any) -> None:
        """Write a JSON value and a newline to stdout, in UTF-8 whatever the terminal's encoding."""
        line = dumps(value) + b"\n"
        binary = getattr(sys.stdout, "buffer", None)
        if binary is None:
            sys.stdout.write(line.decode())
        else:
            sys.stdout.flush()
            binary.write(line)

    def table(self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], footer: str = "") -> None:
        """Write a table to stdout; the footer is a line below it."""
        console = _console(sys.stdout)
        if console is None:
            _plain_table(title, columns, rows)
        else:
            _rich_table(console, title, columns, rows)
        if footer:
            self.text(footer)

    def text(self, line: str) -> None:
        """Write a line to stdout."""
        sys.stdout.write(f"{line}\n")

    def note(self, line: str) -> None:
        """Write a line to stderr: a refusal, or what went wrong."""
        sys.stdout.flush()
        sys.stderr.write(f"{line}\n")

    @contextmanager
    def progress(self, what: str, total: float | None) -> Iterator[Callable[[float], None]]:
        """Show a bar on stderr while the block runs, if that is a terminal; what is yielded moves it on."""
        console = None if self.json else _console(sys.stderr)
        if console is None:
            yield lambda _: None
            return
        from rich.progress import Progress

        with Progress(console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda step: bar.advance(task, step)

    @contextmanager
    def live(self) -> Iterator[Callable[[str, Sequence[Column], Sequence[Sequence[str]]], None] | None]:
        """Give what shows a line and a table in the place of the last ones; None where that is no terminal."""
        console = None if self.json else _console(sys.stdout)
        if console is None:
            yield None
            return
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=console, auto_refresh=False) as picture:

            def renew(line: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
                picture.update(Group(Text(line), _table("", columns, rows)), refresh=True)

            yield renew

    def flush(self) -> None:
        """Hand everything on, so that a closed pipe or a full disk is seen now and not when the process ends."""
        sys.stdout.flush()


def printable(text: str) -> str:
    """Return text from outside, such as a file's name, so that it can be shown whatever control characters it holds."""
    shown = text.encode("utf-8", "backslashreplace").decode()
    return shown if shown.isprintable() else repr(shown)[1:-1]


def human_bytes(count: float) -> str:
    """Say a size as a person reads it, in decimal units: `1.6 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Say a time as a person reads it: `3.1 ms`, `42.0 s`, `3 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.1f} {unit}" if size == 1 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _console(stream: TextIO) -> Console | None:
    """Make a rich console of a terminal; `None` if it is none, or rich is not installed."""
    if not stream.isatty() or find_spec("rich") is None:
        return None
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False)


def _rich_table(console: Console, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    if _least_width(columns, rows) > console.width:
        _cards(title, columns, rows)
    else:
        console.print(_table(title, columns, rows))


def _least_width(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return how many characters a framed table needs to be read: numbers whole, of words a dozen letters."""
    needed = 0
    for place, column in enumerate(columns):
        cells = max((len(row[place]) for row in rows), default=0)
        header = max(map(len, column.name.split()), default=0)
        needed += max(header, cells if column.right else min(cells, WORD))
    return needed + 3 * len(columns) - 1


def _cards(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Write each row as lines, for a terminal that is too narrow for a table."""
    lines = [title] if title else []
    for row in rows:
        cells = zip(columns, row, strict=True)
        lines += ["; ".join(f"{column.name} {cell}".strip() for column, cell in cells if cell), ""]
    sys.stdout.write("\n".join(lines) + "\n")


def _table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", pad_edge=False)
    for column in columns:
        if column.right:  # a number that goes on in the next line is another number
            table.add_column(column.name.replace(" ", "\n"), justify="right", no_wrap=True)
        else:
            table.add_column(column.name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # text, so that an id in square brackets is no markup
    return table


def _plain_table(title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    grid = [[column.name for column in columns], *rows]
    widths = [max(len(row[place]) for row in grid) for place in range(len(columns))]
    lines = [title] if title else []
    for row in grid:
        cells = [_padded(cell, width, column) for cell, width, column in zip(row, widths, columns, strict=True)]
        lines.append("  ".join(cells).rstrip())
    sys.stdout.write("\n".join(lines) + "\n")


def _padded(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.right else cell.ljust(width)
