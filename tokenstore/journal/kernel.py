"""System calls that Python does not offer: `syncfs`, and many `fdatasync` in flight for one thread.

A thread that waits in `fdatasync` costs nothing while it waits, but before and after it has to get the interpreter from
the other threads, and so does the next one; with many rollouts that takes longer than all the rest of a commit. The
kernel can make the same call, or an `fsync`, in a thread of its own (`io_submit(2)` with `IOCB_CMD_FDSYNC` or
`IOCB_CMD_FSYNC`, since Linux 4.18), on the same open file, and hands back what it returned. Sandboxes may lack it; then
it is not there, and everybody waits in a thread of Python.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Sequence

_GENERIC = (0, 2, 4)
_CALLS = {"x86_64": (206, 209, 208), "aarch64": _GENERIC, "riscv64": _GENERIC}
"""Numbers of `io_setup`, `io_submit` and `io_getevents`, by machine (the kernel's `unistd.h`)."""
_FSYNC, _FDSYNC = 2, 3
_libc = ctypes.CDLL(None, use_errno=True)


class _Request(ctypes.Structure):
    """`struct iocb` of `linux/aio_abi.h`, on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("descriptor", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_descriptor", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """`struct io_event` of `linux/aio_abi.h`."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class _Timespec(ctypes.Structure):
    """`struct timespec`, of a 64-bit machine."""

    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_MOMENT = _Timespec(0, 10_000_000)
"""Longer than a disk takes; who waits for one that takes longer looks meanwhile what else has come."""


def sync_filesystem(descriptor: int) -> None:
    """Make all that was written to a descriptor's file system durable (`syncfs(2)`).

    Raises:
        OSError: It failed.
    """
    if _libc.syncfs(ctypes.c_int(descriptor)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


_idle: list[ctypes.c_ulong] = []
"""Contexts for the next user: the kernel takes many milliseconds to destroy one."""
os.register_at_fork(after_in_child=_idle.clear)


class KernelSyncs:
    """Syncs in flight, for one thread at a time.

    Raises:
        OSError: This kernel or sandbox has no such calls.
    """

    size = 64
    """How many may be in flight."""

    def __init__(self) -> None:
        if platform.machine() not in _CALLS:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._submit, self._getevents = _CALLS[platform.machine()]
        self._events = (_Event * self.size)()
        self._pid = os.getpid()
        self._context = _idle.pop() if _idle else self._made()

    def _made(self) -> ctypes.c_ulong:
        context = ctypes.c_ulong(0)
        _call(self._setup, ctypes.c_long(self.size), ctypes.byref(context))
        return context

    def start(self, requests: Sequence[tuple[int, int]], *, whole: bool) -> int:
        """Begin to sync.

        Args:
            requests: Each a key and a descriptor, which stays open until its sync has ended.
            whole: Whether by `fsync`; else by `fdatasync`.

        Returns:
            How many were begun, from the first one on; the kernel did not take the next one.
        """
        made = (_Request * len(requests))()
        opcode = _FSYNC if whole else _FDSYNC
        pointers = (ctypes.c_void_p * len(requests))()
        for number, (key, descriptor) in enumerate(requests):
            made[number].data, made[number].descriptor, made[number].opcode = key, descriptor, opcode
            pointers[number] = ctypes.addressof(made) + number * ctypes.sizeof(_Request)
        begun = 0
        while begun < len(requests):
            rest = ctypes.byref(pointers, begun * ctypes.sizeof(ctypes.c_void_p))
            try:
                begun += _call(self._submit, self._context, ctypes.c_long(len(requests) - begun), rest)
            except OSError:
                break
        return begun

    def ended(self, *, wait: bool) -> list[tuple[int, OSError | None]]:
        """Give the syncs that have ended: each a key, and why it failed.

        Args:
            wait: Whether to wait a moment for at least one.
        """
        moment = ctypes.byref(_MOMENT) if wait else None
        count = _call(
            self._getevents, self._context, ctypes.c_long(wait), ctypes.c_long(len(self._events)), self._events, moment
        )
        return [(event.data, _error(event.result)) for event in self._events[:count]]

    def close(self) -> None:
        """Leave it to the next user."""
        if self._pid == os.getpid():
            _idle.append(self._context)


def _call(number: int, *args: object) -> int:
    """Make a system call, again if a signal interrupts it."""
    while True:
        result = int(_libc.syscall(ctypes.c_long(number), *args))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _error(result: int) -> OSError | None:
    return OSError(-result, os.strerror(-result)) if result < 0 else None
