"""`tokenstore demo`: a hundred agents write at once, a trainer reads back, and every promise shown is checked.

The rollouts come from the seeded generator, so that what must come back is known; every figure is measured in this run.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio
import attrs
from anyio import to_thread

from tokenstore import TokenCaptureFrozenError, TokenCaptureSnapshot, TokenCaptureStore, TokenEntry
from tokenstore.cli.common import EXIT_FAILED, EXIT_OK, add_output, run_async
from tokenstore.cli.output import Column, Output, human_bytes, human_seconds, printable
from tokenstore.codec import dumps, encode_entry
from tokenstore.testing.rollouts import agent_rollout

if TYPE_CHECKING:
    from argparse import _SubParsersAction

WAVE = 200
"""Agents at once, which bounds memory: their calls are made before the clock starts."""
LOST_CALL = "lost-call"
LATE_CALL = "late-call"

Advance = Callable[[float], None]


@attrs.frozen
class Plan:
    """What the agents will do. The ids are new in each run, the calls depend on the seed alone."""

    rollouts: int
    seed: int
    run: str = attrs.field(factory=lambda: secrets.token_hex(4))

    def rollout_id(self, number: int) -> str:
        """Name a rollout."""
        return f"demo-{self.run}-{number:05d}"

    def rollout_ids(self) -> list[str]:
        """Name all rollouts."""
        return [self.rollout_id(number) for number in range(self.rollouts)]

    def turns(self, number: int) -> int:
        """Tell how many calls a rollout makes: 4 to 12."""
        return 4 + number % 9

    def calls(self, number: int) -> list[TokenEntry]:
        """Make the calls of a rollout, the same each time."""
        calls = agent_rollout(f"agent-{number}", seed=self.seed, turns=self.turns(number))
        return [attrs.evolve(call, rollout_id=self.rollout_id(number)) for call in calls]

    def puts(self) -> int:
        """Count the calls of all rollouts."""
        return sum(self.turns(number) for number in range(self.rollouts))


@attrs.define
class Report:
    """What was measured, and what was checked."""

    plan: Plan
    directory: str
    seconds: float = 0.0
    latencies: list[float] = attrs.field(factory=list)
    fsyncs: int = 0
    disk_bytes: int = 0
    whole_bytes: int = 0
    equal_calls: int = 0
    snapshots: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    checks: list[tuple[str, bool, str]] = attrs.field(factory=list)

    def check(self, name: str, held: bool, found: str) -> None:
        """Note whether a promise held and what was seen."""
        self.checks.append((name, held, found))

    @property
    def ok(self) -> bool:
        """True if everything held."""
        return all(held for _, held, _ in self.checks)

    def latency(self, share: float) -> float:
        """Return the seconds within which a share of the puts was acknowledged, by nearest rank."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command to the command line."""
    about = (
        "Run generated agent rollouts against a store, read them back as a trainer does, and check what comes out. "
        "The exit status is 1 if anything did not hold."
    )
    parser = commands.add_parser("demo", help="try the store with a hundred generated rollouts", description=about)
    parser.add_argument("--root", metavar="DIR", help="directory to use (default: a temporary one, removed afterwards)")
    parser.add_argument("--rollouts", metavar="N", type=_count, default=100, help="rollouts to run (default: 100)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="another number makes other calls")
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, output: Output) -> int:
    """Run the demo; with `--json` one document."""
    plan = Plan(arguments.rollouts, arguments.seed)
    with _directory(arguments.root) as root, output.progress("agents", 2 * plan.puts()) as advance:
        report = run_async(_demo, root, plan, advance, backend=arguments.backend)
    if output.json:
        output.document(_document(report))
    else:
        _show(report, output)
    return EXIT_OK if report.ok else EXIT_FAILED


async def _demo(root: Path, plan: Plan, advance: Advance) -> Report:
    report = Report(plan, str(root))
    async with TokenCaptureStore(root) as trainer:
        async with TokenCaptureStore(root) as server:
            for start in range(0, plan.rollouts, WAVE):
                await _run_agents(server, range(start, min(start + WAVE, plan.rollouts)), report, advance)
            await server.begin_call(plan.rollout_id(0), LOST_CALL)
            report.fsyncs = server.statistics().fsyncs
            await _read_back(trainer, report, advance)
            await _write_late(server, report)
        await _drop(trainer, report)
        await trainer.delete(plan.rollout_ids())
    return report


async def _run_agents(server: TokenCaptureStore, numbers: range, report: Report, advance: Advance) -> None:
    rollouts = await to_thread.run_sync(lambda: [report.plan.calls(number) for number in numbers])
    started = perf_counter()
    async with anyio.create_task_group() as agents:
        for calls in rollouts:
            agents.start_soon(_agent, server, calls, report, advance)
    report.seconds += perf_counter() - started


async def _agent(server: TokenCaptureStore, calls: list[TokenEntry], report: Report, advance: Advance) -> None:
    for call in calls:
        await server.begin_call(call.rollout_id, call.model_call_id)
        started = perf_counter()
        await server.put(call)
        report.latencies.append(perf_counter() - started)
        advance(1)


