"""When two states are the same: how repeats are told."""

from __future__ import annotations

import re

from tests.faults.ledger import Ledger
from tests.faults.questions import ROOT
from tokenstore.testing import SimulatedDisk
from tokenstore.testing.persistence import Images

_ID_KEY = b'"snapshot_id":"'
_SNAPSHOT_ID = re.compile(rb'"snapshot_id":"([0-9a-f]{32})"')


def key_of(disk: SimulatedDisk, ledger: Ledger) -> int:
    """Tell states apart by what is on the disk and what is known; snapshot ids, which are random, by their order."""
    places = {snapshot_id.encode(): place for place, snapshot_id in enumerate(ledger.snapshot_ids)}

    def place(match: re.Match[bytes]) -> bytes:
        return b"snapshot %d" % places.get(match[1], -1)

    def ordered(images: Images) -> Images:
        if _ID_KEY not in images.seen and _ID_KEY not in images.durable:
            return images
        seen, pending, durable = (_SNAPSHOT_ID.sub(place, content) for content in images[:3])
        return Images(seen, pending, durable, images.floor)

    names = [[(name, ordered(images)) for name, images in sorted(table.items())] for table in disk.images(ROOT)]
    return hash((*map(tuple, names), ledger.key))
