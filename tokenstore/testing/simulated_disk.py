"""A disk in memory whose power can be cut before any step, to search every crash for a lost fact.

Names and bytes each have a volatile and a durable side. Creating, moving and removing a name is volatile until
`Directory.sync`; bytes and size are volatile until `File.datasync` or `File.sync` (see `persistence` for what is left).

1. Every call that changes or syncs something is a numbered step, counted in `steps`. A call that finds nothing to
   change (opening a file that is there, removing one that is not) is none, nor is a reading one or a lock.
2. `crash_at=k` raises `PowerCut` before step k takes effect, and in every later call, whichever thread makes it.
3. `after_crash` and `after_kill` give a new disk, on which nothing is open or locked and the steps begin again. File
   contents are shared, so this costs microseconds; `before_step` with `clone` gathers all crash points in one run.
4. Everything is deterministic: inode numbers, times, names of temporary files.
5. An inode number is free again at once when no name and no descriptor needs it, as on ext4.

A root directory is one atomic, durable step. There are no sub-directories and no links.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from random import Random

from tokenstore.testing.persistence import Images, Names, PersistencePolicy
from tokenstore.testing.simulated_files import TICK_NS, Inode, Machine, SimulatedDirectory, os_error

_UNUSED = Random(0)  # noqa: S311
"""Making one costs as much as the rest of a crash; the policies without choices get this one."""


class SimulatedDisk(Machine):
    """A disk in memory; see the head of the module.

    Args:
        crash_at: The step, from 1 on, before which the power is cut; None for never.
        before_step: Called before each step with a label such as `"datasync r.tokens.jsonl"`. A clone made there is
            the disk that `crash_at=disk.steps + 1` would have left.
        tick_ns: How far the clock goes at each change; 0 gives files of one size that cannot be told apart by time.
    """

    def __init__(
        self,
        *,
        crash_at: int | None = None,
        before_step: Callable[[str], None] | None = None,
        tick_ns: int = TICK_NS,
    ) -> None:
        super().__init__(crash_at=crash_at, before_step=before_step, tick_ns=tick_ns)
        self._roots: dict[Path, Names[Inode]] = {}

    def open_root(self, path: Path) -> SimulatedDirectory:
        with self.mutex:
            self.take_step("open_root", path.name)
            return SimulatedDirectory(self, self._root(path))

    def clone(self) -> SimulatedDisk:
        """Copy the disk, what is not synced included, with nothing open and nothing locked."""
        with self.mutex:
            copies: dict[Inode, Inode] = {}

            def copy(inode: Inode) -> Inode:
                if inode not in copies:
                    copies[inode] = Inode(inode.number, inode.mtime_ns, inode.images)
                return copies[inode]

            return self._successor({path: names.mapped(copy) for path, names in self._roots.items()})

    def after_kill(self) -> SimulatedDisk:
        """Tell what another process finds when this one was killed: all that was written; no lock, no descriptor."""
        return self.clone()

    def after_crash(self, policy: PersistencePolicy, *, seed: int = 0) -> SimulatedDisk:
        """Tell what is found after a power cut now; this disk is not changed, whether it is dead or not.

        Args:
            policy: What survives of all that was not synced.
            seed: Of the choices that the policy leaves to chance.
        """
        with self.mutex:
            chance = Random(seed) if policy.by_chance else _UNUSED  # noqa: S311  # replayable, not secret

            def survivor(inode: Inode) -> Inode:
                return Inode(inode.number, inode.mtime_ns, inode.images.survivor(policy, chance))

            roots: dict[Path, Names[Inode]] = {}
            for path, names in self._roots.items():
                roots[path] = Names()
                roots[path].seen = {n: survivor(inode) for n, inode in names.survivors(policy, chance).items()}
                roots[path].durable = dict(roots[path].seen)
            return self._successor(roots)

    def write_file(self, path: Path, data: bytes, *, synced: bool = True) -> None:
        """Plant a file, as another process would: in place if it is there. This is no step, and works on a dead disk.

        Args:
            path: Of the file; its directory is made where missing.
            data: All its bytes.
            synced: Whether they are durable, and with them all names in the directory.
        """
        with self.mutex:
            names = self._root(path.parent)
            inode = names.seen.get(path.name) or self.create(names, path.name)
            images = inode.images.truncated(0).written(0, data)
            inode.images = images.synced() if synced else images
            inode.mtime_ns = self.tick()
            if synced:
                names.sync()

    def read_file(self, path: Path) -> bytes:
        """Read all of a file as processes see it now. This works on a dead disk."""
        with self.mutex:
            inode = self._root(path.parent).seen.get(path.name)
            if inode is None:
                raise os_error(errno.ENOENT, str(path))
            return inode.images.seen

    def files(self, root: Path) -> dict[str, bytes]:
        """Read all files of a root as processes see them now. This works on a dead disk."""
        with self.mutex:
            return {name: inode.images.seen for name, inode in self._root(root).seen.items()}

    def images(self, root: Path) -> tuple[dict[str, Images], dict[str, Images]]:
        """Tell all of a root's names with what their files hold: the names that processes see, and the durable ones.

        Disks with equal images behave alike, but for times and inode numbers.
        """
        with self.mutex:
            names = self._root(root)
            return (
                {name: inode.images for name, inode in names.seen.items()},
                {name: inode.images for name, inode in names.durable.items()},
            )

    def settled(self, root: Path) -> bool:
        """Whether all of a root is durable, so that a power cut can take nothing away."""
        with self.mutex:
            names = self._root(root)
            return not names.changes and all(inode.images.clean for inode in names.seen.values())

    def _root(self, path: Path) -> Names[Inode]:
        return self._roots.setdefault(path.absolute(), Names())

    def _successor(self, roots: dict[Path, Names[Inode]]) -> SimulatedDisk:
        disk = SimulatedDisk(tick_ns=self.tick_ns)
        disk.now_ns = self.now_ns
        disk._roots = roots
        disk.adopt([inode for names in roots.values() for inode in names.seen.values()])
        return disk
