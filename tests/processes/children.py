"""What the processes of these tests run; each function talks in lines, and is started by `start`."""

from __future__ import annotations

import asyncio
import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

import tokenstore
from tests.children import Child, say, start_module
from tests.loops import PATIENCE, HeldDisk, run_in
from tests.samples import entry
from tokenstore import StoreClosedError, TokenCaptureStore
from tokenstore.journal.disk import OsDisk


def start(name: str, *arguments: object) -> Child:
    """Start a process that runs a function of this module."""
    return start_module("tests.processes.children", name, *arguments)


def put_here(store: TokenCaptureStore, call_id: str) -> None:
    """Put an entry from this thread, and say so."""
    store.append(entry(call_id))
    say("acked", call_id)


async def put(store: TokenCaptureStore, call_id: str) -> None:
    """Put an entry from this loop, and say so."""
    await store.put(entry(call_id))
    say("acked", call_id)


# ---------------------------------------------------------------------------------------------- ways to end


def exit_after_twins(root: str) -> None:
    """End without closing a store that only threads have used."""
    store = TokenCaptureStore(root)
    for number in range(10):
        put_here(store, f"c{number}")


def exit_after_a_loop(root: str, loop: str) -> None:
    """End without closing a store that a loop has used and nobody entered."""
    store = TokenCaptureStore(root)
    for number in range(3):
        run_in(loop, put, store, f"c{number}")


def exit_in_flight(root: str) -> None:
    """End while daemon threads have puts on their way."""
    store = TokenCaptureStore(root)
    some = threading.Event()

    def work(name: int) -> None:
        for number in count():
            put_here(store, f"{name}-{number}")
            if number == 5:
                some.set()

    for name in range(4):
        threading.Thread(target=work, args=(name,), daemon=True).start()
    some.wait()


def exit_a_loop_in_flight(root: str, loop: str) -> None:
    """End a loop, and with it the process, while puts of an open store are on their way."""
    store = TokenCaptureStore(root)

    async def main() -> None:
        await put(store, "first")
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(put, store, f"c{number}")
            await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()

    run_in(loop, main)


def exit_entered(root: str) -> None:
    """End a loop that has entered a store and never leaves it, with tasks that nobody waits for."""
    tasks: list[asyncio.Future[None]] = []

    async def main() -> None:
        store = TokenCaptureStore(root)
        await store.__aenter__()
        await put(store, "first")
        tasks.extend(asyncio.ensure_future(put(store, f"c{number}")) for number in range(64))
        await asyncio.sleep(0.001)

    asyncio.run(main())


def exit_blocked(root: str) -> None:
    """End while a put waits for a lock that another process holds."""
    store = TokenCaptureStore(root)
    threading.Thread(target=put_here, args=(store, "never"), daemon=True).start()
    while not store.statistics().actors:
        threading.Event().wait(0.001)
    say("waiting")


def exit_later(root: str) -> None:
    """End the main thread, while another one goes on for a while, and an exit handler puts the last."""
    store = TokenCaptureStore(root)
    main = threading.main_thread()

    def work() -> None:
        main.join()
        for number in range(10):
            put_here(store, f"c{number}")

    atexit.register(put_here, store, "last")
    put_here(store, "first")
    threading.Thread(target=work).start()


def exit_with_a_destructor(root: str) -> None:
    """End while there is an object left that puts when it is destroyed."""
    store = TokenCaptureStore(root)
    put_here(store, "first")

    class Recorder:
        def __init__(self) -> None:
            self.me = self  # so that nothing but the collector finds it, at the very end

        def __del__(self) -> None:
            try:
                put_here(store, "late")
            except StoreClosedError as error:
                say("late:", error)

    gc.disable()
    Recorder()


# ---------------------------------------------------------------------------------------------- forks


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons: this process has threads; that is the case
        return os.fork()


