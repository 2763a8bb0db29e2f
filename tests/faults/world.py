"""A script while it runs: processes on one simulated disk, one trouble, and a copy of the disk at every step.

Nothing is patched: a trouble is a failing disk around the simulated one, or something that happens before a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.ledger import WrongError
from tests.faults.operations import Alone, Foreign, Interrupted, Operation, Reopen, Stray
from tests.faults.process import Process
from tests.faults.questions import ROOT, Answer, Drop, Freeze
from tests.faults.settings import TIGHT
from tests.faults.troubles import Calls, Cut, Dead, Kill, Trouble
from tokenstore.config import StoreConfig
from tokenstore.records import TokenCaptureSnapshot
from tokenstore.testing import FailingDisk, Fault, PersistencePolicy, SimulatedDisk
from tokenstore.testing.simulated_files import TICK_NS, SimulatedDirectory, os_error


class _EndedError(BaseException):
    """The process was killed, or the power cut. Whoever sees it is dead, so it is no `Exception`."""


class _Port:
    """Where the calls of one place's processes reach the disk; it knows what they have open."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.directories: list[SimulatedDirectory] = []

    def open_root(self, path: Path) -> SimulatedDirectory:
        """Open the root and remember it."""
        self.directories.append(self.disk.open_root(path))
        return self.directories[-1]

    def kill(self) -> None:
        """Close everything, as the kernel does."""
        for directory in self.directories:
            directory.abandon()
        self.directories.clear()

    @property
    def open_files(self) -> int:
        """How many files are open."""
        return sum(directory.open_files for directory in self.directories)


