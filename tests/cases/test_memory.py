"""Hostile files can slow a read; they cannot crash the process or fill its memory. Measured in a child."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.given import own, rec, vouched
from tests.children import start

MIB = 1024 * 1024


def _sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def _repeated(part: bytes, count: int, *, head: bytes = b"", tail: bytes = b"") -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.write(head)
            for _ in range(count):
                file.write(part)
            file.write(tail)

    return make


GOOD = own(1) + b"\n"
Plan = tuple[str, Callable[[Path], None], int, list[str] | str]
DEEP = b"[" * 100_000
PLANS: dict[str, Plan] = {
    "long line": ("jsonl", _repeated(b"x" * MIB, 60, head=GOOD, tail=b"\n"), 12, ["unacceptable:"]),
    "long hole": ("jsonl", _repeated(bytes(MIB), 60, head=GOOD, tail=b"\n"), 12, ["damaged:"]),
    "long tail": ("jsonl", _repeated(bytes(MIB), 60, head=GOOD), 12, []),
    "deep": ("jsonl", _repeated(DEEP + b"\n", 5, head=GOOD), 12, ["unacceptable:"] * 5),
    "deep, vouched": ("jsonl", _repeated(vouched(b'{"a":' + DEEP + b"}") + b"\n", 5, head=GOOD), 12, ["damaged:"]),
    "digits": ("jsonl", _repeated(rec(2).replace(b"1.5", b"1" * 1_000_000) + b"\n", 1, head=GOOD), 48, ["damaged:"]),
    "a million newlines": ("jsonl", _repeated(b"\n" * 1000, 1000, head=GOOD), 12, ["damaged:"]),
    "many lists": ("jsonl", _repeated(b"[" + b"[]," * 300_000 + b"1]\n", 1, head=GOOD), 90, ["unacceptable:"]),
    "state of 10 GB": ("state.json", _sparse(10 * 1024 * MIB), 12, "CorruptRolloutError: r.tokens.state.json"),
    "state of NULs": ("state.json", _sparse(30 * MIB), 110, ["state_lost"]),
    "deep state": ("state.json", _repeated(DEEP, 50), 30, ["state_lost"]),
    "one long intent": ("intents", _repeated(b"x" * MIB, 60, tail=b"\n"), 16, ["lost_call:xxx"]),
    "binary intents": ("intents", _repeated(bytes(range(256)), 4 * 60 * 1024), 16, ["lost_call:"] * 2),
    "one intent again": ("intents", _repeated(b"c9\n" * 10_000, 100), 48, ["lost_call:c9"]),
    "long marker": ("incomplete", _sparse(60 * MIB), 16, ["flagged"]),
    "blank marks": ("incomplete", _repeated(b"\n" * MIB, 4), 50, ["marked:"]),
}
"""What is planted, how many megabytes reading it may take beyond an ordinary reading, and what is said of it."""

OFTEN = ("long line", "deep, vouched", "a million newlines", "state of 10 GB", "binary intents")
"""Those that the default run looks at, one of a kind."""


def _check(root: Path, plan: Plan) -> None:
    name, make, megabytes, expected = plan
    root.mkdir()
    (root / "r.tokens.jsonl").write_bytes(GOOD)
    make(root / f"r.tokens.{name}")

    with start("read", root, "r", MIB) as child:
        (said,) = child.finish()

    outcome = json.loads(said)
    assert outcome["peak"] - outcome["before"] < (megabytes + 8) * MIB
    assert outcome["listed"] == 1
    assert outcome["removed"] == {"removed": ["r"], "absent": []}
    if isinstance(expected, str):
        assert outcome["frozen"].startswith(expected)
        return
    found, reasons = outcome["frozen"]
    assert found == ["c1", "late"]
    assert outcome["entries"] == 1
    assert len(reasons) == len(expected)
    assert all(reason.startswith(beginning) for reason, beginning in zip(reasons, expected, strict=True))


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.kernel) for kind in PLANS]
)
def test_hostile_files_take_bounded_memory(kind: str, tmp_path: Path) -> None:
    """A process that reads a hostile file lives, its memory stays bounded, and what is good is delivered."""
    _check(tmp_path / "root", PLANS[kind])


@pytest.mark.kernel
@pytest.mark.parametrize("byte", [b"x", b"\0"], ids=["text", "NULs"])
def test_a_line_of_300_mb_takes_bounded_memory(byte: bytes, tmp_path: Path) -> None:
    """The issue's own size: a line of 300 MB, far above `max_entry_bytes`, is passed over in a few megabytes."""
    reason = "unacceptable:" if byte == b"x" else "damaged:"
    _check(tmp_path / "root", ("jsonl", _repeated(byte * MIB, 300, head=GOOD, tail=b"\n"), 12, [reason]))
