"""Verifying tells how everything in a directory is and changes nothing; repairing mends what the next writer would."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.children import start
from tests.loops import ROOT, calls_of, descriptors, store_on
from tests.samples import data_folder, entry, line_of
from tokenstore import InvalidRolloutIdError, StoreClosedError, StoreConfig, TokenCaptureStore
from tokenstore.inspection import WALK_SLICE, Finding, repair, verify
from tokenstore.journal.disk import OsDisk
from tokenstore.journal.layout import TEMPORARY_PREFIX, Names
from tokenstore.journal.stale import TEMPORARY_AGE
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk
from tokenstore.testing.rollouts import agent_rollout

pytestmark = pytest.mark.anyio

LINES = [line_of(entry(f"c{number}")) + b"\n" for number in range(4)]
SIZES = [len(line) for line in LINES]
OLD = TEMPORARY_PREFIX + "old00000"
YOUNG = TEMPORARY_PREFIX + "young000"


def image(root: Path) -> dict[str, Any]:
    """All that a look may not change: names, bytes, times of change, and those of the directory itself."""
    found: dict[str, Any] = {path.name: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in root.iterdir()}
    contents = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    return {**found, "": root.stat().st_mtime_ns, "bytes": contents}


def plant(root: Path, rollout_id: str, tokens: bytes | None = None, **files: bytes) -> None:
    """Put files of a rollout into a directory, as another process would have left them."""
    names = Names.of(rollout_id)
    everything = {**({} if tokens is None else {"tokens": tokens}), **files}
    for name, data in everything.items():
        (root / getattr(names, name)).write_bytes(data)


def lines(rollout_id: str, count: int) -> list[bytes]:
    """Lines of a rollout."""
    return [line_of(entry(f"c{number}", rollout_id=rollout_id)) + b"\n" for number in range(count)]


def plant_temporary(root: Path, name: str, age: float, uid: int | None = None) -> None:
    """Leave a temporary state of an age in seconds, against the file system's clock."""
    path = root / name
    path.write_bytes(b"{")
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, now - int(age * 1e9)))
    if uid is not None:
        os.chown(path, uid, -1)


async def by_name(findings: AsyncIterator[Finding]) -> dict[str, Finding]:
    """Collect findings by the rollout, or the file, that they are about; none twice."""
    found: dict[str, Finding] = {}
    async for finding in findings:
        name = finding.rollout_id or finding.file or ""
        assert name not in found
        found[name] = finding
    return found


async def every_kind(root: Path) -> dict[str, Finding]:
    """Make a directory that holds every kind of trouble, and say what is to be found there."""
    store = TokenCaptureStore(root)
    for name in ("whole", "sealed", "marked", "retired"):
        await store.put(entry(rollout_id=name))
    await store.freeze("sealed")
    await store.retire(["retired"])
    plant(root, "marked", marker=b"lost\n")
    plant(root, "lost-call", intents=b"c0\nc9\n", tokens=lines("lost-call", 1)[0])
    await store.freeze("lost-call")
    await store.close()
    first, second, third = lines("hole", 3)
    plant(root, "hole", first + b"\0" * 40 + second[40:] + third)
    whole = lines("torn", 1)[0]
    plant(root, "torn", whole + b'{"half')
    plant(root, "state", b"".join(lines("state", 2)), state=b"\0\0\0")
    shutil.copy(root / "retired.tokens.state.json", root / "removal.tokens.state.json")
    plant(root, "removal", first)
    newer = line_of(entry("c0", rollout_id="newer"), checksum=False)
    plant(root, "newer", newer.replace(b'"schema_version":1', b'"schema_version":2') + b"\n")
    (root / "planted.tokens.jsonl").symlink_to("/dev/null")
    plant(root, "orphan", lock=b"")
    plant_temporary(root, OLD, TEMPORARY_AGE + 100)
    plant_temporary(root, YOUNG, TEMPORARY_AGE - 100)
    (root / "README").write_bytes(b"not ours")
    tail = f"unterminated:{len(whole)}+6"
    return {
        "whole": Finding(health="whole", rollout_id="whole", calls=1),
        "sealed": Finding(health="whole", rollout_id="sealed", calls=1),
        "marked": Finding(health="masked", rollout_id="marked", calls=1, reasons=("marked:lost",)),
        "lost-call": Finding(health="masked", rollout_id="lost-call", calls=1, reasons=("lost_call:c9",)),
        "retired": Finding(health="retired", rollout_id="retired"),
        "hole": Finding(health="damaged", rollout_id="hole", calls=2, reasons=(f"damaged:{len(first)}+{len(second)}",)),
        "torn": Finding(health="whole", rollout_id="torn", calls=1, leftovers=(tail,)),
        "state": Finding(health="damaged", rollout_id="state", calls=2, reasons=("state_lost",)),
        "removal": Finding(health="retired", rollout_id="removal", leftovers=("records",)),
        "newer": Finding(health="unreadable", rollout_id="newer"),
        "planted": Finding(health="unreadable", rollout_id="planted"),
        "orphan": Finding(health="stale", rollout_id="orphan", file="orphan.tokens.lock"),
        OLD: Finding(health="stale", file=OLD),
    }


