"""What lies under a simulated disk: the machine with its power and clock, inodes, and what a process has open.

`simulated_disk` says what all this promises. Every call holds the machine's mutex and begins by looking at the power.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from tokenstore.journal.disk import Access, FileStat
from tokenstore.testing.persistence import Images, Names

DEVICE = 1
"""All roots of a simulated disk lie on one device."""
FIRST_INODE = 12
"""As on a new ext4, where 11 is lost+found."""
TICK_NS = 1_000_000
"""Each change has a time of its own, unless a test asks for a clock that stands still."""
START_NS = 1_700_000_000 * 1_000_000_000
"""The time on a new disk."""


class PowerCut(BaseException):
    """The power was cut, or the process killed: whoever sees it is dead.

    Not an `Exception`, because the code under test answers those: `except OSError` would report a failing disk, the
    actor's guard would live on, and both could acknowledge what no living process can.
    """


class Inode:
    """A file, whatever its names."""

    __slots__ = ("exclusive", "holders", "images", "linked", "mtime_ns", "number", "opens")

    def __init__(self, number: int, mtime_ns: int, images: Images) -> None:
        self.number = number
        self.mtime_ns = mtime_ns
        self.images = images
        self.linked = True
        self.opens = 0
        self.holders: set[SimulatedFile] = set()
        self.exclusive = False


class Machine:
    """Power, steps, clock and inode numbers: what all handles of one disk share."""

    def __init__(self, *, crash_at: int | None, before_step: Callable[[str], None] | None, tick_ns: int) -> None:
        self.crash_at = crash_at
        """The step before which the power is cut."""
        self.before_step = before_step
        """Called with a label before each step."""
        self.tick_ns = tick_ns
        self.now_ns = START_NS
        """The time of the last change; add to it to age what is there."""
        self.steps = 0
        """How many steps took effect."""
        self.dead = False
        """Whether the power was cut."""
        self.mutex = threading.RLock()
        """Held during every call; entered again when `before_step` clones the disk."""
        self._free: list[int] = []
        self._next_number = FIRST_INODE

    def adopt(self, inodes: Iterable[Inode]) -> None:
        """Take over the files of another disk; of two with one number, one was removed there and came back."""
        taken: set[int] = set()
        twice = []
        for inode in inodes:
            if inode.number in taken:
                twice.append(inode)
            taken.add(inode.number)
        self._next_number = max(taken, default=FIRST_INODE - 1) + 1
        self._free = [number for number in range(FIRST_INODE, self._next_number) if number not in taken]
        for inode in twice:
            inode.number = self._take_number()

    def check_power(self) -> None:
        """Raise if the power was cut."""
        if self.dead:
            raise PowerCut(f"the power was cut before step {self.steps + 1}")

    def take_step(self, call: str, name: str) -> None:
        """Count what is about to take effect, or die before it does."""
        self.check_power()
        label = f"{call} {name}"
        if self.crash_at is not None and self.steps + 1 >= self.crash_at:
            self.dead = True
            raise PowerCut(f"the power was cut before step {self.steps + 1}, {label}")
        if self.before_step is not None:
            self.before_step(label)
        self.steps += 1

    def tick(self) -> int:
        """Tell the time of a change."""
        self.now_ns += self.tick_ns
        return self.now_ns

    def create(self, names: Names[Inode], name: str) -> Inode:
        """Make an empty file."""
        inode = Inode(self._take_number(), self.tick(), Images())
        names.change(None, name, inode)
        return inode

    def _take_number(self) -> int:
        if self._free:
            return heappop(self._free)
        self._next_number += 1
        return self._next_number - 1

    def drop(self, inode: Inode | None) -> None:
        """Take the last name of a file away."""
        if inode is not None:
            inode.linked = False
            self.release(inode)

    def release(self, inode: Inode) -> None:
        """Free the inode number if neither a name nor a descriptor needs it."""
        if not inode.linked and not inode.opens:
            heappush(self._free, inode.number)


class SimulatedFile:
    """An open file of a simulated disk; one open file description, as flock sees it."""

    def __init__(
        self, machine: Machine, name: str, inode: Inode, access: Access, siblings: set[SimulatedFile] | None = None
    ) -> None:
        self._machine = machine
        self._name = name
        self._inode = inode
        self._writable = access != "read"
        self._siblings = set() if siblings is None else siblings
        self._siblings.add(self)
        self._closed = False
        inode.opens += 1

    def _use(self, step: str = "", *, refusal: int = 0) -> Inode:
        """Begin a call: the power is on, the descriptor open; a step is counted unless the call is refused."""
        self._machine.check_power()
        code = errno.EBADF if self._closed else refusal
        if code:
            raise os_error(code, self._name)
        if step:
            self._machine.take_step(step, self._name)
        return self._inode

    def _set(self, inode: Inode, images: Images) -> None:
        inode.images = images
        inode.mtime_ns = self._machine.tick()

    def read(self, offset: int, size: int) -> bytes:
        with self._machine.mutex:
            return self._use().images.seen[offset : offset + size]

    def write(self, offset: int, data: bytes | memoryview) -> int:
        with self._machine.mutex:
            inode = self._use("write", refusal=0 if self._writable else errno.EBADF)
            self._set(inode, inode.images.written(offset, data))
            return len(data)

    def truncate(self, size: int) -> None:
        with self._machine.mutex:
            inode = self._use("truncate", refusal=0 if self._writable else errno.EINVAL)
            self._set(inode, inode.images.truncated(size))

    def datasync(self) -> None:
        with self._machine.mutex:
            inode = self._use("datasync")
            inode.images = inode.images.synced()

    def sync(self) -> None:
        with self._machine.mutex:
            inode = self._use("sync")
            inode.images = inode.images.synced()

    def forget_dirty(self) -> None:
        """Lose what was not synced, as a failed sync does: readers still see it, no later sync writes it."""
        with self._machine.mutex:
            inode = self._use()
            inode.images = inode.images.forgotten()

    def stat(self) -> FileStat:
        with self._machine.mutex:
            return file_stat(self._use())

    def lock(self, *, exclusive: bool) -> bool:
        with self._machine.mutex:
            inode = self._use()
            if self in inode.holders and inode.exclusive == exclusive:
                return True
            # flock gives the lock held back before it tries for the other kind, and does not take it again on failure.
            inode.holders.discard(self)
            if inode.holders and (exclusive or inode.exclusive):
                return False
            inode.holders.add(self)
            inode.exclusive = exclusive
            return True

    def unlock(self) -> None:
        with self._machine.mutex:
            self._use().holders.discard(self)

    def close(self) -> None:
        with self._machine.mutex:
            if self._closed:
                return
            self._closed = True
            self._siblings.discard(self)
            self._inode.holders.discard(self)
            self._inode.opens -= 1
            self._machine.release(self._inode)
            self._machine.check_power()


class SimulatedDirectory:
    """An open root of a simulated disk; what one process has open, if each opens the root for itself."""

    def __init__(self, machine: Machine, names: Names[Inode]) -> None:
        self._machine = machine
        self._names = names
        self._files: set[SimulatedFile] = set()
        self._closed = False

    @property
    def open_files(self) -> int:
        """How many files are open that were opened here."""
        return len(self._files)

    def abandon(self) -> None:
        """Close everything that was opened here, as the kernel does for a process that was killed."""
        with self._machine.mutex:
            for file in list(self._files):
                file.close()
            self.close()

    def _use(self) -> Names[Inode]:
        self._machine.check_power()
        if self._closed:
            raise os_error(errno.EBADF, "directory")
        return self._names

    def open(self, name: str, access: Access) -> SimulatedFile:
        with self._machine.mutex:
            names = self._use()
            inode = names.seen.get(name)
            if inode is None:
                if access != "create":
                    raise os_error(errno.ENOENT, name)
                self._machine.take_step("open", name)
                inode = self._machine.create(names, name)
            return SimulatedFile(self._machine, name, inode, access, self._files)

    def create_temporary(self, prefix: str) -> tuple[str, SimulatedFile]:
        with self._machine.mutex:
            names = self._use()
            number = 0
            while (name := f"{prefix}{number:08x}") in names.seen:
                number += 1
            self._machine.take_step("create_temporary", name)
            inode = self._machine.create(names, name)
            return name, SimulatedFile(self._machine, name, inode, "create", self._files)

    def stat(self, name: str) -> FileStat | None:
        with self._machine.mutex:
            inode = self._use().seen.get(name)
            return None if inode is None else file_stat(inode)

    def replace(self, source: str, target: str) -> None:
        with self._machine.mutex:
            names = self._use()
            inode = names.seen.get(source)
            if inode is None:
                raise os_error(errno.ENOENT, source)
            self._machine.take_step("replace", target)
            if source == target:
                return
            old = names.seen.get(target)
            names.change(source, target, inode)
            self._machine.drop(old)

    def clock_ns(self) -> int:
        with self._machine.mutex:
            self._use()
            return self._machine.now_ns

    def unlink(self, name: str) -> bool:
        with self._machine.mutex:
            names = self._use()
            inode = names.seen.get(name)
            if inode is None:
                return False
            self._machine.take_step("unlink", name)
            names.change(name, None, inode)
            self._machine.drop(inode)
            return True

    def names(self) -> Iterator[str]:
        with self._machine.mutex:
            return iter(list(self._use().seen))

    def sync(self) -> None:
        with self._machine.mutex:
            names = self._use()
            self._machine.take_step("directory_sync", "")
            names.sync()

    def sync_filesystem(self) -> None:
        with self._machine.mutex:
            names = self._use()
            self._machine.take_step("filesystem_sync", "")
            for inode in names.seen.values():
                inode.images = inode.images.synced()

    def syncs(self) -> None:
        """There is no kernel here: everybody syncs for himself."""

    def forget_dirty(self) -> None:
        """Lose what was not synced of all files, as a failed sync of the file system may do."""
        with self._machine.mutex:
            for inode in self._use().seen.values():
                inode.images = inode.images.forgotten()

    def close(self) -> None:
        with self._machine.mutex:
            if not self._closed:
                self._closed = True
                self._machine.check_power()


def file_stat(inode: Inode) -> FileStat:
    """Tell what a file is now."""
    return FileStat(DEVICE, inode.number, len(inode.images.seen), inode.mtime_ns)


def os_error(code: int, name: str) -> OSError:
    """Make the error that the operating system would."""
    return OSError(code, os.strerror(code), name)
