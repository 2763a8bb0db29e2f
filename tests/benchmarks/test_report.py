"""What is shown: tables, the JSON file, the report, plots."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from benchmarks.harness import report, table
from benchmarks.harness.machine import describe, file_system
from benchmarks.harness.plots import used_share
from benchmarks.harness.suite import Key, Target
from tests.benchmarks.given import CASE, DISK, OURS, RATIO, outcome


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.000"), (0.00012, "0.00012"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (123456.7, "123,457")],
)
def test_figures_have_the_digits_that_count(value: float, text: str) -> None:
    """A figure is written with about three digits, long ones in groups of three."""
    assert table.figure(value) == text


def test_a_table_of_values() -> None:
    """A table has baselines first, then the store, then others; what somebody did not measure stays empty."""
    other = Key(CASE, "aiosqlite", "puts/s")
    rows = table.values_of(outcome(rounds=({other: 100.0, OURS: 3.0, DISK: 2.0},)), CASE)

    assert rows == [
        ("", "puts/s", "p50 ms"),
        ("disk", "", "2.00"),
        ("tokenstore", "", "3.00"),
        ("aiosqlite", "100", ""),
    ]


def test_a_table_of_targets() -> None:
    """A target stands with its limit, what the rounds found, and whether it holds."""
    missed = attrs.evolve(RATIO, at_most=1.0)
    unknown = Target(text="unknown", value=Key(CASE, "nobody", "p50 ms"), at_least=1.0)

    assert table.targets_of(outcome(RATIO, missed, unknown))[1:] == [
        ("p50 over disk", "<= 2.00", "1.50", "1.25", "3.00", "holds"),
        ("p50 over disk", "<= 1.00", "1.50", "1.25", "3.00", "MISSED"),
        ("unknown", ">= 1.00", "", "", "", "not measured"),
    ]


def test_text_is_laid_out_in_columns() -> None:
    """On a terminal the first column is flush left, the others flush right."""
    assert table.as_text([("", "p50 ms"), ("disk", "2.00"), ("tokenstore", "13.0")]) == (
        "            p50 ms\ndisk          2.00\ntokenstore    13.0"
    )


def test_the_json_file_has_every_round() -> None:
    """The document is plain JSON and holds machine, values of all rounds, and targets with their verdict."""
    document = json.loads(json.dumps(report.document({"cores": "2"}, [outcome()], quick=False)))
    given = document["benchmarks"]["given"]

    assert document["machine"] == {"cores": "2"}
    assert {"case": CASE, "who": "disk", "what": "p50 ms", "median": 3.0, "rounds": [2.0, 3.0, 4.0]} in given["values"]
    assert given["targets"] == [
        {"text": "p50 over disk", "at_most": 2.0, "holds": True, "median": 1.5, "rounds": [1.5, 3.0, 1.25]}
    ]


def test_a_report_names_what_was_drawn() -> None:
    """The report shows each plot with its benchmark, and says if its figures mean nothing."""
    text = report.text({"cores": "2"}, [outcome()], {"given": "given.png", "": "targets.png"}, quick=True)

    assert "figures mean nothing" in text
    assert text.index("| cores | 2 |") < text.index("(targets.png)") < text.index("## A title")
    assert text.index("## A title") < text.index("(given.png)") < text.index("| tokenstore | 5.00 |")


def test_a_report_is_written_with_plots(tmp_path: Path) -> None:
    """The folder holds the report, the results and a picture of each benchmark and of the targets."""
    pytest.importorskip("matplotlib", reason="plots need the extra bench")

    written = report.write(tmp_path, {"cores": "2"}, [outcome()], quick=False)

    assert written.name == "report.md"
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "results.json", "given.png", "targets.png"}
    assert (tmp_path / "given.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("target", "figure", "share"),
    [
        (Target(text="", value=OURS, at_most=2.0), 3.0, 1.5),
        (Target(text="", value=OURS, at_least=2.0), 4.0, 0.5),
        (Target(text="", value=OURS, at_least=2.0), 0.0, float("inf")),
    ],
)
def test_shares_of_a_limit(target: Target, figure: float, share: float) -> None:
    """Whichever way a target points, a share above 1 is a miss."""
    assert used_share(target, figure) == share


def test_the_file_system_is_the_nearest_mount() -> None:
    """The deepest mount that holds the folder counts, and of two at one place the later one."""
    mounts = (
        "20 1 0:1 / / rw,relatime - overlay overlay rw\n"
        "30 20 8:1 / /data rw,noatime - ext4 /dev/sda1 rw\n"
        "31 30 8:2 / /data rw - xfs /dev/sdb1 rw\n"
        "32 20 0:9 / /data-other rw - tmpfs tmpfs rw\n"
    )

    assert file_system(Path("/data/results"), mounts) == "xfs (rw)"
    assert file_system(Path("/elsewhere"), mounts) == "overlay (rw,relatime)"


def test_the_machine_is_described_without_its_name(tmp_path: Path) -> None:
    """What is said of a machine has cores, kernel, file system and versions, and no folder."""
    machine = describe(tmp_path)

    assert {"cores", "kernel", "file system", "Python", "anyio"} <= machine.keys()
    assert not any(str(tmp_path) in text for text in machine.values())
