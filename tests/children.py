"""Processes that tests start, stop and kill: each function below runs in one, and talks in lines.

A child says what was acknowledged by printing it; what it read back it says as JSON. Run it by `start`.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio

from tokenstore import DurabilityError, StoreConfig, TokenCaptureStore, TokenEntry
from tokenstore.inspection import verify
from tokenstore.journal import files as journal_files

TOP = Path(__file__).parents[1]


def start(name: str, *arguments: object, wrap: Sequence[str] = (), env: Mapping[str, str] | None = None) -> Child:
    """Start a child that runs a function of this module, perhaps under another command such as strace."""
    # Who counts its system calls must not find those that write bytecode among them.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "1"} if wrap else {}
    return start_module("tests.children", name, *arguments, wrap=wrap, env={**bytecode, **(env or {})})


def start_module(
    module: str, *arguments: object, wrap: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Child:
    """Start a child that runs a module of these tests."""
    process = subprocess.Popen(
        [*wrap, sys.executable, "-W", "error", "-m", module, *map(str, arguments)],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(TOP), **(env or {})},
        bufsize=0,  # `communicate` reads past a buffer, and would lose or cut the lines that `line` has left in it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return Child(process)


class Child:
    """A process that was started; leaving the context ends it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """Wait for the next whole line that it prints; empty at its end, also if it was killed in the middle of one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return line.decode().strip() if line.endswith(b"\n") else ""

    def say(self, text: str = "") -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def finish(self) -> list[str]:
        """Wait for its end, and give the lines that it printed; it must not have complained."""
        out, complaint = self.process.communicate()
        assert (self.process.returncode, complaint.decode()) == (0, "")
        return out.decode().splitlines()

    def stop(self) -> None:
        """Let it say nothing any more, as a power cut does; what its calls have begun in the kernel goes on.

        While a file system is being shut down, a `fdatasync` may return 0 for bytes that are gone: a plain write and
        fdatasync on ext4 shows it. After a real cut nobody hears that.
        """
        self.process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):  # it has ended by itself
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def last_words(self) -> tuple[int, list[str]]:
        """Wait for its end, however it comes, and give its status and the whole lines that it printed."""
        out, _ = self.process.communicate()
        return self.process.returncode, out[: out.rfind(b"\n") + 1].decode().splitlines()


@contextmanager
def opened(root: Path, **config: Any) -> Iterator[TokenCaptureStore]:
    """A store for blocking use, closed at the end: it then keeps no file of the directory open."""
    store = TokenCaptureStore(root, config=StoreConfig(**config))
    try:
        yield store
    finally:
        anyio.run(store.close)


def entry(rollout_id: str, call_id: str, *, number: int = 0, text: str = "") -> TokenEntry:
    """The entry that every process makes of the same arguments."""
    return TokenEntry(
        rollout_id=rollout_id,
        model_call_id=call_id,
        prompt_token_ids=list(range(number, number + 40)),
        generation_token_ids=[number, 7],
        generation_log_probs=[-0.5, -number / 8],
        output_items=[{"text": text}] if text else [],
        created_at=float(number),
    )


def say(*words: object) -> None:
    """Print a line by one call to the system: it may come from any thread, of a process that is killed meanwhile."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def hold_lock(path: str) -> None:
    """Hold a lock file until told to let go."""
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        say("locked")
        sys.stdin.readline()


def fork_and_die(path: str) -> None:
    """Hold a lock that a child of one's own inherits, then die; the child waits to be told."""
    file = Path(path).open("a")  # noqa: SIM115 - held until the end
    fcntl.flock(file, fcntl.LOCK_EX)
    child = os.fork()
    if child == 0:
        sys.stdin.readline()
        os._exit(0)
    say(child)
    os._exit(0)


def put_many(root: str, prefix: str, count: str, storage: str = "shared") -> None:
    """Put entries one after the other, saying each that was acknowledged; those that failed are tried again."""
    store = TokenCaptureStore(root, config=StoreConfig(prompt_storage=storage))  # type: ignore[arg-type]
    for number in range(int(count)):
        while True:
            try:
                store.append(entry("r", f"{prefix}{number}", number=number))
                break
            except DurabilityError as error:
                say("failed", error.errno)
                time.sleep(0.002)
        say("acked", f"{prefix}{number}")


def put_batches(root: str, prefix: str, count: str, size: str) -> None:
    """Put entries, several at once, saying each that was acknowledged."""

    async def main() -> None:
        async def one(store: TokenCaptureStore, number: int) -> None:
            call_id = f"{prefix}{number}"
            await store.begin_call("r", call_id)
            await store.put(entry("r", call_id, number=number))
            say("acked", call_id)

        async with TokenCaptureStore(root) as store:
            for first in range(0, int(count), int(size)):
                async with anyio.create_task_group() as tasks:
                    for number in range(first, first + int(size)):
                        tasks.start_soon(one, store, number)

    anyio.run(main)


