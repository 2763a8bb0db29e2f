"""Tables, sizes and JSON on a terminal, in a pipe, and without rich."""

from __future__ import annotations

import io
import re
import sys

import pytest

from tokenstore.cli import output as output_module
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds, printable


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_634_000, "1.6 MB"), (65_000_000, "65.0 MB"), (120_000, "120 kB")],
)
def test_sizes_read_well(count: int, text: str) -> None:
    """Bytes are shown in decimal units with about three digits."""
    assert human_bytes(count) == text


def test_sizes_have_no_end() -> None:
    """A size beyond the largest unit is still shown."""
    assert human_bytes(4.2e15) == "4200.0 TB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.00314, "3.1 ms"), (42, "42.0 s"), (600, "10 min"), (10_800, "3 h"), (864_000, "10 d")],
)
def test_times_read_well(seconds: float, text: str) -> None:
    """Seconds are shown in the unit that fits."""
    assert human_seconds(seconds) == text


def test_names_of_files_can_always_be_shown() -> None:
    """Control characters and bytes that are no UTF-8 are shown escaped, all else as it is."""
    assert printable("größe.jsonl") == "größe.jsonl"
    assert printable("a\x1b[31m\nb") == "a\\x1b[31m\\nb"
    assert printable("a\udcff") == "a\\udcff"


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe a table is aligned text, numbers to the right, without trailing spaces."""
    Output(json=False).table("title", [Column("name"), Column("n", right=True)], [("a", "1"), ("bcd", "22")], "end")

    assert capsys.readouterr().out == "title\nname   n\na      1\nbcd   22\nend\n"


def test_a_terminal_gets_a_rich_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a table has a frame, and an id in square brackets is shown as it is."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)

    Output(json=False).table("", [Column("call")], [("[red]c1[/red]",)])

    assert "[red]c1[/red]" in terminal.getvalue()
    assert "─" in terminal.getvalue() or "━" in terminal.getvalue()


NUMBERS = [Column("call"), Column("latest change", right=True), Column("tokens", right=True)]
"""A column of words and two of numbers."""


@pytest.mark.parametrize("width", [30, 40, 80])
def test_numbers_are_never_cut(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """However narrow the terminal is, a number is in one piece and no column is missing."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))

    Output(json=False).table("title", NUMBERS, [("0000-0e8c98924873", "12 min", "1,234,567,890")])

    lines = re.sub(r"\x1b\[\d*m", "", terminal.getvalue()).splitlines()
    assert any("12 min" in line and "1,234,567,890" in line for line in lines)
    assert all(word in terminal.getvalue() for word in ("title", "latest", "change", "tokens"))
    assert all(len(line) <= width for line in lines if "┃" in line)


def test_a_narrow_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a table cannot be read, each row is a line that names its cells, and empty ones are left out."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "20")

    Output(json=False).table("", NUMBERS, [("c1", "12 min", "1,234"), ("c2", "", "5")])

    assert terminal.getvalue() == "call c1; latest change 12 min; tokens 1,234\n\ncall c2; tokens 5\n\n"


def test_a_terminal_without_rich_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra a terminal gets what a pipe gets, and no progress bar."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output_module, "find_spec", lambda _: None)

    output = Output(json=False)
    output.table("", [Column("call")], [("c1",)])
    with output.progress("work", 2) as advance:
        advance(1)

    assert terminal.getvalue() == "call\nc1\n"


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar goes to stderr of a terminal and not at all with `--json`."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    with Output(json=True).progress("work", 2) as advance:
        advance(1)
    assert terminal.getvalue() == ""

    with Output(json=False).progress("work", 2) as advance:
        advance(1)
    assert "work" in terminal.getvalue()


def test_json_is_utf8_whatever_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document is one line of UTF-8 even where text could only be ASCII; text is escaped there."""
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding="ascii"))

    output = Output(json=True)
    output.text("é")
    output.document({"b": "é", "a": 1})
    output.flush()

    assert stream.getvalue() == b'\\xe9\n{"a":1,"b":"\xc3\xa9"}\n'


def test_json_goes_to_a_stream_without_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced stdout that takes only text gets the document as text."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)

    Output(json=True).document([1])

    assert stream.getvalue() == "[1]\n"