async def _read_back(trainer: TokenCaptureStore, report: Report, advance: Advance) -> None:
    """Freeze every rollout through the second store, and compare its calls with what the generator makes again."""
    ours = set(report.plan.rollout_ids())
    report.disk_bytes = sum([status.bytes async for status in trainer.rollouts() if status.rollout_id in ours])
    masked: dict[str, tuple[str, ...]] = {}
    for number in range(report.plan.rollouts):
        snapshot = await trainer.freeze(report.plan.rollout_id(number))
        report.snapshots[snapshot.rollout_id] = snapshot.snapshot_id, snapshot.version
        if snapshot.incomplete:
            masked[snapshot.rollout_id] = snapshot.incomplete_reasons
        await to_thread.run_sync(_compare, snapshot, number, report)
        advance(len(snapshot.entries))
    puts, first = report.plan.puts(), report.plan.rollout_id(0)
    report.check("read back equal", report.equal_calls == puts, f"{report.equal_calls} of {puts} calls")
    reasons = masked.pop(first, ())
    report.check("lost call masked", reasons == (f"lost_call:{LOST_CALL}",), ", ".join(reasons) or "not masked")
    others = report.plan.rollouts - 1
    report.check("others complete", not masked, f"{others - len(masked)} of {others} rollouts")


def _compare(snapshot: TokenCaptureSnapshot, number: int, report: Report) -> None:
    """Count the calls that came back equal in every value, each in its place, and measure them as whole lines.

    Equality of the entries sees a lost field, equality of their JSON sees `0` for `-0.0` or `1` for `1.0`.
    """
    made = report.plan.calls(number)
    lines = [dumps(encode_entry(call)) for call in made]
    report.whole_bytes += sum(len(line) + 1 for line in lines)
    if len(snapshot.entries) == len(made):
        for call, line, given in zip(made, lines, snapshot.entries, strict=True):
            report.equal_calls += call == given and line == dumps(encode_entry(given))


async def _write_late(server: TokenCaptureStore, report: Report) -> None:
    late = attrs.evolve(report.plan.calls(0)[0], model_call_id=LATE_CALL)
    try:
        await server.put(late)
    except TokenCaptureFrozenError as error:
        report.check("late write refused", True, str(error))
    else:
        report.check("late write refused", False, "it was accepted")


async def _drop(trainer: TokenCaptureStore, report: Report) -> None:
    dropped = 0
    for rollout_id, (snapshot_id, version) in report.snapshots.items():
        dropped += await trainer.drop(rollout_id, snapshot_id=snapshot_id, version=version)
    left = [status async for status in trainer.rollouts() if status.rollout_id in report.snapshots and status.bytes]
    held = dropped == report.plan.rollouts and not left
    report.check("dropped", held, f"{dropped} of {report.plan.rollouts} rollouts, {len(left)} with bytes left")


def _document(report: Report) -> dict[str, Any]:
    return {
        "ok": report.ok,
        "directory": report.directory,
        "rollouts": report.plan.rollouts,
        "seed": report.plan.seed,
        "puts": len(report.latencies),
        "seconds": report.seconds,
        "puts_per_second": len(report.latencies) / report.seconds,
        "put_p50_seconds": report.latency(0.5),
        "put_p99_seconds": report.latency(0.99),
        "fsyncs": report.fsyncs,
        "bytes_on_disk": report.disk_bytes,
        "bytes_as_whole_prompts": report.whole_bytes,
        "checks": [{"name": name, "held": held, "found": found} for name, held, found in report.checks],
    }


def _show(report: Report, output: Output) -> None:
    puts = len(report.latencies)
    less = report.whole_bytes / report.disk_bytes if report.disk_bytes else 0.0
    measured = [
        ("rollouts", f"{report.plan.rollouts:,}"),
        ("puts", f"{puts:,} in {human_seconds(report.seconds)}, a begin_call before each"),
        ("puts/s", f"{puts / report.seconds:,.0f}"),
        ("put p50 / p99", f"{human_seconds(report.latency(0.5))} / {human_seconds(report.latency(0.99))}"),
        ("fsyncs", f"{report.fsyncs:,}"),
        ("bytes on disk", human_bytes(report.disk_bytes)),
        ("as whole prompts", f"{human_bytes(report.whole_bytes)}, {less:.1f} times as much"),
    ]
    checked = [(name, f"{'yes' if held else 'NO'}: {found}") for name, held, found in report.checks]
    title = f"tokenstore demo in {printable(report.directory)}"
    output.table(title, (Column("measured or checked"), Column("result")), measured + checked)
    for name, held, found in report.checks:
        if not held:
            output.note(f"tokenstore: did not hold: {name} ({found})")


@contextmanager
def _directory(root: str | None) -> Iterator[Path]:
    """Give the directory to use: the user's own, or a temporary one that goes afterwards."""
    if root is not None:
        yield Path(root)
        return
    with TemporaryDirectory(prefix="tokenstore-demo-") as temporary:
        yield Path(temporary)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 100000")
    return int(text)
