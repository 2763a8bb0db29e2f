"""Searching every crash point under every policy finds each bug of a toy store, and passes the right one.

The toy appends records, flips a state by replacing it, and removes its records behind a fence: the shape of the real
journal, small enough to be searched in a second.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from tests.testing.simulations import ROOT
from tokenstore.journal.disk import Disk, File
from tokenstore.testing.disks import FailingDisk, Fault, PersistencePolicy, PowerCut, SimulatedDisk

P = PersistencePolicy
OPEN, RETIRED = b"open\n", b"retired\n"
RECORDS = [b"<record-%d:%s>\n" % (number, b"x" * 60) for number in range(5)]
SEEDS = 8


class Toy:
    """A store of one log and one state; `bug` names what it does wrong."""

    def __init__(self, disk: Disk, bug: str = "") -> None:
        self.bug = bug
        self.root = disk.open_root(ROOT)
        self.acked: list[bytes] = []
        self.log: File | None = None

    def append(self, *records: bytes) -> None:
        """Make records durable, then ack them."""
        log = self._open_log()
        begin = end = log.stat().size
        data = memoryview(b"".join(records))
        try:
            while data:
                written = log.write(end, data)
                end += written
                data = data[written:] if self.bug != "short write believed" else data[:0]
            if self.bug != "log not synced":
                log.datasync()
        except OSError:
            if self.bug == "sync tried again":
                log.datasync()
            elif self.bug == "failed batch left":
                return
            else:
                log.truncate(begin)
                log.datasync()
                return
        self.acked += records

    def _open_log(self) -> File:
        if self.log is None:
            self.log = self.root.open("log", "create")
            self._mend(self.log)
            if self.bug != "directory not synced":
                self.root.sync()
        return self.log

    def _mend(self, log: File) -> None:
        """Cut an unterminated tail off, and write the rest again, for a sync of the process before may have failed."""
        content = log.read(0, log.stat().size)
        whole = content.rfind(b"\n") + 1
        if whole < len(content) and self.bug != "torn tail glued":
            log.truncate(whole)
        if self.bug != "tail trusted":
            log.write(0, content[:whole])
        log.datasync()

    def flip(self, state: bytes) -> None:
        """Replace the state durably, then ack it."""
        self._replace_state(state)
        self.root.sync()
        self.acked.append(state)

    def remove(self) -> None:
        """Make the fence durable, then remove the records durably, then ack."""
        if self.bug == "records removed first":
            self.root.unlink("log")
        self._replace_state(RETIRED)
        if self.bug != "fence not durable before":
            self.root.sync()
        self.root.unlink("log")
        self.root.sync()
        self.acked.append(RETIRED)

    def _replace_state(self, state: bytes) -> None:
        if self.bug == "state overwritten in place":
            file = self.root.open("state", "create")
            file.truncate(0)
            file.write(0, state)
            file.sync()
            return
        name, file = self.root.create_temporary("temporary-")
        file.write(0, state)
        if self.bug != "state moved unsynced":
            file.sync()
        self.root.replace(name, "state")
        file.close()


class Finding(NamedTuple):
    """What went wrong in which of the states."""

    now: str
    later: str
    step: int
    policy: PersistencePolicy | None


def problem(files: dict[str, bytes], acked: list[bytes]) -> str:
    """Compare what a crash left with what was acked; empty if nothing is wrong."""
    state = files.get("state")
    if state not in (None, OPEN, RETIRED):
        return "state torn"
    if (state is None and OPEN in acked) or (state != RETIRED and RETIRED in acked):
        return "state lost"
    # Lines that are no records are torn or damaged: harmless, as long as no acked record is among them.
    kept = files.get("log", b"").splitlines(keepends=True)
    lost = [record for record in acked if record in RECORDS and record not in kept]
    return "record lost" if lost and state != RETIRED else ""


def crashes(disk: SimulatedDisk) -> Iterator[tuple[PersistencePolicy | None, SimulatedDisk]]:
    """Give all that may be found after a crash now, of the process (no policy) or of the power."""
    yield None, disk.after_kill()
    for policy in P:
        for seed in range(SEEDS if policy.by_chance else 1):
            yield policy, disk.after_crash(policy, seed=seed)


def script(toy: Toy) -> None:
    """Do everything that a store does once."""
    toy.append(RECORDS[0])
    toy.flip(OPEN)
    toy.append(RECORDS[1], RECORDS[2])
    toy.append(RECORDS[3])
    toy.remove()


def go_on(disk: SimulatedDisk, bug: str, acked: list[bytes]) -> str:
    """Recover on what a crash left, append, and cut the power again."""
    toy = Toy(disk, bug)
    toy.acked = list(acked)
    toy.append(RECORDS[4])
    return problem(disk.after_crash(P.SYNCED).files(ROOT), toy.acked)


def search(bug: str = "", fault: Fault | None = None) -> tuple[int, list[Finding]]:
    """Crash before every step, look at every state that may be left and at what becomes of it, and count them."""
    states, findings = 0, []
    for step in range(1, 1000):
        disk = SimulatedDisk(crash_at=step)
        acked: list[bytes] = []
        with suppress(PowerCut):
            toy = Toy(FailingDisk(disk, fault), bug)
            acked = toy.acked
            script(toy)
        for policy, left in crashes(disk):
            states += 1
            wrong = problem(left.files(ROOT), acked)
            later = "" if wrong else go_on(left, bug, acked)
            if wrong or later:
                findings.append(Finding(wrong, later, step, policy))
        if not disk.dead:
            return states, findings
    raise AssertionError("the run has no end")


def test_the_right_store_has_no_findings() -> None:
    """With every sync in its place no crash loses an acked fact."""
    states, findings = search()

    assert not findings
    assert states > 400


@pytest.mark.parametrize(
    ("bug", "wrong", "policies"),
    [
        ("directory not synced", "record lost", {P.SYNCED, P.SCATTERED}),
        ("log not synced", "record lost", {P.SYNCED, P.NAMES, P.NULS, P.PREFIX, P.SCATTERED}),
        ("state moved unsynced", "state torn", {P.SYNCED, P.NAMES, P.NULS, P.PREFIX, P.SCATTERED}),
        ("state overwritten in place", "state torn", {None, P.NAMES, P.NULS, P.PREFIX, P.SCATTERED}),
        ("records removed first", "record lost", {None, P.NAMES, P.NULS, P.PREFIX, P.SCATTERED}),
        ("fence not durable before", "record lost", {P.SCATTERED}),
    ],
)
def test_each_bug_is_found(bug: str, wrong: str, policies: set[PersistencePolicy | None]) -> None:
    """A bug that a crash shows is found, by the policies that can see it and by no other."""
    _, findings = search(bug)

    assert {finding.policy for finding in findings if finding.now == wrong} == policies


def test_a_bug_of_recovery_is_found_in_what_comes_after() -> None:
    """A torn tail that recovery keeps is found when the next record is glued to it."""
    _, findings = search("torn tail glued")

    assert {finding.now for finding in findings} == {""}
    assert {finding.later for finding in findings} == {"record lost"}


FAULTS = [
    Fault(call="datasync", at=2, name_suffix="log"),
    Fault(call="datasync", at=3, name_suffix="log"),
    Fault(call="write", at=2, short=7, name_suffix="log"),
    Fault(call="write", at=3, errno=errno.ENOSPC, name_suffix="log"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_right_store_stands_faults_and_crashes(fault: Fault) -> None:
    """One failing call and a crash at any step, before or after it, lose no acked fact."""
    _, findings = search(fault=fault)

    assert not findings


@pytest.mark.parametrize(
    ("bug", "fault"),
    [
        ("sync tried again", Fault(call="datasync", at=2, name_suffix="log")),
        ("failed batch left", Fault(call="datasync", at=2, name_suffix="log")),
        ("tail trusted", Fault(call="datasync", at=2, name_suffix="log")),
        ("short write believed", Fault(call="write", at=2, short=7, name_suffix="log")),
    ],
)
def test_each_mishandled_fault_is_found(bug: str, fault: Fault) -> None:
    """A bug that only shows after a failed call is found by failing that call, and not without."""
    assert not search(bug=bug)[1]
    assert search(bug=bug, fault=fault)[1]
