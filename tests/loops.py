"""What tests of loops, hosts and actors share: a disk that stops where it is told, and other loops to call from."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from tokenstore import StoreConfig, TokenCaptureStore
from tokenstore.hosting import Host
from tokenstore.journal.disk import Disk, File
from tokenstore.journal.root import Root
from tokenstore.testing import FailingDisk, Fault, SimulatedDisk
from tokenstore.testing.failing_disk import Call, FailingDirectory, FailingFile
from tokenstore.testing.simulated_files import SimulatedFile
from tokenstore.threads import Threads

T = TypeVar("T")
ROOT = Path("/root-of-the-store")
PATIENCE = 20.0
"""Seconds after which what should have happened long ago counts as a stall."""
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}
"""The event loops that callers use, for tests that start one of their own."""
LOOPS = [name for name in BACKENDS if name != "uvloop" or os.environ.get("TOKENSTORE_LOOPS") == "all"]
"""Those that tests are run on, as in `conftest`."""


def store_on(disk: Disk, **config: Any) -> TokenCaptureStore:
    """A store on a disk."""
    return TokenCaptureStore(ROOT, config=StoreConfig(**config), _disk=disk)


class Outcomes:
    """What came of calls that run beside a test, by name."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self.errors: dict[str, Exception] = {}

    async def of(self, name: str, function: Callable[..., Any], *args: Any) -> None:
        """Await a call and note what came of it."""
        try:
            self.results[name] = await function(*args)
        except Exception as error:  # noqa: BLE001 - it is looked at later
            self.errors[name] = error


async def queue(tasks: anyio.abc.TaskGroup, store: TokenCaptureStore, function: Callable[..., Any], *args: Any) -> None:
    """Start calls one after the other: each is in the mailbox before the next."""
    queued = store.statistics().queued
    tasks.start_soon(function, *args)
    await until(lambda: store.statistics().queued > queued)


async def calls_of(store: TokenCaptureStore, rollout_id: str = "r") -> list[str]:
    """The calls of a rollout, in file order."""
    return [each.model_call_id for each in (await store.peek(rollout_id)).entries]


class HeldDisk(FailingDisk):
    """A disk that stops at the next call of a kind, until it may go on."""

    def __init__(self, inner: Disk | None = None, fault: Fault | None = None) -> None:
        super().__init__(inner or SimulatedDisk(), fault)
        self._held: tuple[str, str] | None = None
        self._reached = threading.Event()
        self._freed = threading.Event()

    def hold(self, call: Call, name_suffix: str = "") -> None:
        """Stop at the next call of that kind on such a name, once."""
        self._reached.clear()
        self._freed.clear()
        self._held = call, name_suffix

    async def reached(self) -> None:
        """Wait until the disk stands still."""
        assert await anyio.to_thread.run_sync(self._reached.wait, PATIENCE), "the held call never came"

    def free(self) -> None:
        """Let it go on."""
        self._held = None
        self._freed.set()

    def due(self, call: Call, name: str) -> Fault | None:
        """Count a call, after standing still if it is the one."""
        held = self._held
        if held is not None and call == held[0] and name.endswith(held[1]):
            self._held = None
            self._reached.set()
            assert self._freed.wait(PATIENCE), "the held call was never let go on"
        return super().due(call, name)


class QueuedDisk(HeldDisk):
    """A held disk that makes many syncs for one thread, as the kernel does: each when its end is asked for."""

    def open_root(self, path: Path) -> FailingDirectory:
        """Open a directory that takes syncs."""
        return _QueuedDirectory(self, self.inner.open_root(path))


class _QueuedDirectory(FailingDirectory):
    def syncs(self) -> QueuedSyncs:
        return QueuedSyncs()


class QueuedSyncs:
    """Syncs that were begun."""

    size = 64

    def __init__(self) -> None:
        self.begun: list[tuple[int, Callable[[], None], str]] = []
        """Key, what makes the sync, and the file's name."""

    def begin(self, files: Sequence[tuple[int, File]], *, whole: bool) -> int:
        """Take all of them."""
        for key, file in files:
            assert isinstance(file, FailingFile)
            self.begun.append((key, file.sync if whole else file.datasync, file._name))
        return len(files)

    def ended(self, *, wait: bool) -> list[tuple[int, OSError | None]]:
        """Make those that were begun, if somebody waits for them."""
        if not wait:
            return []
        begun, self.begun = self.begun, []
        return [(key, _failure_of(sync)) for key, sync, _ in begun]

    def close(self) -> None:
        """Nothing is on its way."""
        assert not self.begun


def _failure_of(sync: Callable[[], None]) -> OSError | None:
    try:
        sync()
    except OSError as error:
        return error
    return None


@asynccontextmanager
async def opened(store: TokenCaptureStore, *, entered: bool) -> AsyncIterator[TokenCaptureStore]:
    """Use a store in one of both ways, and close it."""
    if entered:
        async with store:
            yield store
    else:
        try:
            yield store
        finally:
            await store.close()


def hold_lock(disk: SimulatedDisk, rollout_id: str = "r") -> SimulatedFile:
    """Hold a rollout's lock, as another process would; closing the file gives it back."""
    file = disk.open_root(ROOT).open(f"{rollout_id}.tokens.lock", "create")
    assert file.lock(exclusive=True)
    return file


@asynccontextmanager
async def hosting(disk: Disk | None = None, **config: Any) -> AsyncIterator[Host]:
    """Run a host in this loop, as a store that is entered does."""
    directory = (disk or SimulatedDisk()).open_root(ROOT)
    host = Host(Root(directory, StoreConfig(**config)), ROOT, Threads())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        await host.running.wait()
        try:
            yield host
        finally:
            host.begin_close()


def run_in(loop: str, function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run a function in a new event loop in this thread."""
    backend, options = BACKENDS[loop]
    return anyio.run(function, *args, backend=backend, backend_options=options)


async def elsewhere(loop: str, function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run a function in a new event loop in another thread."""
    return await anyio.to_thread.run_sync(run_in, loop, function, *args)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what announces itself by no event."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - see above
            await anyio.sleep(0.001)


async def ticks(count: int) -> None:
    """Let everything else that is ready run so many times."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


def store_tasks() -> list[str]:
    """Names of the tasks of stores in the running loop."""
    return sorted(task.name or "" for task in anyio.get_running_tasks() if "tokenstore." in (task.name or ""))


def descriptors() -> dict[str, str]:
    """What this process has open."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[link.name] = str(link.readlink())
        except FileNotFoundError:
            continue
    return found


@contextmanager
def nothing_leaks(root: Path) -> Iterator[None]:
    """Hold what runs inside to closing every file below a root, and every thread of a store that it started."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    end = time.monotonic() + PATIENCE
    while (left := _left(root, before)) and time.monotonic() < end:
        time.sleep(0.001)
    assert not left


def _left(root: Path, before: set[threading.Thread]) -> list[str]:
    files = [target for target in descriptors().values() if target.startswith(str(root))]
    return files + [thread.name for thread in set(threading.enumerate()) - before if thread.name == "tokenstore"]
