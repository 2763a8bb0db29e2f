"""What a power cut leaves of a file's bytes and of a directory's names: no disk, no steps, no locks.

A file has three images. What readers see (the page cache), what the next successful sync would make durable, and what
is durable already. The first two differ only after a failed sync: Linux then marks the unwritten pages clean, so
readers go on seeing bytes that no later sync will write. Here that is kept by the byte, not by the page, which is
harsher: a neighbour's rewrite saves nothing.

1. Bytes below the `floor`, the smallest size since the last sync, lie in blocks that the disk already has: a cut
   leaves the old byte or the new one. Where both agree, nothing can happen to it; rewriting a durable byte with itself
   is safe.
2. Bytes from the floor on lie in fresh blocks, also where the file was cut and grew again: they may be NULs.
3. A cut of the file that was not synced may not have happened.

A directory has two name tables, as seen and as durable, and the changes between them in order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from random import Random
from typing import Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
S = TypeVar("S")

BLOCK_BYTES = 64
"""What reaches the disk as one. Smaller than any real sector, so that files of a few short lines span several."""


class PersistencePolicy(enum.Enum):
    """What survives a power cut of all that was not synced."""

    SYNCED = "synced"
    """Only what was synced, names too."""
    NAMES = "names"
    """All names, but only synced bytes: a new file is empty, a cut file has its old end."""
    NULS = "nuls"
    """All names and sizes; each byte that was not synced is NUL, unless it overwrote the same one in place."""
    PREFIX = "prefix"
    """All names, and a random prefix of what was appended; of what was overwritten, each block is old or new; a file
    that was cut may have its old end."""
    SCATTERED = "scattered"
    """Any of the changes of names, in whatever order they reached the disk, and any of the blocks; the others are NULs
    or old. It finds what needs a directory sync between two changes of names, and holes inside a batch."""

    @property
    def by_chance(self) -> bool:
        """Whether another seed may give another disk."""
        return self in (PersistencePolicy.PREFIX, PersistencePolicy.SCATTERED)


class Images(NamedTuple):
    """The three images of a file, and how far down it was cut since the last sync.

    A named tuple, because a search makes one at every step; the images share their bytes wherever they agree.
    """

    seen: bytes = b""
    """What a reader gets."""
    pending: bytes = b""
    """What the next successful sync makes durable; always of the same length as `seen`."""
    durable: bytes = b""
    """What is on the disk for certain."""
    floor: int = 0
    """The smallest size since the last sync."""

    @property
    def clean(self) -> bool:
        """Whether a sync would change nothing."""
        return self.pending is self.durable and self.floor == len(self.durable)

    def written(self, offset: int, data: bytes | memoryview) -> Images:
        """Write at an offset; a gap before it reads as NULs."""
        if not len(data):
            return self
        seen = _patched(self.seen, offset, data)
        pending = seen if self.pending is self.seen else _patched(self.pending, offset, data)
        return Images(seen, pending, self.durable, self.floor)

    def truncated(self, size: int) -> Images:
        """Cut or grow the file to a size."""
        seen = _resized(self.seen, size)
        pending = seen if self.pending is self.seen else _resized(self.pending, size)
        return Images(seen, pending, self.durable, min(self.floor, size))

    def synced(self) -> Images:
        """Make durable what is still dirty; bytes lost by a failed sync are not among them."""
        return Images(self.seen, self.pending, self.pending, len(self.pending))

    def forgotten(self) -> Images:
        """Mark dirty bytes clean without writing them, as Linux does when a sync fails. The size stays to be synced."""
        if self.clean:
            return self
        return Images(self.seen, _resized(self.durable[: self.floor], len(self.seen)), self.durable, self.floor)

    def survivor(self, policy: PersistencePolicy, chance: Random) -> Images:
        """Choose what the file holds after a power cut."""
        if self.clean:
            return self if self.seen is self.durable else _settled(self.durable)
        return _settled(_SURVIVORS[policy](self, chance))


class Change(NamedTuple, Generic[T]):
    """A change of names: a file was made (no source), removed (no target) or moved."""

    source: str | None
    target: str | None
    file: T

    def apply(self, names: dict[str, T]) -> None:
        """Make the change, as far as a table that may lack earlier changes allows."""
        if self.source is not None and names.get(self.source) is self.file:
            del names[self.source]
        if self.target is not None:
            names[self.target] = self.file


class Names(Generic[T]):
    """The names of a directory, whose files are any hashable objects."""

    def __init__(self) -> None:
        self.seen: dict[str, T] = {}
        self.durable: dict[str, T] = {}
        self.changes: list[Change[T]] = []

    def change(self, source: str | None, target: str | None, file: T) -> None:
        """Make, move or remove a name; volatile until synced."""
        change = Change(source, target, file)
        change.apply(self.seen)
        self.changes.append(change)

    def sync(self) -> None:
        """Make the names durable."""
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def survivors(self, policy: PersistencePolicy, chance: Random) -> dict[str, T]:
        """Choose which names there are after a power cut."""
        if policy is PersistencePolicy.SYNCED:
            return self.durable
        if policy is not PersistencePolicy.SCATTERED or not self.changes:
            return self.seen
        names = dict(self.durable)
        for change in self.changes:
            if chance.random() < 0.5:
                change.apply(names)
        # A file moved twice, the first time lost, would have two names; the last one stays.
        return {name: file for file, name in {file: name for name, file in names.items()}.items()}

    def mapped(self, copy: Callable[[T], S]) -> Names[S]:
        """Copy the tables and changes over copies of the files."""
        names: Names[S] = Names()
        names.seen = {name: copy(file) for name, file in self.seen.items()}
        names.durable = {name: copy(file) for name, file in self.durable.items()}
        names.changes = [Change(change.source, change.target, copy(change.file)) for change in self.changes]
        return names


_Choice: TypeAlias = Callable[[bytes, bytes], bytes]


def _nuls(images: Images, _: Random) -> bytes:
    kept = _overwritten(images, _differences_as_nuls)
    return _resized(kept, len(images.pending))


def _prefix(images: Images, chance: Random) -> bytes:
    kept = _overwritten(images, lambda old, new: chance.choice((old, new)))
    if _cut_is_lost(images, chance):
        return kept + images.durable[images.floor :]
    return kept + images.pending[images.floor : chance.randint(images.floor, len(images.pending))]


def _scattered(images: Images, chance: Random) -> bytes:
    kept = _overwritten(images, lambda old, new: chance.choice((old, new)))
    if _cut_is_lost(images, chance):
        return kept + images.durable[images.floor :]
    fresh = _blocks(images.pending[images.floor :], images.floor)
    return kept + b"".join(chance.choice((block, bytes(len(block)))) for block in fresh)


def _cut_is_lost(images: Images, chance: Random) -> bool:
    return images.floor < len(images.durable) and chance.random() < 0.5


def _durable(images: Images, _: Random) -> bytes:
    return images.durable


_SURVIVORS: dict[PersistencePolicy, Callable[[Images, Random], bytes]] = {
    PersistencePolicy.SYNCED: _durable,
    PersistencePolicy.NAMES: _durable,
    PersistencePolicy.NULS: _nuls,
    PersistencePolicy.PREFIX: _prefix,
    PersistencePolicy.SCATTERED: _scattered,
}


def _settled(content: bytes) -> Images:
    return Images(content, content, content, len(content))


def _overwritten(images: Images, choose: _Choice) -> bytes:
    """Choose, block by block, what is left below the floor, where the disk has an old byte for each new one."""
    old, new = images.durable[: images.floor], images.pending[: images.floor]
    if old == new:
        return old
    pairs = zip(_blocks(old), _blocks(new), strict=True)
    return b"".join(before if before == after else choose(before, after) for before, after in pairs)


def _blocks(content: bytes, offset: int = 0) -> Iterator[bytes]:
    """Split what begins at an offset of the file where its blocks end."""
    begin = 0
    while begin < len(content):
        end = begin + BLOCK_BYTES - (offset + begin) % BLOCK_BYTES
        yield content[begin:end]
        begin = end


def _differences_as_nuls(old: bytes, new: bytes) -> bytes:
    return bytes(byte if byte == before else 0 for before, byte in zip(old, new, strict=True))


def _patched(content: bytes, offset: int, data: bytes | memoryview) -> bytes:
    if offset == len(content):
        return content + data
    head = _resized(content, offset) if offset > len(content) else content[:offset]
    return b"".join((head, data, content[offset + len(data) :]))


def _resized(content: bytes, size: int) -> bytes:
    return content[:size] if size <= len(content) else content + bytes(size - len(content))
