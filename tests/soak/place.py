"""Where the soak writes: a plain directory, or an ext4 of its own on a loop device, whose power can be cut."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

GOING_DOWN = 0x8004587D
"""The ioctl that stops a file system at once."""
NO_FLUSH = 2
"""And drops all that is not on the disk, the journal included."""
IMAGE_BYTES = 1024 * 1024 * 1024


class Place:
    """A plain directory: processes can be killed, the power stays on."""

    kind = "a plain directory"

    def __init__(self) -> None:
        self._top = Path(tempfile.mkdtemp(prefix="tokenstore-soak-"))

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self._top / "mount" / "store"

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self._top)


class LoopDevice(Place):
    """An ext4 in a file, whose power can be cut.

    Raises:
        OSError, subprocess.CalledProcessError: It cannot be mounted here.
    """

    kind = "ext4 on a loop device"

    def __init__(self) -> None:
        super().__init__()
        self._image, self._mount = self._top / "image", self._top / "mount"
        self._mounted = False
        try:
            self._mount.mkdir()
            with self._image.open("wb") as file:
                file.truncate(IMAGE_BYTES)
            _run("mkfs.ext4", "-qF", self._image)
            self.restore()
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Cut the power: from here on every call fails, and nothing more gets to the disk."""
        fd = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", NO_FLUSH))
        finally:
            os.close(fd)

    def restore(self) -> None:
        """Mount what is on the disk; nobody may have a file open."""
        self._unmount()
        _run("mount", "-o", "loop", self._image, self._mount)
        self._mounted = True

    def close(self) -> None:
        """Unmount and remove."""
        self._unmount()
        super().close()

    def _unmount(self) -> None:
        if self._mounted:
            _run("umount", self._mount)
            self._mounted = False


def find_place() -> tuple[Place, str]:
    """The best place there is here, and why it is no better."""
    if os.getuid() != 0:
        return Place(), "without power cuts: mounting needs root"
    try:
        return LoopDevice(), ""
    except (OSError, subprocess.CalledProcessError) as error:
        return Place(), f"without power cuts: {error}"


def _run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
