"""A power cut loses what its policy says, and a failed sync what Linux loses."""

from __future__ import annotations

import pytest

from tests.testing.simulations import ROOT, all_outcomes, durable, outcomes
from tokenstore.testing.disks import PersistencePolicy, PowerCut, SimulatedDisk
from tokenstore.testing.persistence import BLOCK_BYTES


class TestAfterACrash:
    """What each policy keeps."""

    def test_synced_facts_survive_everything(self) -> None:
        """What was synced, with its name, is there under every policy."""
        disk = SimulatedDisk()
        durable(disk, b"kept" * 100)

        for policy in PersistencePolicy:
            assert outcomes(disk, policy, 5) == {b"kept" * 100}

    def test_a_name_is_durable_only_after_the_directory_was_synced(self) -> None:
        """A synced file whose directory was not synced is gone where names are lost, and there where they are kept."""
        disk = SimulatedDisk()
        file = disk.open_root(ROOT).open("log", "create")
        file.write(0, b"x")
        file.sync()

        assert disk.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {}
        for policy in (PersistencePolicy.NAMES, PersistencePolicy.NULS, PersistencePolicy.PREFIX):
            assert disk.after_crash(policy).files(ROOT) == {"log": b"x"}
        found = [disk.after_crash(PersistencePolicy.SCATTERED, seed=seed).files(ROOT) for seed in range(20)]
        assert {} in found
        assert {"log": b"x"} in found

    def test_a_durable_name_does_not_make_the_bytes_so(self) -> None:
        """A file whose directory was synced and that was not is empty where bytes are lost."""
        disk = SimulatedDisk()
        root = disk.open_root(ROOT)
        root.open("log", "create").write(0, b"x")
        root.sync()

        assert outcomes(disk, PersistencePolicy.SYNCED) == {b""}
        assert outcomes(disk, PersistencePolicy.NAMES) == {b""}
        assert outcomes(disk, PersistencePolicy.NULS) == {b"\0"}
        assert outcomes(disk, PersistencePolicy.PREFIX) == {b"", b"x"}
        assert outcomes(disk, PersistencePolicy.SCATTERED) == {b"\0", b"x"}

    def test_moves_and_removals_are_undone_where_names_are_lost(self) -> None:
        """A replace and an unlink that were not synced have not happened where names are lost."""
        disk = SimulatedDisk()
        disk.write_file(ROOT / "state", b"old")
        disk.write_file(ROOT / "records", b"facts")
        root = disk.open_root(ROOT)
        name, file = root.create_temporary("t-")
        file.write(0, b"new")
        file.sync()
        root.replace(name, "state")
        root.unlink("records")

        assert disk.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"state": b"old", "records": b"facts"}
        assert disk.after_crash(PersistencePolicy.NAMES).files(ROOT) == {"state": b"new"}

    def test_scattered_names_are_any_of_the_changes(self) -> None:
        """A later change of names may survive an earlier one, but no file ever has two names."""
        disk = SimulatedDisk()
        for name in ("state", "new", "records"):
            disk.write_file(ROOT / name, name.encode())
        root = disk.open_root(ROOT)
        root.replace("new", "state")
        root.replace("state", "third")
        root.unlink("records")
        found = [disk.after_crash(PersistencePolicy.SCATTERED, seed=seed).files(ROOT) for seed in range(100)]

        assert {"state": b"state", "new": b"new"} in found
        assert {"third": b"new", "records": b"records"} in found
        assert {"state": b"state", "third": b"new"} in found
        assert all(len(set(files.values())) == len(files) for files in found)

    def test_an_append_is_lost_nul_cut_or_full_of_holes(self) -> None:
        """Appended bytes that were not synced: none, NULs, any prefix, or any of the blocks."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"kept")
        new = b"n" * (2 * BLOCK_BYTES)
        file.write(4, new)
        blocks = [BLOCK_BYTES - 4, BLOCK_BYTES, 4]

        assert outcomes(disk, PersistencePolicy.NAMES) == {b"kept"}
        assert outcomes(disk, PersistencePolicy.NULS) == {b"kept" + bytes(len(new))}
        prefixes = outcomes(disk, PersistencePolicy.PREFIX, 2000)
        assert prefixes == {b"kept" + new[:size] for size in range(len(new) + 1)}
        holes = {
            b"kept" + b"".join((b"n" if number >> bit & 1 else b"\0") * size for bit, size in enumerate(blocks))
            for number in range(8)
        }
        assert outcomes(disk, PersistencePolicy.SCATTERED) == holes

    def test_an_overwritten_block_is_old_or_new_or_nul(self) -> None:
        """Durable bytes overwritten in place: old, NUL where they changed, or block by block old or new."""
        disk = SimulatedDisk()
        old, new = b"o" * 2 * BLOCK_BYTES, b"n" * 2 * BLOCK_BYTES
        _, file = durable(disk, old)
        file.write(0, new)
        mixed = {a * BLOCK_BYTES + b * BLOCK_BYTES for a in (b"o", b"n") for b in (b"o", b"n")}

        assert outcomes(disk, PersistencePolicy.NAMES) == {old}
        assert outcomes(disk, PersistencePolicy.NULS) == {bytes(len(old))}
        assert outcomes(disk, PersistencePolicy.PREFIX) == mixed
        assert outcomes(disk, PersistencePolicy.SCATTERED) == mixed

    def test_bytes_rewritten_with_themselves_are_safe(self) -> None:
        """A durable byte overwritten with the same one survives every policy, also beside one that changes."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"abc")
        file.write(0, b"aXc")

        assert outcomes(disk, PersistencePolicy.NULS) == {b"a\0c"}
        file.write(0, b"abc")
        assert all_outcomes(disk) == {b"abc"}

    def test_a_cut_may_not_have_happened(self) -> None:
        """A truncate that was not synced is undone where bytes are lost, done where sizes are kept, else either."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"kept and cut")
        file.truncate(4)

        assert outcomes(disk, PersistencePolicy.NAMES) == {b"kept and cut"}
        assert outcomes(disk, PersistencePolicy.NULS) == {b"kept"}
        assert outcomes(disk, PersistencePolicy.PREFIX) == {b"kept", b"kept and cut"}
        assert outcomes(disk, PersistencePolicy.SCATTERED) == {b"kept", b"kept and cut"}
        file.datasync()
        assert all_outcomes(disk) == {b"kept"}

    def test_a_cut_file_that_grew_again_lies_in_fresh_blocks(self) -> None:
        """Bytes appended after an unsynced cut may be NULs even where they equal the old ones."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"kept tail")
        file.truncate(4)
        file.write(4, b" tail")

        assert outcomes(disk, PersistencePolicy.NULS) == {b"kept\0\0\0\0\0"}
        assert outcomes(disk, PersistencePolicy.SCATTERED) == {b"kept\0\0\0\0\0", b"kept tail"}
        assert b"kept ta" in outcomes(disk, PersistencePolicy.PREFIX)

    def test_chance_is_replayed_by_its_seed(self) -> None:
        """The same seed gives the same disk."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"")
        file.write(0, bytes(range(200)))

        for seed in range(20):
            again = [disk.after_crash(PersistencePolicy.PREFIX, seed=seed).files(ROOT) for _ in range(2)]
            assert again[0] == again[1]

    def test_a_crashed_disk_is_settled_and_apart(self) -> None:
        """What a crash left is durable, unlocked, counts from zero, and shares no change with the disk it came from."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"old")
        file.lock(exclusive=True)
        crashed = disk.after_crash(PersistencePolicy.NAMES)
        assert crashed.steps == 0
        again = crashed.open_root(ROOT).open("log", "write")
        assert again.lock(exclusive=True)
        again.write(0, b"new")

        assert disk.read_file(ROOT / "log") == b"old"
        assert crashed.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"log": b"old"}

    def test_a_killed_process_loses_its_locks_only(self) -> None:
        """After SIGKILL what was written is there, its locks are gone, and it is as volatile as before."""
        disk = SimulatedDisk(crash_at=8)
        root, file = durable(disk, b"old")
        file.lock(exclusive=True)
        file.write(3, b"er")
        root.open("new", "create")
        with pytest.raises(PowerCut):
            root.sync()
        killed = disk.after_kill()

        assert killed.files(ROOT) == {"log": b"older", "new": b""}
        assert killed.open_root(ROOT).open("log", "write").lock(exclusive=True)
        assert killed.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"log": b"old"}
        killed.open_root(ROOT).sync()
        assert killed.after_crash(PersistencePolicy.SYNCED).files(ROOT) == {"log": b"old", "new": b""}