def fork_and_use(root: str, how: str) -> None:
    """Fork after a store was used; the child uses the parent's store, then one of its own."""
    store = TokenCaptureStore(root)
    put_here(store, "before")

    def child() -> None:
        try:
            put_here(store, "stolen") if how == "thread" else anyio.run(put, store, "stolen")
        except StoreClosedError as error:
            say("child:", error)
        own = TokenCaptureStore(root)
        put_here(own, "own")

    pid = _fork()
    if pid == 0:
        child()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    put_here(store, "after")


def fork_in_a_section(root: str) -> None:
    """Fork while a thread of the store holds a lock; the child stays until its input ends, or ends when told."""
    disk = HeldDisk(OsDisk())
    store = TokenCaptureStore(root, _disk=disk)
    put_here(store, "before")
    disk.hold("datasync")
    thread = threading.Thread(target=put_here, args=(store, "held"))
    thread.start()
    anyio.run(disk.reached)
    pid = _fork()
    if pid == 0:
        say("child", os.getpid())
        sys.stdin.readline()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    say("child ended")
    sys.stdin.readline()
    disk.free()
    thread.join()


def fork_while_opening(root: str) -> None:
    """Fork when a lock file has been opened and nobody knows of its descriptor yet, then be held with that lock."""
    put_here(TokenCaptureStore(root), "before")
    real, pids = os.open, list[int]()

    def forking(path: str, *args: Any, **options: Any) -> int:
        descriptor = real(path, *args, **options)
        if not pids and str(path).endswith(".lock"):
            pids.append(_fork())
            if pids == [0]:
                sys.stdin.readline()
                os._exit(0)
        return descriptor

    disk = HeldDisk(OsDisk())
    disk.hold("datasync")
    store = TokenCaptureStore(root, _disk=disk)
    setattr(os, "open", forking)  # noqa: B010 - mypy would not have it
    thread = threading.Thread(target=put_here, args=(store, "held"))
    thread.start()
    anyio.run(disk.reached)
    say("child", *pids)
    sys.stdin.readline()
    disk.free()
    thread.join()


def spawn(root: str) -> None:
    """Start workers as multiprocessing does it by default on newer systems; each has a store of its own."""
    store = TokenCaptureStore(root)
    put_here(store, "before")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=exit_after_spawn, args=(root, name)) for name in ("a", "b")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    put_here(store, "after")


def exit_after_spawn(root: str, name: str) -> None:
    """What a spawned worker does."""
    store = TokenCaptureStore(root)
    for number in range(5):
        put_here(store, f"{name}-{number}")


def first_imports(root: str) -> None:
    """Say what the first call imports."""
    store = TokenCaptureStore(root)
    before = set(sys.modules)
    put_here(store, "first")
    say("imported", *sorted(set(sys.modules) - before))


# ---------------------------------------------------------------------------------------------- signals


def put_between_any_two_lines(root: str) -> None:
    """Put for the first and a second time, over and over, and have a signal handler put after each line on the way."""
    package, calls = str(Path(tokenstore.__file__).parent), count()

    def interrupted_at(wanted: int) -> bool:
        """Put twice into a new store; tell whether there were so many lines."""
        store, passed = TokenCaptureStore(root), count(1)
        came: list[int] = []

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(package):
                return None
            if event == "line" and next(passed) == wanted:
                signal.raise_signal(signal.SIGUSR1)
            return trace

        def handle(*_: object) -> None:
            came.append(wanted)
            store.append(entry(f"c{next(calls)}"))

        signal.signal(signal.SIGUSR1, handle)
        values = [entry(f"c{next(calls)}") for _ in range(2)]
        sys.settrace(trace)
        try:
            for value in values:
                store.append(value)
        finally:
            sys.settrace(None)
        anyio.run(store.close)
        for thread in threading.enumerate():
            if thread.name == "tokenstore":  # of two that were started, one is not needed and ends by itself
                thread.join(PATIENCE)
                assert not thread.is_alive()
        return bool(came)

    lines = next(number for number in count(1) if not interrupted_at(number))
    say(lines, next(calls))