def without_words(found: dict[str, Finding]) -> dict[str, Finding]:
    """Leave out what errors say."""
    return {
        name: Finding(health="unreadable", rollout_id=each.rollout_id) if each.health == "unreadable" else each
        for name, each in found.items()
    }


async def test_verifying_finds_every_kind_and_changes_nothing(tmp_path: Path) -> None:
    """Each rollout and each stale file is told with its reasons and offsets, and no byte and no time changes."""
    expected = await every_kind(tmp_path)
    before = image(tmp_path)
    async with TokenCaptureStore(tmp_path) as store:
        found = await by_name(verify(store))

        assert store.statistics().actors <= 2  # of those that could not be read

    assert not [target for target in descriptors().values() if target.startswith(str(tmp_path))]
    assert without_words(found) == expected
    assert "schema_version 2" in found["newer"].reasons[0]
    assert "no regular file" in found["planted"].reasons[0]
    assert {name for name, each in found.items() if each.is_well} == {
        "whole", "sealed", "marked", "lost-call", "retired",
    }  # fmt: skip
    assert image(tmp_path) == before


async def test_repairing_mends_what_the_next_writer_would(tmp_path: Path) -> None:
    """Tails, leftovers and stale files go, damage stays and is written down, and a second repair changes nothing."""
    expected = await every_kind(tmp_path)

    async with TokenCaptureStore(tmp_path) as store:
        found = await by_name(repair(store))
    first = image(tmp_path)
    async with TokenCaptureStore(tmp_path) as store:
        again = await by_name(repair(store))
        verified = await by_name(verify(store))

    assert {name for name, each in found.items() if each.mended} == {"torn", "removal", "orphan", OLD}
    assert found["hole"] == expected["hole"]
    assert {name for name, each in verified.items() if not each.is_well} == {"hole", "state", "newer", "planted"}
    assert image(tmp_path)["bytes"] == first["bytes"]
    assert not any(each.mended for each in again.values())
    assert verified == again
    assert (tmp_path / YOUNG).exists()
    assert (tmp_path / "README").exists()
    assert not (tmp_path / "orphan.tokens.lock").exists()
    assert not (tmp_path / "removal.tokens.jsonl").exists()
    assert (tmp_path / "planted.tokens.jsonl").readlink() == Path("/dev/null")


async def test_a_look_at_much_that_is_not_indexed_changes_nothing(tmp_path: Path) -> None:
    """Who has only read leaves writing the index to writers, also when its actor ends."""
    whole = b"".join(line_of(each) + b"\n" for each in agent_rollout("r", turns=20, first_prompt=9000))
    plant(tmp_path, "r", whole)
    before = image(tmp_path)

    async with TokenCaptureStore(tmp_path) as store:
        await store.peek("r")
        found = await by_name(verify(store))

    assert found["r"].calls == 20
    assert image(tmp_path) == before