def script(root: str) -> None:
    """Do everything that a store does, saying each thing that was acknowledged."""
    store = TokenCaptureStore(root)

    async def main() -> None:
        await store.begin_call("r", "c1")
        say("begin r c1")
        await store.put(entry("r", "c1", number=1))
        say("put r c1")
        await store.begin_call("r", "c2")
        say("begin r c2")
        await store.put(entry("r", "c2", number=2))
        say("put r c2")
        await store.refuse_call("r", model_call_id="c3", code="x")
        say("refuse r c3")
        await store.mark_incomplete("r", "c4")
        say("mark r c4")
        snapshot = await store.freeze("r")
        say("freeze r", snapshot.snapshot_id)
        await store.put(entry("s", "c1", number=1))
        say("put s c1")
        snapshot = await store.freeze("s")
        say("freeze s", snapshot.snapshot_id)
        say("dropping s")
        await store.drop("s", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
        say("retired s")
        await store.put(entry("t", "c1", number=1))
        say("put t c1")
        say("dropping t")
        await store.retire(["t"])
        say("retired t")
        await store.put(entry("u", "c1", number=1))
        say("dropping u")
        await store.delete(["u"])
        await store.put(entry("u", "c2", number=2))
        say("reused u c2")
        await store.close()

    anyio.run(main)


def freeze_later(root: str) -> None:
    """Put and freeze under a clock that is not ours, and say what is there."""
    store = TokenCaptureStore(root)
    store.append(entry("r", f"c{int(time.time())}"))
    snapshot = store.freeze_now("r")
    say(len(snapshot.entries), snapshot.version, time.time())


def put_to_all(backend: str, root: str, prefix: str, count: str) -> None:
    """Put to many rollouts at once until killed, saying each call that was acknowledged."""

    async def main() -> None:
        async def one(store: TokenCaptureStore, rollout_id: str) -> None:
            for number in itertools.count():
                await store.put(entry(rollout_id, f"{prefix}{number}", number=number))
                say("acked", rollout_id, f"{prefix}{number}")

        async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
            for number in range(int(count)):
                tasks.start_soon(one, store, f"r{number}")

    anyio.run(main, backend=backend)


def many_rollouts(backend: str, root: str, count: str, descriptors: str) -> None:
    """Use many rollouts at once with few descriptors."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), hard))

    async def main() -> None:
        async def one(store: TokenCaptureStore, number: int) -> None:
            rollout_id = f"r{number}"
            await store.begin_call(rollout_id, "c")
            await store.put(entry(rollout_id, "c", number=number))
            snapshot = await store.freeze(rollout_id)
            assert (len(snapshot.entries), snapshot.incomplete) == (1, False)

        async with TokenCaptureStore(root) as store, anyio.create_task_group() as tasks:
            for number in range(int(count)):
                tasks.start_soon(one, store, number)

    anyio.run(main, backend=backend)
    say("worked")


def big_entries(backend: str, root: str, count: str, size: str, inflight: str) -> None:
    """Put entries with a large text all at once, read them one by one, and say the peak of the memory after each."""
    text = "A" * int(size)
    say(_peak())

    async def main() -> None:
        async with TokenCaptureStore(root, config=StoreConfig(max_inflight_bytes=int(inflight))) as store:
            async with anyio.create_task_group() as tasks:
                for number in range(int(count)):
                    tasks.start_soon(store.put, entry("r", f"c{number}", number=number, text=text))
            say(_peak())
            seen = 0
            async for each in store.entries("r"):
                assert each.output_items[0]["text"] == text
                seen += 1
            say(_peak())
            say(seen)

    anyio.run(main, backend=backend)


def read(root: str, rollout_id: str, limit: str) -> None:
    """Read a rollout in every way, and say what came of it and the peak of the memory.

    The limit takes the place of the 256 MiB up to which anybody's lines are read, so that smaller files will do.
    """
    logging.disable()
    journal_files.MAX_ENTRY_BYTES = int(limit)  # type: ignore[attr-defined]

    async def main() -> None:
        config = StoreConfig(max_entry_bytes=int(limit))
        async with TokenCaptureStore(root, config=config) as store:
            outcomes: dict[str, Any] = {"before": _peak()}
            for name, operation in (
                ("listed", lambda: _count(store.rollouts())),
                ("entries", lambda: _count(store.entries(rollout_id))),
                ("put", lambda: store.put(entry(rollout_id, "late"))),
                ("frozen", lambda: _frozen(store, rollout_id)),
                ("removed", lambda: store.delete([rollout_id])),
            ):
                try:
                    outcomes[name] = await operation()
                except Exception as error:  # noqa: BLE001 - what is raised is what is asked for
                    outcomes[name] = f"{type(error).__name__}: {error}"
            outcomes["peak"] = _peak()
            say(json.dumps(outcomes))

    anyio.run(main)


async def _count(items: Any) -> int:
    return len([item async for item in items])


async def _frozen(store: TokenCaptureStore, rollout_id: str) -> list[Any]:
    snapshot = await store.freeze(rollout_id)
    return [[each.model_call_id for each in snapshot.entries], list(snapshot.incomplete_reasons)[:8]]


def verify_as_nobody(root: str) -> None:
    """Verify a directory as a user who owns nothing, and say the health of each rollout, or the error."""

    async def verified() -> list[str]:
        try:
            async with TokenCaptureStore(root) as store:
                return [f"{finding.rollout_id} {finding.health}" async for finding in verify(store)]
        except PermissionError as error:
            return [type(error).__name__]

    async def main() -> None:
        await verified()  # imports what nobody may not read
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        for line in await verified():
            say(line)

    anyio.run(main)


def write_and_remove(root: str, rounds: str) -> None:
    """Write one rollout that stays and many that are removed and made anew; say at the end what stays."""

    async def main() -> None:
        async with TokenCaptureStore(root) as store:
            say("began")
            for number in range(int(rounds)):
                for rollout_id in ("kept", "dropped", "deleted"):
                    await store.begin_call(rollout_id, f"c{number}")
                    await store.put(entry(rollout_id, f"c{number}", number=number))
                snapshot = await store.freeze("dropped")
                assert await store.drop("dropped", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
                assert (await store.delete(["deleted", "dropped"]))["removed"] == ["deleted"]

    anyio.run(main)
    (Path(root) / "done").touch()
    for number in range(int(rounds)):
        say(f"c{number}")


def _peak() -> int:
    """The most memory that this process ever had, in bytes; the kernel's `ru_maxrss` would count its parent's too."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    function: Callable[..., None] = globals()[sys.argv[1]]
    function(*sys.argv[2:])
