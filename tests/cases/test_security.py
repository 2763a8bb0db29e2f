"""Whatever is planted at a rollout's names is never followed, never waited for, and harms no other rollout."""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest

from tests.cases.given import assert_same, entry, fields
from tokenstore import (
    CorruptRolloutError,
    RemovalError,
    TokenCaptureStore,
    TokenEntry,
)

pytestmark = pytest.mark.anyio

SECRET = b"not of this store\n"


def _link_to_file(path: Path, outside: Path) -> None:
    outside.write_bytes(SECRET)
    path.symlink_to(outside)


def _hard_link(path: Path, outside: Path) -> None:
    outside.write_bytes(SECRET)
    path.hardlink_to(outside)


def _link_to_directory(path: Path, outside: Path) -> None:
    outside.mkdir()
    path.symlink_to(outside)


def _full_directory(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "kept").write_bytes(SECRET)


def _socket(path: Path, _: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's address is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "dangling link": lambda path, outside: path.symlink_to(outside),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "link to a file": _link_to_file,
    "link to a directory": _link_to_directory,
    "hard link": _hard_link,
    "pipe": lambda path, _: os.mkfifo(path),
    "directory": lambda path, _: path.mkdir(),
    "full directory": _full_directory,
    "socket": _socket,
}
NAMES = ["lock", "jsonl", "state.json", "intents", "incomplete"]
PLANTED = pytest.mark.parametrize("kind", PLANTS)
NAMED = pytest.mark.parametrize("name", NAMES)


def outside_of(folder: Path) -> list[tuple[str, int, bytes]]:
    """What lies beside the root: names, numbers of links, contents."""
    found = [path for path in sorted(folder.rglob("*")) if path.relative_to(folder).parts[0] != "root"]
    return [(path.name, path.stat().st_nlink, path.read_bytes() if path.is_file() else b"") for path in found]


@PLANTED
@NAMED
async def test_what_is_planted_is_a_clear_error_and_nothing_is_followed(kind: str, name: str, tmp_path: Path) -> None:
    """Each operation that needs the file names it in a clear error; nothing outside changes; other rollouts go on."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    async with TokenCaptureStore(root) as store:
        await store.put(TokenEntry(**{**fields(1), "rollout_id": "other"}))
        PLANTS[kind](root / f"r.tokens.{name}", outside)
        before = outside_of(tmp_path)

        outcomes: dict[str, str] = {}
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "put": lambda: store.put(entry(1)),
            "begin": lambda: store.begin_call("r", "c2"),
            "mark": lambda: store.mark_incomplete("r", "c3"),
            "refuse": lambda: store.refuse_call("r", model_call_id="c4", code="x"),
            "peek": lambda: store.peek("r"),
            "freeze": lambda: store.freeze("r"),
            "entries": lambda: anext(store.entries("r")),
        }
        for operation, run in operations.items():
            try:
                await run()
                outcomes[operation] = "works"
            except CorruptRolloutError as error:
                outcomes[operation] = error.file
        await store.put(TokenEntry(**{**fields(2), "rollout_id": "other"}))
        listed = {status.rollout_id: status async for status in store.rollouts()}
        other = await store.freeze("other")

    needing = {"intents": {"begin", "peek", "freeze"}}.get(name, set(outcomes))
    assert {operation for operation, outcome in outcomes.items() if outcome != "works"} == needing
    assert set(outcomes.values()) <= {"works", f"r.tokens.{name}"}
    assert len(other.entries) == 2
    assert listed["other"].calls == 2
    assert outside_of(tmp_path) == before


@PLANTED
@NAMED
@pytest.mark.parametrize("delete", [False, True], ids=["retire", "delete"])
async def test_a_removal_takes_the_planted_away_or_says_why_not(
    kind: str, name: str, delete: bool, tmp_path: Path
) -> None:
    """Removing such a rollout removes the name alone, or names it in the error; others of the batch are done."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    async with TokenCaptureStore(root) as store:
        await store.put(entry(1))
        await store.begin_call("r", "c2")
        await store.put(TokenEntry(**{**fields(1), "rollout_id": "other"}))
        path = root / f"r.tokens.{name}"
        path.unlink(missing_ok=True)
        PLANTS[kind](path, outside)
        remove: Callable[[list[str]], Awaitable[Mapping[str, list[str]]]] = store.delete if delete else store.retire  # type: ignore[assignment]
        removed: Mapping[str, list[str]]

        try:
            removed = await remove(["r", "other"])
            failed, said = False, path.name
        except RemovalError as error:
            removed, failed, said = error.payload, list(error.causes) == ["r"], str(error)
        if failed:
            _remove(path)
            removed_now = await remove(["r", "other"])
            assert removed_now["removed"] + removed_now["absent"] == ["r", "other"]

    assert "other" in removed["removed"]
    assert path.name in said
    assert failed == (name == "lock" or kind in ("directory", "full directory"))
    left = {found.name for found in root.iterdir() if not found.name.endswith(".lock")}
    assert left == (set() if delete else {"r.tokens.state.json", "other.tokens.state.json"})
    if kind in ("link to a file", "hard link"):
        assert outside.read_bytes() == SECRET
    assert outside.exists() == (kind in ("link to a file", "hard link", "link to a directory"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@PLANTED
async def test_a_file_that_is_replaced_while_it_is_open_is_noticed(kind: str, tmp_path: Path) -> None:
    """A planted name is noticed also by a store that has the rollout's files open, and nothing is written there."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    async with TokenCaptureStore(root) as store:
        await store.put(entry(1))
        path = root / "r.tokens.jsonl"
        path.rename(tmp_path / "moved")
        PLANTS[kind](path, outside)

        with pytest.raises(CorruptRolloutError, match=path.name):
            await store.put(entry(2))
        _remove(path)
        (tmp_path / "moved").rename(path)
        await store.put(entry(2))
        snapshot = await store.freeze("r")

    assert_same(snapshot.entries, entry(1), entry(2))


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_files_are_the_owners_alone(mask: int, tmp_path: Path) -> None:
    """Whatever the umask, files have mode 0600 and a new root 0700."""
    old = os.umask(mask)
    try:
        async with TokenCaptureStore(tmp_path / "new" / "root") as store:
            await store.put(entry(1))
            await store.begin_call("r", "c2")
            await store.mark_incomplete("r", "c3")
    finally:
        os.umask(old)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new" / "root").iterdir()}
    assert len(modes) == 5
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "new" / "root").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o700])
@pytest.mark.parametrize("linked", [False, True], ids=["directory", "link"])
async def test_an_existing_root_is_taken_as_it_is(mode: int, linked: bool, tmp_path: Path) -> None:
    """A root that is there keeps its mode, and may be a link to a directory."""
    real = tmp_path / "real"
    real.mkdir()
    real.chmod(mode)
    root = tmp_path / "link" if linked else real
    if linked:
        root.symlink_to(real)

    async with TokenCaptureStore(root) as store:
        await store.put(entry(1))

    assert stat.S_IMODE(real.stat().st_mode) == mode
    assert (real / "r.tokens.jsonl").exists()


@pytest.mark.parametrize("kind", ["dangling link", "link to a file", "pipe", "socket"])
def test_a_root_that_is_no_directory_is_an_error(kind: str, tmp_path: Path) -> None:
    """A root that is something else is refused at once, and nothing is made in its place."""
    PLANTS[kind](tmp_path / "root", tmp_path / "outside")

    with pytest.raises(OSError, match="root"):
        TokenCaptureStore(tmp_path / "root")

    assert (tmp_path / "outside").exists() == (kind == "link to a file")