@pytest.mark.parametrize(
    ("file", "leftover"),
    [("tokens", "unterminated"), ("intents", "unterminated_intents"), ("marker", "unterminated_marker")],
)
async def test_the_end_of_a_file_without_a_newline_is_told(tmp_path: Path, file: str, leftover: str) -> None:
    """An unterminated end of each kind of file is a leftover with its offset, and a repair ends it."""
    plant(tmp_path, "r", LINES[0], intents=b"c0\n")
    path = tmp_path / getattr(Names.of("r"), file)
    size = path.stat().st_size if path.exists() else 0
    with path.open("ab") as end:
        end.write(b"c1")

    async with TokenCaptureStore(tmp_path) as store:
        (found,) = [each async for each in verify(store, ["r"])]
        (mended,) = [each async for each in repair(store, ["r"])]
        (after,) = [each async for each in verify(store, ["r"])]

    assert found.leftovers == (f"{leftover}:{size}+2",)
    assert not found.is_well
    assert (mended.leftovers, mended.mended) == ((), True)
    assert after.is_well


async def test_a_whole_last_line_gets_its_newline(tmp_path: Path) -> None:
    """A valid last line that lacks only its newline is no call yet; a repair makes it one."""
    plant(tmp_path, "r", LINES[0] + LINES[1][:-1])

    async with TokenCaptureStore(tmp_path) as store:
        (found,) = [each async for each in verify(store, ["r"])]
        (mended,) = [each async for each in repair(store, ["r"])]

    assert (found.calls, found.leftovers) == (1, (f"unterminated:{SIZES[0]}+{SIZES[1] - 1}",))
    assert (mended.calls, mended.leftovers, mended.mended) == (2, (), True)
    assert (tmp_path / "r.tokens.jsonl").read_bytes() == LINES[0] + LINES[1]


async def test_bytes_behind_a_seal_are_no_finding(tmp_path: Path) -> None:
    """A frozen rollout is whole whatever a late writer has left behind its seal."""
    store = TokenCaptureStore(tmp_path)
    await store.put(entry())
    await store.freeze("r")
    with (tmp_path / "r.tokens.jsonl").open("ab") as end:
        end.write(b'{"late')

    (found,) = [each async for each in verify(store, ["r"])]
    await store.close()

    assert found == Finding(health="whole", rollout_id="r", calls=1)


async def test_acked_lines_that_are_gone_are_damage(tmp_path: Path) -> None:
    """Entries that the state knows and the file does not hold are damage, not only a mask."""
    store = TokenCaptureStore(tmp_path)
    await store.put(entry("c0"))
    await store.put(entry("c1"))
    await store.freeze("r")
    (tmp_path / "r.tokens.jsonl").write_bytes(LINES[0])

    (found,) = [each async for each in verify(store, ["r"])]
    await store.close()

    assert (found.health, found.calls) == ("damaged", 1)


async def test_named_rollouts_alone_are_looked_at(tmp_path: Path) -> None:
    """Asked for by name, a rollout that is not there is a finding, and stale files are not looked for."""
    await every_kind(tmp_path)

    async with TokenCaptureStore(tmp_path) as store:
        found = await by_name(verify(store, ["whole", "unknown", "orphan", "whole"]))
        mended = await by_name(repair(store, ["unknown", "orphan"]))

    assert {name: each.health for name, each in found.items()} == {
        "whole": "whole", "unknown": "absent", "orphan": "stale",
    }  # fmt: skip
    assert not found["unknown"].is_well
    assert (mended["unknown"].mended, mended["orphan"].mended) == (False, True)
    assert not (tmp_path / "unknown.tokens.lock").exists()
    assert (tmp_path / OLD).exists()


async def test_bad_names_are_refused_before_anything_is_read() -> None:
    """An id that cannot be one raises at the call."""
    store = store_on(SimulatedDisk())
    with pytest.raises(InvalidRolloutIdError):
        verify(store, ["a/b"])
    with pytest.raises(TypeError):
        repair(store, "r")


