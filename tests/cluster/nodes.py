"""Real Ray clusters of three nodes on loopback addresses: one process tree, of which the test may kill parts.

The head is on 127.0.0.2: 127.0.0.1 would be replaced by an outer address, and everything hangs. Nodes are ended by the
process ids that this module started, never by `ray stop`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

INSTALL = "ray is not installed: pip install 'tokenstore[ray]'"
TOP = Path(__file__).parents[2]
HEAD, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
STORE_BYTES = 80 * 1024 * 1024
"""Memory of a node's object store, nearly the smallest that Ray takes."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    "no_proxy": "*",
    "NO_PROXY": "*",
    "PYTHONPATH": str(TOP),
    "PYTHONWARNINGS": "ignore",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def need_ray() -> Any:
    """Import Ray, or skip with the reason and the command."""
    return pytest.importorskip("ray", reason=INSTALL)


class Nodes:
    """A Ray cluster: a head and two nodes, and this process as a driver on the head."""

    def __init__(self) -> None:
        self._before = set(children_of(os.getpid()))
        self._cluster: Any = None
        self.by_address: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Address of the cluster, for drivers."""
        address: str = self._cluster.address
        return address

    def add(self, address: str) -> None:
        """Start a node; the first one is the head."""
        if self._cluster is None:
            from ray.cluster_utils import Cluster  # noqa: PLC0415 - optional

            self._cluster = Cluster(shutdown_at_exit=False)
        head = {"include_dashboard": False} if address == HEAD else {}
        self.by_address[address] = self._cluster.add_node(
            node_ip_address=address, num_cpus=1, object_store_memory=STORE_BYTES, **head
        )

    def join(self) -> None:
        """Make this process a driver."""
        ray = need_ray()
        ray.init(
            address=self.address, _node_ip_address=HEAD, namespace="test", log_to_driver=False, logging_level="error"
        )

    def processes(self, address: str) -> list[int]:
        """Give the processes of a node, its workers among them."""
        node = self.by_address[address]
        own = [each.process.pid for kind in node.all_processes.values() for each in kind]
        return [*own, *(child for pid in own for child in children_of(pid))]

    def kill(self, address: str) -> None:
        """Kill a node as a power cut would: every process of it, at once."""
        self.signal(self.processes(address), signal.SIGKILL)
        self.by_address.pop(address)

    def stop(self, address: str) -> list[int]:
        """Stop a node as it hangs: every process of it; give them. It is a node no more, whatever becomes of them."""
        pids = self.processes(address)
        self.signal(pids, signal.SIGSTOP)
        self.by_address.pop(address)
        return pids

    @staticmethod
    def signal(pids: list[int], number: signal.Signals) -> None:
        """Signal processes, as many as there still are."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End everything that was started here."""
        need_ray().shutdown()
        self.signal(sorted(set(children_of(os.getpid())) - self._before), signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Give the children of a process, and theirs."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *children_of(int(child))]
    return found


@contextlib.contextmanager
def ray_nodes(*addresses: str) -> Iterator[Nodes]:
    """Run a Ray cluster of a head and further nodes, with this process as a driver of it."""
    need_ray()
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    os.environ.pop("PYTHONPYCACHEPREFIX", None)
    compile_ray()
    nodes = Nodes()
    try:
        for address in (HEAD, *addresses):
            nodes.add(address)
        nodes.join()
        yield nodes
    finally:
        nodes.close()
        os.environ.clear()
        os.environ.update(before)


def compile_ray() -> None:
    """Compile Ray's modules, which may come uncompiled: a node is given 30 s to start, a process each second.

    They are compiled beside themselves, once, and not in the place that tests have for what they compile.
    """
    package = Path(need_ray().__file__).parent
    subprocess.run([sys.executable, "-m", "compileall", "-q", package], check=False, capture_output=True)


def until(wanted: Any, seconds: float = 60.0) -> Any:
    """Wait until a function gives something true, and give it."""
    end = time.monotonic() + seconds
    while not (found := wanted()):
        if time.monotonic() > end:
            raise TimeoutError(f"nothing within {seconds:g} s")
        time.sleep(0.1)
    return found