def put_whenever_a_thread_starts(root: str) -> None:
    """Put for the first time, and have a signal handler put whenever the main thread has started a thread meanwhile."""
    store, numbers, real = TokenCaptureStore(root), count(), threading.Thread.start

    def start_and_signal(thread: threading.Thread) -> None:
        real(thread)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGUSR1)

    setattr(threading.Thread, "start", start_and_signal)  # noqa: B010 - mypy would not have it
    signal.signal(signal.SIGUSR1, lambda *_: put_here(store, f"c{next(numbers)}"))
    put_here(store, "first")


def put_until_stopped(root: str, how: str) -> None:
    """Put from 64 tasks, or from this thread, until a signal comes; Ctrl-C is taken for the end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = TokenCaptureStore(root)
    kind, _, loop = how.partition("-")
    with suppress(KeyboardInterrupt, BaseExceptionGroup):  # trio's nurseries put it into a group
        if kind == "threads":
            for number in count():
                put_here(store, str(number))
        run_in(loop, _put_from_64_tasks, store, kind == "entered")
    say("interrupted")


async def _put_from_64_tasks(store: TokenCaptureStore, entered: bool) -> None:
    async def client(name: int) -> None:
        for number in count():
            await put(store, f"{name}-{number}")

    async with store if entered else nullcontext(), anyio.create_task_group() as tasks:
        for name in range(64):
            tasks.start_soon(client, name)


# ---------------------------------------------------------------------------------------------- sharing


def share(root: str, loop: str, name: str, calls: str) -> None:
    """Put, from the loop that entered a store and from a thread beside it, entries of one's own and of everybody."""

    async def main() -> None:
        async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
            for number in range(int(calls)):
                tasks.start_soon(store.begin_call, "r", f"{name}-{number}")
                tasks.start_soon(store.put, entry(f"{name}-{number}"))
                tasks.start_soon(store.put, entry(f"everybody-{number}"))
                tasks.start_soon(anyio.to_thread.run_sync, store.append, entry(f"everybody-{number}"))
                tasks.start_soon(anyio.to_thread.run_sync, store.append, entry(f"{name}-thread-{number}"))

    run_in(loop, main)


def hammer(root: str, loop: str, name: str) -> None:
    """Put into one rollout from 16 tasks without a pause, from one line of input to the next; say every tenth."""

    async def client(store: TokenCaptureStore, task: int) -> None:
        for number in count():
            await store.put(entry(f"{name}-{task}-{number}"))
            if number % 10 == 0:
                say("acked", f"{name}-{task}-{number}")

    async def main() -> None:
        async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
            say("ready")
            await anyio.to_thread.run_sync(sys.stdin.readline)
            for task in range(16):
                tasks.start_soon(client, store, task)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            tasks.cancel_scope.cancel()

    run_in(loop, main)


CHILDREN: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        exit_after_twins,
        exit_after_a_loop,
        exit_in_flight,
        exit_a_loop_in_flight,
        exit_entered,
        exit_blocked,
        exit_later,
        exit_with_a_destructor,
        fork_and_use,
        fork_in_a_section,
        fork_while_opening,
        spawn,
        first_imports,
        put_between_any_two_lines,
        put_whenever_a_thread_starts,
        put_until_stopped,
        share,
        hammer,
    )
}


def calls_in(root: Path, rollout_id: str = "r") -> list[str]:
    """The calls that a store of this process finds in a directory."""
    store = TokenCaptureStore(root)
    snapshot = store.freeze_now(rollout_id)
    anyio.run(store.close)
    assert not snapshot.incomplete or {reason.split(":")[0] for reason in snapshot.incomplete_reasons} == {"lost_call"}
    assert snapshot.version == len(snapshot.entries) + 1
    return [each.model_call_id for each in snapshot.entries]


if __name__ == "__main__":
    CHILDREN[sys.argv[1]](*sys.argv[2:])