async def test_locks_stay_where_a_reference_may_wait(tmp_path: Path) -> None:
    """With whole prompts, a lock file without a rollout is no finding, and no repair removes it."""
    plant(tmp_path, "orphan", lock=b"")
    plant(tmp_path, "r", LINES[0], lock=b"")

    async with TokenCaptureStore(tmp_path, config=StoreConfig(prompt_storage="full")) as store:
        found = await by_name(verify(store))
        mended = await by_name(repair(store))
        (named,) = [each async for each in repair(store, ["orphan"])]

    assert list(found) == list(mended) == ["r"]
    assert (named.health, named.mended) == ("absent", False)
    assert (tmp_path / "orphan.tokens.lock").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")
async def test_temporary_files_of_others_stay(tmp_path: Path) -> None:
    """An old temporary file of another user is theirs, and no link, pipe or directory of that name is touched."""
    plant_temporary(tmp_path, OLD, 2 * TEMPORARY_AGE, uid=12345)
    outside = tmp_path / "outside"
    outside.write_bytes(b"kept")
    past = (0, 0)
    (tmp_path / (TEMPORARY_PREFIX + "hardlink")).hardlink_to(outside)
    (tmp_path / (TEMPORARY_PREFIX + "symlink0")).symlink_to(outside)
    os.mkfifo(tmp_path / (TEMPORARY_PREFIX + "pipe0000"))
    (tmp_path / (TEMPORARY_PREFIX + "folder00")).mkdir()
    for path in tmp_path.iterdir():
        os.utime(path, past, follow_symlinks=False)
    plant_temporary(tmp_path, TEMPORARY_PREFIX + "toolong00", 2 * TEMPORARY_AGE)
    before = image(tmp_path)

    async with TokenCaptureStore(tmp_path) as store:
        assert [each async for each in verify(store)] == []
        assert [each async for each in repair(store)] == []

    assert image(tmp_path) == before


async def test_what_cannot_be_read_is_a_finding_of_its_own() -> None:
    """A rollout whose file may not be opened is told with the reason, and the others are verified all the same."""
    inner = SimulatedDisk()
    disk = FailingDisk(inner, Fault(call="open", errno=errno.EACCES, name_suffix="b.tokens.jsonl", repeat=True))
    for name in "abc":
        inner.write_file(ROOT / f"{name}.tokens.jsonl", lines(name, 2)[0])
    store = store_on(disk)

    found = await by_name(verify(store))
    mended = await by_name(repair(store))
    await store.close()

    assert {name: each.health for name, each in found.items()} == {"a": "whole", "b": "unreadable", "c": "whole"}
    assert "Permission denied" in found["b"].reasons[0]
    assert mended == found


@pytest.mark.skipif(os.getuid() != 0, reason="root makes what another user may not read")
async def test_a_root_of_another_user() -> None:
    """Where a user may list but not read, every rollout is unreadable; where not even list, verifying raises."""
    closed = Path(f"/tmp/tokenstore-closed-{secrets.token_hex(4)}")  # noqa: S108 - a place that others may enter
    try:
        closed.mkdir(mode=0o755)
        await every_kind(closed)
        for path in closed.iterdir():
            if not path.is_symlink():
                path.chmod(0o600)
        before = image(closed)
        with start("verify_as_nobody", closed) as child:
            listed = child.finish()
        closed.chmod(0o700)
        with start("verify_as_nobody", closed) as child:
            refused = child.finish()

        assert {line.split()[1] for line in listed} == {"unreadable"}
        assert "whole unreadable" in listed
        assert refused == ["PermissionError"]
        assert image(closed) == before
    finally:
        shutil.rmtree(closed)


async def test_a_directory_of_the_reference_is_verified(tmp_path: Path) -> None:
    """What the reference wrote is told as its own freeze judges it, without changing it."""
    root = tmp_path / "copy"
    shutil.copytree(data_folder("TOKENSTORE_REFERENCE_DATA"), root, copy_function=partial(shutil.copyfile))
    root.chmod(0o700)
    before = image(root)

    async with TokenCaptureStore(root, config=StoreConfig(prompt_storage="full")) as store:
        found = await by_name(verify(store))
        assert image(root) == before
        mended = await by_name(repair(store))
        after = await by_name(verify(store))

    assert {name: each.health for name, each in found.items()} == {
        "open": "whole", "lagging": "whole", "nostate": "whole", "torn": "whole", "intents": "whole",
        "marked": "masked", "conflict": "masked", "frozen": "whole",
        "dropped": "retired", "retired": "retired", "halfdropped": "retired",
    }  # fmt: skip
    assert {name for name, each in found.items() if not each.is_well} == {"torn", "halfdropped"}
    assert {name for name, each in mended.items() if each.mended} == {"torn", "halfdropped"}
    assert all(each.is_well for each in after.values())


