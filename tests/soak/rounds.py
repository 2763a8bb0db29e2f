"""The parent: it forks, kills, cuts, listens and judges. It runs no thread and no event loop, so that it may fork."""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

import attrs

from tests.soak.audit import Report, audit
from tests.soak.ledger import WRITERS, Account, Facts, Operation
from tests.soak.place import LoopDevice, Place
from tests.soak.work import CANNOT_OPEN, SLOTS, TASKS, Life, live

WINDOW = 16
"""Rollouts in use at once."""
STEP = 4
"""How many of them are new in each round: each is used in four rounds."""
SECONDS = (2.0, 8.0)
"""How long a round is."""
KILLS = (1, 8)
"""How many processes are killed, and started again, before its end."""
_PIPE_BYTES = 65536


@attrs.define
class Totals:
    """What happened in all rounds."""

    rounds: int = 0
    operations: int = 0
    acked: int = 0
    unanswered: int = 0
    kills: int = 0
    """Of processes whose power was on."""
    cuts: int = 0
    recovered: int = 0
    rollouts: int = 0
    lost: list[str] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)


class _Process:
    """One life of one process, as its parent sees it."""

    def __init__(self, life: Life, pid: int, pipe: int) -> None:
        self.life = life
        self.pid = pid
        self.pipe = pipe
        self.running: dict[str, Operation] = {}
        self._rest = b""

    def lines(self, data: bytes) -> list[Any]:
        """What it has said whole."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


class Soak:
    """A run."""

    def __init__(self, place: Place, seed: int) -> None:
        for name in ("trio", "uvloop", "anyio._backends._asyncio", "anyio._backends._trio"):
            import_module(name)  # once here, not in every life
        self.totals = Totals()
        self._place = place
        self._seed = seed
        self._selector = selectors.DefaultSelector()
        self._processes: dict[str, _Process] = {}
        self._accounts: dict[str, Account] = {}
        self._settled: dict[str, Facts] = {}
        self._cut_at = float("inf")

    # ------------------------------------------------------------------------------------------ rounds

    def round(self) -> None:
        """Let all work for a while, kill some, end it with a kill of all or a power cut, and judge."""
        number = self.totals.rounds
        chance = Random(f"{self._seed}/{number}")  # noqa: S311 - a schedule
        seconds = chance.uniform(*SECONDS)
        kills = sorted((chance.uniform(0, seconds), chance.choice(SLOTS)) for _ in range(chance.randint(*KILLS)))
        device = self._place if chance.random() < 0.5 and isinstance(self._place, LoopDevice) else None
        self._cut_at = float("inf")
        rollouts = tuple(f"r{number * STEP + each}" for each in range(WINDOW))
        self._accounts = {name: self._accounts.get(name) or Account(name) for name in rollouts}
        for slot in SLOTS:
            self._start(slot, 0, rollouts)
        began = time.monotonic()
        for life, (at, slot) in enumerate(kills, 1):
            self._listen(began + at)
            self._kill(slot)
            self._start(slot, life, rollouts)
        self._listen(began + seconds)
        if device:
            self._cut(device)
        for slot in SLOTS:
            self._kill(slot)
        if device:
            device.restore()
        self._judge(rollouts)
        self.totals.rounds += 1

    def finish(self) -> None:
        """Recover and read everything once more: what was settled rounds ago must be as it was."""
        report = self._audit(())
        for name, facts in self._settled.items():
            found = report.facts.get(name, Facts("absent"))
            if found != facts:
                self.totals.wrong.append(f"{name}: it was {facts} when it was last used, and is {found}")
        self.totals.rollouts = len(self._settled)

    def close(self) -> None:
        """Leave no process behind, also when interrupted."""
        for process in self._processes.values():
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            os.close(process.pipe)
        self._processes.clear()
        self._selector.close()

    def _cut(self, device: LoopDevice) -> None:
        # All stop saying anything first, as at a real cut: while a file system is being shut down, an fdatasync may
        # return 0 for bytes that are gone. What their calls have begun in the kernel goes on.
        for process in self._processes.values():
            os.kill(process.pid, signal.SIGSTOP)
        for process in self._processes.values():
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._listen(time.monotonic())
        self._cut_at = time.monotonic()
        device.cut()
        self.totals.cuts += 1
        for account in self._accounts.values():
            account.was_cut = True

    def _judge(self, rollouts: tuple[str, ...]) -> None:
        report = self._audit(rollouts)
        for name in rollouts:
            facts = report.facts.get(name, Facts("absent"))
            verdict = self._accounts[name].judge(facts)
            self.totals.lost.extend(verdict.lost)
            self.totals.wrong.extend(verdict.wrong)
            self._settled[name] = facts

    def _audit(self, rollouts: tuple[str, ...]) -> Report:
        data = run_forked(lambda: audit(self._place.root, rollouts).as_json())
        report = Report.of_json(data)
        self.totals.recovered += report.leftovers
        self.totals.wrong.extend(report.problems)
        return report

    # ------------------------------------------------------------------------------------------ processes

    def _start(self, slot: str, life: int, rollouts: tuple[str, ...]) -> None:
        inner, outer = os.pipe()
        seed = f"{self._seed}/{self.totals.rounds}/{slot}/{life}"
        what = Life(self._place.root, seed, slot, rollouts, outer)
        pid = fork(lambda: live(what))
        os.close(outer)
        os.set_blocking(inner, False)
        process = self._processes[slot] = _Process(what, pid, inner)
        self._selector.register(inner, selectors.EVENT_READ, process)

    def _kill(self, slot: str) -> None:
        process = self._processes.pop(slot)
        os.kill(process.pid, signal.SIGKILL)
        _, status = os.waitpid(process.pid, 0)
        died = time.monotonic()
        self.totals.kills += died < self._cut_at
        unopened = died > self._cut_at and os.waitstatus_to_exitcode(status) == CANNOT_OPEN
        if not os.WIFSIGNALED(status) and not unopened:
            self.totals.wrong.append(f"{process.life.seed}: the process ended by itself with {status}")
        self._hear(process)
        self._selector.unregister(process.pipe)
        os.close(process.pipe)
        self.totals.unanswered += len(process.running)
        for operation in process.running.values():
            operation.ended = died

    def _listen(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._hear(key.data, once=True)

    def _hear(self, process: _Process, *, once: bool = False) -> None:
        """Take what a process has said."""
        while True:
            try:
                data = os.read(process.pipe, _PIPE_BYTES)
            except BlockingIOError:
                return
            for words in process.lines(data):
                self._take(process, words)
            if once or not data:
                return

    def _take(self, process: _Process, words: list[Any]) -> None:
        name, at, *rest = words
        if name not in process.running:
            kind, rollout, call, variant = rest
            operation = Operation(kind, rollout, call, variant, at)
            process.running[name] = operation
            self._accounts[rollout].add(operation)
            self.totals.operations += 1
            return
        operation = process.running.pop(name)
        operation.ended = at
        operation.outcome, operation.facts = rest
        if at > self._cut_at and operation.outcome not in ("acked", "no", "frozen", "retired", "conflict"):
            operation.outcome = "failed"
        self.totals.acked += operation.outcome == "acked" and operation.kind in WRITERS


def fork(function: Callable[[], None]) -> int:
    """Run a function in a child, which never comes back into the caller's code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 3
    try:
        gc.freeze()
        function()
        status = 0
    except BaseException:  # noqa: BLE001 - said, and told by the status
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run_forked(function: Callable[[], bytes]) -> bytes:
    """Run a function in a child and give what it returns.

    Raises:
        RuntimeError: It failed.
    """
    inner, outer = os.pipe()

    def child() -> None:
        with os.fdopen(outer, "wb") as pipe:
            pipe.write(function())

    pid = fork(child)
    os.close(outer)
    with os.fdopen(inner, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"the reading process ended with {status}")
    return data


PARALLEL = len(SLOTS) * TASKS
"""Operations in flight at once."""