class World:
    """Processes, their disk, and what goes wrong with it.

    Args:
        configs: How each process uses the store; a script asks them by their place. Only where descriptors are given
            away does the clock go on, since then files are told apart by time too.
        trouble: What goes wrong.
        on_step: Called before a step takes effect, from when the trouble has begun.
        disk: What was there before; nothing if not given.
        counted: Whether calls are counted, which costs time.
    """

    def __init__(
        self,
        configs: Sequence[StoreConfig],
        trouble: Trouble = None,
        on_step: Callable[[SimulatedDisk, str], None] | None = None,
        disk: SimulatedDisk | None = None,
        counted: bool = True,
    ) -> None:
        self.disk = disk or SimulatedDisk(tick_ns=TICK_NS if TIGHT in configs else 0)
        self.disk.before_step = self._before_step
        self.steps = 0
        self.trouble = trouble
        self.failures: list[str] = []
        self.power_cuts = 0
        self.crashes = 0
        self.snapshots: dict[str, list[TokenCaptureSnapshot]] = {}
        self._configs = configs
        self.on_step = on_step
        self._ports = [_Port(self.disk) for _ in configs]
        self._disks: list[_Port | FailingDisk] = [*self._ports]
        if counted:
            self._disks = [self._failing_disk(place) for place in range(len(configs))]
        self._processes: dict[int, Process] = {}
        self._interruption: Interrupted | None = None
        self._began = 0
        self._ended = False
        self._healed = False
        self._left: SimulatedDisk | None = None

    # ------------------------------------------------------------------------------------------ asking

    def bind(self, operation: Operation) -> Operation:
        """Fill in what an operation takes from earlier answers."""
        if isinstance(operation, Alone) and isinstance(operation.question, Drop):
            taken = self.snapshots.get(operation.on, [])
            age = operation.question.age
            if age < len(taken):
                snapshot = taken[-1 - age]
                question = Drop(age, (snapshot.snapshot_id, snapshot.version))
                return Alone(question, operation.on, operation.by)
        return operation

    def perform(self, operation: Operation) -> list[Answer]:
        """Ask for an operation, already bound; all answers are unknown if its process did not live to see them.

        Raises:
            WrongError: An answer is none that may be given.
        """
        self._interruption = operation if isinstance(operation, Interrupted) else None
        self._began = self.steps
        try:
            answers = self._ask(operation)
        except _EndedError:
            self._bury(operation.by)
            return ["unknown"] * len(operation.asked)
        except WrongError:
            raise
        except Exception as error:
            raise WrongError(f"{operation}: {error!r}") from error
        if isinstance(operation, Reopen):
            del self._processes[operation.by]
        for (rollout, _), answer in zip(operation.asked, answers, strict=True):
            if isinstance(answer, TokenCaptureSnapshot) and operation.asked[0][1] == Freeze():
                self.snapshots.setdefault(rollout, []).append(answer)
        return answers

    def _ask(self, operation: Operation) -> list[Answer]:
        if not isinstance(operation, Stray | Foreign):
            return operation.perform(self.process(operation.by))
        directory = self.disk.open_root(ROOT)
        try:
            return operation.write(directory)
        except OSError:
            return ["unknown"]
        finally:
            if not self._ended:
                directory.abandon()

    def process(self, place: int) -> Process:
        """The process at a place; a new one if there is none."""
        if place not in self._processes:
            self._processes[place] = Process(self._disks[place], self._configs[place], self.failures)
        return self._processes[place]

    @property
    def living(self) -> list[int]:
        """Where there is a process."""
        return sorted(self._processes)

    def end(self, place: int) -> None:
        """End a process without a crash, if there is one."""
        if place in self._processes:
            self._processes.pop(place).close()

    def cut_power(self, policy: PersistencePolicy, seed: int = 0) -> None:
        """Cut the power while nobody does anything."""
        self.power_cuts += 1
        self._left = self.disk.after_crash(policy, seed=seed)
        self._bury(0)

    def close(self) -> None:
        """End all processes without a crash.

        Raises:
            WrongError: One of them has left something open.
        """
        for place in list(self._processes):
            self.end(place)
        if any(port.open_files for port in self._ports):
            raise WrongError("files are still open after the last process has ended")

    # ------------------------------------------------------------------------------------------ trouble

    @property
    def begun(self) -> bool:
        """Whether the trouble has begun; without one, always."""
        match self.trouble:
            case Calls():
                return bool(self.failures)
            case Kill(step) | Cut(step) | Dead(step):
                return self.steps >= step
        return True

    def fail(self, place: int, fault: Fault | None) -> None:
        """Let calls of one process fail from now on, or no longer."""
        disk = self._disks[place]
        assert isinstance(disk, FailingDisk), "calls are not counted"
        disk.fault = fault

    def heal(self) -> None:
        """End the trouble."""
        self._healed = True
        for disk in self._disks:
            wrapped: object = disk
            while isinstance(wrapped, FailingDisk):
                wrapped.fault, wrapped = None, wrapped.inner

    @property
    def may_leave_temporary_files(self) -> bool:
        """Whether somebody was killed, or could not remove one."""
        unlinked = any(failure.startswith("unlink .") for failure in self.failures)
        return self.crashes > 0 or unlinked or isinstance(self.trouble, Dead)

    @property
    def calls(self) -> dict[int, dict[str, int]]:
        """How many calls of each kind each process has made."""
        return {place: dict(d.calls) for place, d in enumerate(self._disks) if isinstance(d, FailingDisk)}

    def _failing_disk(self, place: int) -> FailingDisk:
        """The disk of a place's processes: one around the other for each fault, and one that only counts."""
        mine = self.trouble.faults if isinstance(self.trouble, Calls) and self.trouble.process == place else ()
        disk = FailingDisk(self._ports[place], None)
        disk.failures = self.failures
        for fault in mine:
            disk = FailingDisk(disk, fault)
            disk.failures = self.failures
        return disk

    def _before_step(self, label: str) -> None:
        if self._ended:
            raise _EndedError
        self.steps += 1
        self._interrupt()
        match self.trouble:
            case Kill(step) if step == self.steps and not self._healed:
                self._end(None, 0)
            case Cut(step, policy, seed) if step == self.steps and not self._healed:
                self._end(policy, seed)
            case Dead(step, code) if step <= self.steps and not self._healed and not label.startswith("open_root"):
                self.failures.append(label)
                raise os_error(code, label)
        if self.on_step is not None and self.begun:
            self.on_step(self.disk, label)

    def _interrupt(self) -> None:
        operation = self._interruption
        if operation is not None and self.steps == self._began + operation.at:
            self._end(operation.policy, operation.seed)

    def _end(self, policy: PersistencePolicy | None, seed: int) -> None:
        """End the process that runs, or all of them with the power."""
        self._ended = True
        self.crashes += 1
        if policy is not None:
            self.power_cuts += 1
            self._left = self.disk.after_crash(policy, seed=seed)
        raise _EndedError

    def _bury(self, place: int) -> None:
        """Take away what the kernel takes away with a process; after a power cut, with all of them."""
        for dead in [place] if self._left is None else range(len(self._ports)):
            self._ports[dead].kill()
            self._processes.pop(dead, None)
        if self._left is not None:
            self.disk.before_step = None
            self.disk, self._left = self._left, None
            self.disk.before_step = self._before_step
            for port in self._ports:
                port.disk = self.disk
        self._ended = False