@pytest.mark.parametrize("tool", [pytest.param(verify, marks=pytest.mark.kernel), repair])
async def test_both_are_safe_beside_a_live_writer(tmp_path: Path, tool: Any) -> None:
    """While another process writes, removes and reuses rollouts, nothing of it is lost or found broken."""
    rounds = 0
    with start("write_and_remove", tmp_path, 12) as child:
        assert child.line() == "began"
        async with TokenCaptureStore(tmp_path) as store:
            while not (tmp_path / "done").exists():
                rounds += 1
                async for found in tool(store):  # one that is removed and made anew meanwhile may come twice
                    assert found.health in ("whole", "retired", "stale")
        acked = child.finish()

    async with TokenCaptureStore(tmp_path) as store:
        found = await by_name(repair(store))
        assert all(each.is_well for each in found.values())
        assert await calls_of(store, "kept") == acked
    assert rounds


async def test_memory_does_not_grow_with_the_directory() -> None:
    """Of many rollouts, none but the one looked at has an actor, and the walk goes on from slice to slice."""
    count = 2 * WALK_SLICE + 10
    disk = SimulatedDisk()
    for number in range(count):
        disk.write_file(ROOT / f"r{number}.tokens.intents", b"c0\n")
    async with store_on(disk) as store:
        seen = set()
        most = 0
        async for finding in verify(store):
            seen.add(finding.rollout_id)
            most = max(most, store.statistics().actors)

    assert len(seen) == count
    assert most <= 1


async def test_an_actor_that_is_there_stays() -> None:
    """Verifying takes no warm actor away from those who use the rollout."""
    async with store_on(SimulatedDisk()) as store:
        await store.put(entry())

        (found,) = [each async for each in verify(store)]

        assert found.calls == 1
        assert store.statistics().actors == 1


async def test_a_walk_ends_with_the_store() -> None:
    """A walk that was begun before the store was closed raises instead of starting anew."""
    disk = SimulatedDisk()
    for number in range(WALK_SLICE + 1):
        disk.write_file(ROOT / f"r{number}.tokens.intents", b"c0\n")
    store = store_on(disk)
    findings = verify(store)
    await anext(findings)
    await store.close()

    with pytest.raises(StoreClosedError):
        assert [each async for each in findings] == []
    await store.close()


async def test_a_held_lock_is_unreadable_not_a_hang(tmp_path: Path) -> None:
    """A rollout whose lock a stopped process holds is told as such after the store's patience."""
    plant(tmp_path, "r", LINES[0], lock=b"")
    with start("hold_lock", tmp_path / "r.tokens.lock") as child:
        assert child.line() == "locked"
        async with TokenCaptureStore(tmp_path, config=StoreConfig(lock_timeout=0.05)) as store:
            (found,) = [each async for each in verify(store)]
            (mended,) = [each async for each in repair(store)]

    assert found.health == mended.health == "unreadable"
    assert "stayed locked" in found.reasons[0]


async def test_what_cannot_be_removed_is_told(tmp_path: Path) -> None:
    """A stale file that cannot be removed is a finding with the reason."""
    plant_temporary(tmp_path, OLD, 2 * TEMPORARY_AGE)
    disk = FailingDisk(OsDisk(), Fault(call="unlink", errno=errno.EROFS, name_suffix=OLD, repeat=True))
    store = TokenCaptureStore(tmp_path, _disk=disk)

    (found,) = [each async for each in repair(store)]
    await store.close()

    assert (found.health, found.file, found.is_well) == ("unreadable", OLD, False)
    assert "Read-only" in found.reasons[0]
