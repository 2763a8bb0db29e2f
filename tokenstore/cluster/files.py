"""Small files of a shard beside its rollouts: read whole, replaced whole, durably."""

from __future__ import annotations

from tokenstore.journal.disk import Directory

TEMPORARY = ".tokens-state-"
"""Beginning of temporary names: that of the store's own, so that its `repair` removes what a crash leaves."""
LARGEST = 64 * 1024
"""No file of ours is longer."""


def read_small(directory: Directory, name: str) -> bytes | None:
    """Give what is in a file, None if it is not there. It is opened anew, which is when NFS looks at the server."""
    try:
        file = directory.open(name, "read")
    except FileNotFoundError:
        return None
    try:
        return file.read(0, LARGEST)
    finally:
        file.close()


def replace_durably(directory: Directory, name: str, data: bytes) -> None:
    """Put a file in place of another: whole or not at all, and durable when this returns."""
    temporary, file = directory.create_temporary(TEMPORARY)
    try:
        written = 0
        while written < len(data):
            written += file.write(written, data[written:])
        file.sync()
    except OSError:
        directory.unlink(temporary)
        raise
    finally:
        file.close()
    directory.replace(temporary, name)
    directory.sync()