class TestForgottenPages:
    """A failed sync marks dirty pages clean, as Linux does."""

    def test_no_later_sync_writes_forgotten_bytes(self) -> None:
        """Readers still see them, a sync succeeds, and a power cut leaves NULs, or old bytes if there were any."""
        disk = SimulatedDisk()
        root = disk.open_root(ROOT)
        file = root.open("log", "create")
        file.write(0, b"old")
        file.sync()
        root.sync()
        file.write(0, b"new and more")
        file.forget_dirty()
        file.sync()

        assert file.read(0, 99) == b"new and more"
        for policy in PersistencePolicy:
            assert outcomes(disk, policy, 20) == {b"old" + bytes(9)}

    def test_bytes_written_again_are_durable(self) -> None:
        """What is rewritten after the loss reaches the disk with the next sync, and only that."""
        disk = SimulatedDisk()
        root = disk.open_root(ROOT)
        file = root.open("log", "create")
        root.sync()
        file.write(0, b"lost kept")
        file.forget_dirty()
        file.write(5, b"kept more")
        file.datasync()

        assert file.read(0, 99) == b"lost kept more"
        assert outcomes(disk, PersistencePolicy.SYNCED) == {b"\0\0\0\0\0kept more"}

    def test_a_cut_back_and_append_mends_the_file(self) -> None:
        """Cutting the lost bytes off, syncing and writing anew leaves nothing of the loss."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"kept")
        file.write(4, b" lost")
        file.forget_dirty()
        file.truncate(4)
        file.datasync()
        file.write(4, b" new")
        file.datasync()

        assert all_outcomes(disk) == {b"kept new"}

    def test_a_clean_file_forgets_nothing(self) -> None:
        """A failed sync with nothing to write loses nothing, and the next write is durable again."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"kept")
        file.forget_dirty()
        file.write(4, b" new")
        file.datasync()

        assert outcomes(disk, PersistencePolicy.SYNCED) == {b"kept new"}

    def test_the_loss_survives_a_kill(self) -> None:
        """A process started after a kill sees the lost bytes, and they are still lost."""
        disk = SimulatedDisk()
        _, file = durable(disk, b"")
        file.write(0, b"lost")
        file.forget_dirty()
        killed = disk.after_kill()
        again = killed.open_root(ROOT).open("log", "write")
        again.datasync()

        assert again.read(0, 9) == b"lost"
        assert outcomes(killed, PersistencePolicy.SYNCED) == {bytes(4)}
