"""`python -m benchmarks [NAME...] [--quick] [--rounds N] [--baselines] [--out DIR]`: run, show, and write a report."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

from benchmarks.contenders import Contender
from benchmarks.harness import machine, report, suite
from benchmarks.harness.rounds import ROUNDS, Outcome, repeat
from benchmarks.harness.table import show

INSTALL = "pip install -e '.[bench]'"
"""Adds what the store is compared with, and the plots."""
OTHERS = ("plain", "sqlite", "lightning", "reference")
"""Modules of `contenders` beside the store."""
IN_MEMORY = ("tmpfs", "ramfs")
"""File systems on which nothing is durable."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks and report; the exit status is 1 if one of them failed or none could, a missed target is none."""
    chosen = arguments_of(arguments)
    out = Path(chosen.out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        say(f"cannot write to {out} ({error.strerror}); choose another folder with --out")
        return 1
    where = machine.describe(out)
    if where["file system"].startswith(IN_MEMORY):
        say(f"{out} is on {where['file system']}: a sync costs nothing there; choose a folder on a disk with --out")
    run = partial(
        repeat,
        contenders=contenders(alone=chosen.baselines),
        folder=out,
        rounds=chosen.rounds or (1 if chosen.quick else ROUNDS),
        quick=chosen.quick,
        say=say,
    )
    names = chosen.names or suite.BENCHMARKS
    outcomes = [outcome for name in names if (outcome := attempt(run, name)) is not None]
    where["load after"] = machine.load()
    say(f"report: {report.write(out, where, outcomes, quick=chosen.quick)}")
    return 0 if len(outcomes) == len(names) else 1


def attempt(run: partial[Outcome], name: str) -> Outcome | None:
    """Run a benchmark and show what came out; tell of a failure, after which the others still run."""
    try:
        outcome = run(name, suite.load(name))
    except Exception:  # noqa: BLE001 - whatever it was, it is shown
        traceback.print_exc()
        say(f"{name} failed")
        return None
    print(show(outcome), flush=True)
    return outcome


def arguments_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    known = ", ".join(suite.BENCHMARKS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the store on this machine.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run: {known} (default: all)")
    parser.add_argument("--quick", action="store_true", help="see that everything runs; the figures mean nothing")
    parser.add_argument("--rounds", type=_count, metavar="N", help=f"paired rounds (default: {ROUNDS})")
    parser.add_argument("--baselines", action="store_true", help="measure only the store and its baselines")
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="benchmark-results",
        help="folder of the report, and of the data while they are measured: on the disk in question "
        "(default: %(default)s)",
    )
    chosen = parser.parse_args(arguments)
    unknown = sorted(set(chosen.names) - set(suite.BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {known}")
    return chosen


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def contenders(*, alone: bool) -> list[Contender]:
    """The store and those of the others that are installed; tells of those that are not."""
    found = []
    for name in ("ours", *(() if alone else OTHERS)):
        for contender in import_module(f"benchmarks.contenders.{name}").CONTENDERS:
            missing = [module for module in contender.needs if not suite.installed(module)]
            if not missing:
                found.append(contender)
            elif name == "reference":
                say(f"without the reference: {', '.join(missing)} is not installed (package nemo-gym)")
            else:
                say(f"without {contender.name}: {', '.join(missing)} not installed; {INSTALL} adds it")
    if not suite.installed("matplotlib"):
        say(f"without plots: matplotlib not installed; {INSTALL} adds it")
    return found


def say(text: str) -> None:
    """Tell how far it is, beside the results."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
