"""What the tests of the simulated and the failing disk share."""

from __future__ import annotations

from pathlib import Path

from tokenstore.journal.disk import Access, OsDirectory, OsDisk, OsFile
from tokenstore.testing.disks import PersistencePolicy, SimulatedDisk
from tokenstore.testing.simulated_files import SimulatedDirectory, SimulatedFile

ROOT = Path("/root-of-the-store")
LOG = ROOT / "log"


def durable(disk: SimulatedDisk, content: bytes, name: str = "log") -> tuple[SimulatedDirectory, SimulatedFile]:
    """Make a file whose name and content are durable."""
    root = disk.open_root(ROOT)
    file = root.open(name, "create")
    file.write(0, content)
    file.sync()
    root.sync()
    return root, file


def outcomes(disk: SimulatedDisk, policy: PersistencePolicy, seeds: int = 200) -> set[bytes]:
    """Gather what the log may hold after a power cut."""
    return {disk.after_crash(policy, seed=seed).files(ROOT)["log"] for seed in range(seeds)}


def all_outcomes(disk: SimulatedDisk) -> set[bytes]:
    """Gather what the log may hold after a power cut under any policy."""
    return set().union(*(outcomes(disk, policy) for policy in PersistencePolicy))


class ClosingDirectory(OsDirectory):
    """A directory of the operating system that closes its files too, so that tests leave no descriptors behind."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files: list[OsFile] = []

    def open(self, name: str, access: Access) -> OsFile:
        """Open a file and remember it."""
        self._files.append(super().open(name, access))
        return self._files[-1]

    def create_temporary(self, prefix: str) -> tuple[str, OsFile]:
        """Make a file and remember it."""
        name, file = super().create_temporary(prefix)
        self._files.append(file)
        return name, file

    def close(self) -> None:
        """Close all."""
        for file in self._files:
            file.close()
        super().close()


class ClosingDisk(OsDisk):
    """The disks of this machine, for tests that close nothing."""

    def __init__(self) -> None:
        self._directories: list[ClosingDirectory] = []

    def open_root(self, path: Path) -> OsDirectory:
        """Open a root and remember it."""
        super().open_root(path).close()
        self._directories.append(ClosingDirectory(path))
        return self._directories[-1]

    def close(self) -> None:
        """Close all."""
        for directory in self._directories:
            directory.close()
