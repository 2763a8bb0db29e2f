"""`python -m tests.soak --minutes 10 --seed 1`: the soak, by hand."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from contextlib import closing

from tests.soak.place import find_place
from tests.soak.rounds import PARALLEL, Soak, Totals
from tests.soak.work import SLOTS

SHOWN = 20
"""Problems that are said; the rest is counted."""


def main() -> int:
    """Run it, and say what came of it; the exit status is 1 if anything was lost or wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, at least (default: 10)")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="how many rounds, at most")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the schedule (default: the time)")
    parser.add_argument("--json", action="store_true", help="write the figures as a JSON document")
    arguments = parser.parse_args()
    place, excuse = find_place()
    with closing(place), closing(Soak(place, arguments.seed)) as soak:
        say(f"seed {arguments.seed}, {place.kind}, {len(SLOTS)} processes, {PARALLEL} operations at once")
        if excuse:
            say(excuse)
        began = time.monotonic()
        while time.monotonic() < began + 60 * arguments.minutes and soak.totals.rounds < arguments.rounds:
            soak.round()
            if soak.totals.lost or soak.totals.wrong:
                break
            if sys.stderr.isatty():
                say(f"\rround {soak.totals.rounds}, {soak.totals.acked} acked", end="")
        soak.finish()
        figures = table(soak.totals, arguments.seed, time.monotonic() - began)
    for problem in [*soak.totals.lost, *soak.totals.wrong][:SHOWN]:
        say(problem)
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        width = max(map(len, figures))
        sys.stdout.writelines(f"{name.ljust(width)}  {value}\n" for name, value in figures.items())
    return 1 if soak.totals.lost or soak.totals.wrong else 0


def table(totals: Totals, seed: int, seconds: float) -> dict[str, object]:
    """The figures."""
    return {
        "seed": seed,
        "seconds": round(seconds),
        "rounds": totals.rounds,
        "rollouts": totals.rollouts,
        "operations": totals.operations,
        "acked": totals.acked,
        "unanswered": totals.unanswered,
        "kills": totals.kills,
        "power cuts": totals.cuts,
        "tails and removals finished": totals.recovered,
        "lost": len(totals.lost),
        "wrong": len(totals.wrong),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
    }


def say(text: str, end: str = "\n") -> None:
    """Say something beside the figures."""
    sys.stderr.write(text + end)
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
