"""Full disks, missing inodes and descriptors, read-only mounts, lock holders that stop or die, clocks that jump."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import TOP, entry, opened, start
from tests.kernel import needs
from tokenstore import DurabilityError, LockTimeoutError, StoreConfig, TokenCaptureStore
from tokenstore.testing import first_difference

FILLING = """
import sys
from pathlib import Path
from tests.children import entry
from tokenstore import DurabilityError, TokenCaptureStore
root = Path(sys.argv[1])
store = TokenCaptureStore(root / "store")
stuffing = root / "stuffing"
acked, refused = [], []
def use(number):
    try:
        store.append(entry(f"r{number % 3}", f"c{number}", number=number, text="A" * 2000))
        acked.append(number)
    except DurabilityError as error:
        refused.append(error.errno)
use(0)
use(1)
FILL
for number in range(2, 60):
    use(number)
FREE
for number in range(60, 66):
    use(number)
print(sorted(set(refused)), len(refused) > 0, all(number in acked for number in range(60, 66)))
there = [int(e.model_call_id[1:]) for r in range(3) for e in store.read_entries(f"r{r}")]
print(sorted(there) == acked)
"""
FULL = {
    "bytes": ("size=128k", "stuffing.write_bytes(bytes(64 * 1024))", "stuffing.unlink()"),
    "inodes": (
        "nr_inodes=12",
        "[(root / f'n{n}').touch() for n in range(5)]",
        "[(root / f'n{n}').unlink() for n in range(5)]",
    ),
}


MORE_JUMPS = ("+100d", "-20000d")


@pytest.mark.parametrize("what", FULL)
def test_a_full_tmpfs_is_an_error_until_space_is_back(what: str, tmp_path: Path) -> None:
    """Out of bytes or of inodes each put raises or is there whole; when space is back, work goes on."""
    options, fill, free = FULL[what]
    script = tmp_path / "script.py"
    script.write_text(FILLING.replace("FILL", fill).replace("FREE", free), encoding="utf-8")
    place = tmp_path / "full"
    place.mkdir()
    command = f'mount -t tmpfs -o {options} tmpfs "$1" && exec "$0" "$2" "$1"'
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    with needs.mounts(copied=True):
        needs.namespaces()
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", command, sys.executable, place, script],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )

    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"[{errno.ENOSPC}] True True", "True"]


def test_a_read_only_mount_is_an_error_until_it_is_over(tmp_path: Path) -> None:
    """While the file system is read-only writing raises and reading works; afterwards writing works again."""
    needs.root()
    place = tmp_path / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    try:
        with opened(place) as store:
            store.append(entry("r", "c1", number=1))
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        with opened(place) as store:
            with pytest.raises(DurabilityError) as caught:
                store.append(entry("r", "c2", number=2))
            read = store.read_entries("r")
            subprocess.run(["mount", "-o", "remount,rw", place], check=True)
            store.append(entry("r", "c2", number=2))
            snapshot = store.freeze_now("r")
    finally:
        subprocess.run(["umount", "-l", place], check=True)

    assert caught.value.errno == errno.EROFS
    assert [each.model_call_id for each in read] == ["c1"]
    assert [each.model_call_id for each in snapshot.entries] == ["c1", "c2"]
    assert not snapshot.incomplete


def test_a_stopped_lock_holder_times_out_its_own_rollout_alone(tmp_path: Path) -> None:
    """A holder that was stopped makes its rollout's operations time out; others work, and so does it later."""
    store = TokenCaptureStore(tmp_path, config=StoreConfig(lock_timeout=0.2))
    with start("hold_lock", store.lock_path_for("r")) as holder:
        assert holder.line() == "locked"
        holder.process.send_signal(signal.SIGSTOP)
        with pytest.raises(LockTimeoutError, match=r"r\.tokens\.lock"):
            store.append(entry("r", "c1"))
        store.append(entry("s", "c1"))
        holder.process.send_signal(signal.SIGCONT)
        holder.say()
        assert holder.finish() == []
    store.append(entry("r", "c1"))

    assert len(store.read_entries("r")) == len(store.read_entries("s")) == 1


def test_a_lock_that_a_fork_inherited_is_waited_for(tmp_path: Path) -> None:
    """Where a strange holder died and its child still has the lock, operations time out until the child ends."""
    store = TokenCaptureStore(tmp_path, config=StoreConfig(lock_timeout=0.2))
    with start("fork_and_die", store.lock_path_for("r")) as holder:
        heir = int(holder.line())
        holder.process.wait()
        with pytest.raises(LockTimeoutError):
            store.append(entry("r", "c1"))
        os.kill(heir, signal.SIGKILL)
        assert holder.line() == ""
    store.append(entry("r", "c1"))

    assert len(store.read_entries("r")) == 1


@pytest.mark.parametrize("jump", ["-100d", *(pytest.param(jump, marks=pytest.mark.kernel) for jump in MORE_JUMPS)])
def test_a_clock_that_jumps_changes_no_data(jump: str, tmp_path: Path) -> None:
    """A process whose clock is far off stores and freezes as any other, and others read it."""
    library = needs.faketime()
    mine = entry("r", "c1", number=1)
    TokenCaptureStore(tmp_path).append(mine)
    with start("freeze_later", tmp_path, env={"LD_PRELOAD": library, "FAKETIME": jump}) as child:
        (said,) = child.finish()

    snapshot = TokenCaptureStore(tmp_path).freeze_now("r")

    assert said.split()[:2] == ["2", "3"]
    assert first_difference(mine, snapshot.entries[0]) is None
    assert (len(snapshot.entries), snapshot.version, snapshot.incomplete) == (2, 3, False)
