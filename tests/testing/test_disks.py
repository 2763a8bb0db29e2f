"""The simulated disk counts its steps, dies when told, and keeps inode numbers and time as it says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.testing.simulations import LOG, ROOT, durable
from tokenstore.testing.disks import PersistencePolicy, PowerCut, SimulatedDisk


class TestInodesAndTime:
    """What a simulated disk makes certain that a real one only may do."""

    def test_an_inode_number_is_used_again_at_once(self) -> None:
        """The lowest number is free when neither a name nor a descriptor needs it."""
        root = SimulatedDisk().open_root(ROOT)
        first = root.open("a", "create")
        number = first.stat().inode
        root.unlink("a")
        held = root.open("b", "create").stat().inode
        first.close()

        assert held != number
        assert root.open("c", "create").stat().inode == number

    def test_a_replaced_file_frees_its_number(self) -> None:
        """Moving over a file frees the number of what was there."""
        root = SimulatedDisk().open_root(ROOT)
        for name in ("state", "new"):
            root.open(name, "create").close()
        old = root.stat("state")
        root.replace("new", "state")

        assert old is not None
        assert root.open("third", "create").stat().inode == old.inode

    def test_numbers_are_unique_and_lowest_first_after_a_crash(self) -> None:
        """A file that a crash brings back shares its number with none, and gaps are filled."""
        disk = SimulatedDisk()
        root, file = durable(disk, b"old")
        file.close()
        root.unlink("log")
        root.open("other", "create")
        found = set()

        for seed in range(50):
            crashed = disk.after_crash(PersistencePolicy.SCATTERED, seed=seed).open_root(ROOT)
            numbers = [crashed.open(name, "read").stat().inode for name in crashed.names()]
            found.add(tuple(sorted(crashed.names())))
            assert len(set(numbers)) == len(numbers)
            assert crashed.open("new", "create").stat().inode not in numbers
        assert found == {(), ("log",), ("other",), ("log", "other")}

    def test_time_is_counted(self) -> None:
        """Each change has a time of its own, unless the clock stands still; a test may move it."""
        times = []
        for tick_ns in (1_000_000, 0):
            disk = SimulatedDisk(tick_ns=tick_ns)
            file = disk.open_root(ROOT).open("log", "create")
            before = file.stat().mtime_ns
            file.write(0, b"x")
            times.append(file.stat().mtime_ns - before)
            disk.now_ns += 3600 * 10**9
            file.write(0, b"x")
            times.append(file.stat().mtime_ns - before)

        assert times == [1_000_000, 3600 * 10**9 + 2_000_000, 0, 3600 * 10**9]

    def test_two_roots_are_apart(self) -> None:
        """Roots of one disk share no names; opened twice, a root is the same."""
        disk = SimulatedDisk()
        disk.open_root(ROOT).open("log", "create")

        assert list(disk.open_root(ROOT).names()) == ["log"]
        assert list(disk.open_root(Path("/elsewhere")).names()) == []

    def test_threads_may_share_it(self) -> None:
        """Calls from many threads are whole, and each lock has one holder."""
        disk = SimulatedDisk()
        root = disk.open_root(ROOT)

        def work(number: int) -> None:
            for _ in range(50):
                file, lock = root.open("log", "create"), root.open("lock", "create")
                while not lock.lock(exclusive=True):
                    pass
                file.write(file.stat().size, b"%d" % number)
                root.open(f"own-{number}", "create").close()
                root.unlink(f"own-{number}")
                lock.close()
                file.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(disk.read_file(LOG)) == sorted(b"0123" * 50)
        assert disk.files(ROOT).keys() == {"log", "lock"}


class TestSteps:
    """Steps are numbered, and the power can be cut before any of them."""

    def test_counts_changes_and_syncs_only(self) -> None:
        """Every call that changes or syncs is a step; reading, locking and finding nothing to change are none."""
        labels: list[str] = []
        disk = SimulatedDisk(before_step=labels.append)
        root, file = durable(disk, b"x")
        name, _ = root.create_temporary("t-")
        for nothing in (file.stat, file.unlock, file.close, root.names):
            nothing()
        root.open("log", "create").lock(exclusive=True)
        root.stat("log")
        assert not root.unlink("missing")
        root.replace(name, "log")
        root.open("log", "write").truncate(0)
        root.open("log", "write").datasync()
        root.unlink("log")

        first = ["open_root root-of-the-store", "open log", "write log", "sync log", "directory_sync "]
        assert labels == [
            *first,
            f"create_temporary {name}",
            "replace log",
            "truncate log",
            "datasync log",
            "unlink log",
        ]
        assert disk.steps == len(labels)

    def test_the_power_is_cut_before_the_step(self) -> None:
        """At the chosen step PowerCut is raised and names it, and the step has no effect."""
        disk = SimulatedDisk(crash_at=3)
        root = disk.open_root(ROOT)
        file = root.open("log", "create")

        with pytest.raises(PowerCut, match="before step 3, write log"):
            file.write(0, b"x")
        assert disk.dead
        assert disk.steps == 2
        assert disk.read_file(LOG) == b""

    def test_the_dead_do_nothing(self) -> None:
        """After the cut every call raises PowerCut, reading ones too; only a second close is still a no-op."""
        disk = SimulatedDisk()
        root, file = durable(disk, b"x")
        disk.crash_at = disk.steps + 1
        with pytest.raises(PowerCut):
            file.sync()

        calls: list[Callable[[], object]] = [
            *(file.datasync, file.sync, file.stat, file.unlock, file.forget_dirty, file.close),
            *(lambda: file.read(0, 1), lambda: file.write(0, b""), lambda: file.lock(exclusive=True)),
            *(lambda: file.truncate(0), lambda: root.open("log", "read"), lambda: root.create_temporary("t")),
            *(lambda: root.stat("log"), lambda: root.replace("a", "b"), lambda: root.unlink("a")),
            *(root.names, root.sync, root.close, lambda: disk.open_root(ROOT)),
        ]
        for call in calls:
            with pytest.raises(PowerCut):
                call()
        file.close()
        root.close()

    def test_no_handler_of_errors_swallows_a_cut(self) -> None:
        """PowerCut passes `except OSError` and `except Exception`."""
        assert not issubclass(PowerCut, Exception)

    def test_one_run_gathers_the_disks_of_every_crash(self) -> None:
        """A clone made before each step is the disk that a run with `crash_at` leaves."""
        clones: list[SimulatedDisk] = []
        disk = SimulatedDisk()
        disk.before_step = lambda _: clones.append(disk.clone())
        durable(disk, b"x")

        for step, clone in enumerate(clones, 1):
            again = SimulatedDisk(crash_at=step)
            with pytest.raises(PowerCut):
                durable(again, b"x")
            for policy in PersistencePolicy:
                assert clone.after_crash(policy).files(ROOT) == again.after_crash(policy).files(ROOT)
            assert clone.files(ROOT) == again.files(ROOT)
            assert clone.steps == 0


class TestPlanting:
    """Tests put bytes under the store and look at them."""

    def test_planted_bytes_are_durable_or_not(self) -> None:
        """A planted file is durable with its name, or as one just written; an old one is changed in place."""
        disk = SimulatedDisk()
        disk.write_file(LOG, b"durable")
        inode = disk.open_root(ROOT).open("log", "read").stat().inode
        disk.write_file(LOG, b"volatile", synced=False)
        disk.write_file(ROOT / "other", b"x", synced=False)

        assert disk.read_file(LOG) == b"volatile"
        assert disk.open_root(ROOT).open("log", "read").stat().inode == inode
        assert disk.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"log": b"durable"}

    def test_planting_is_no_step(self) -> None:
        """Planting and looking take no step, and work on a dead disk; what is not there raises."""
        disk = SimulatedDisk(crash_at=1)
        with pytest.raises(PowerCut):
            disk.open_root(ROOT)
        disk.write_file(LOG, b"x")

        assert disk.steps == 0
        assert disk.read_file(LOG) == b"x"
        with pytest.raises(FileNotFoundError):
            disk.read_file(ROOT / "missing")
