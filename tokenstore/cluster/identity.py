"""What a shard's directory says it is, so that no shard ever opens another's.

`shard.json` names the store, the shard's index, how many shards there are, what places rollouts, the format, and the
directory itself by a random word. It is made once, when the store is deployed; afterwards a directory without it is
refused, because that is what a lost disk or a missing mount looks like: empty, as if no rollout had ever been there.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import attrs

from tokenstore.cluster.config import ShardPlan
from tokenstore.cluster.files import read_small, replace_durably
from tokenstore.codec import dumps, loads
from tokenstore.errors import ClusterMismatchError
from tokenstore.journal.disk import Directory

FILE = "shard.json"
"""Name of the file; no rollout has a file of that name."""
FORMAT = 1
"""Of what a shard's directory holds beside the store's own files, and of how rollouts are placed."""
EXPECTED = "that of this shard: mount its disk, or deploy with accept_empty to give up what was on it"
"""What to do about a directory that is not there."""


@attrs.frozen(kw_only=True)
class Identity:
    """Whose directory it is."""

    store: str
    """Name of the cluster store."""
    index: int
    """Which shard."""
    count: int
    """Of how many."""
    format: int = FORMAT
    """The format."""
    place: str = ""
    """What places rollouts, empty for the hash. Another one would look for rollouts where they are not."""
    word: str = attrs.field(factory=lambda: secrets.token_hex(16))
    """A random word: two directories never have the same, so who reads the same one sees the same directory."""


def identity_in(directory: Directory, plan: ShardPlan) -> Identity | None:
    """Read what a directory says, None if it says nothing.

    Raises:
        ClusterMismatchError: It is another shard's, or of a newer format.
    """
    text = read_small(directory, FILE)
    if text is None:
        return None
    found = _parsed(text, plan)
    for field, expected in _wanted(plan).items():
        there = getattr(found, field)
        if there != expected:
            shown = [value if value != "" else "the hash" for value in (there, expected)]
            raise ClusterMismatchError(_where(plan), field, found=shown[0], expected=shown[1])
    return found


def identify(directory: Directory, plan: ShardPlan, *, create: bool) -> Identity:
    """Make sure that a directory is the shard's.

    Args:
        directory: The directory.
        plan: The shard.
        create: Whether a directory that says nothing and holds nothing becomes the shard's now.

    Raises:
        ClusterMismatchError: It is another shard's, of a newer format, or says nothing where it should.
        OSError: It cannot be read or written.
    """
    found = identity_in(directory, plan)
    if found is not None:
        return found
    if not create:
        raise ClusterMismatchError(_where(plan), "content", found="nothing", expected=EXPECTED)
    if any(".tokens." in name for name in directory.names()):
        raise ClusterMismatchError(_where(plan), "content", found="rollouts of no shard", expected="nothing")
    replace_durably(directory, FILE, dumps(attrs.asdict(Identity(**_wanted(plan)))) + b"\n")
    made = identity_in(directory, plan)  # that of whoever was last, if two were at it
    if made is None:
        raise ClusterMismatchError(_where(plan), "content", found="nothing", expected="what was just written")
    return made


def identities_below(root: str, store: str) -> dict[int, str]:
    """Tell which shards of a store have their directory below a root on this machine: index and word."""
    found = {}
    for file in Path(root).glob(f"shard-*/{FILE}"):
        try:
            value = loads(file.read_bytes())
            if value["store"] == store:
                found[int(value["index"])] = str(value["word"])
        except (OSError, ValueError, TypeError, KeyError):
            continue  # whoever opens that directory says what is wrong with it
    return found


def _wanted(plan: ShardPlan) -> dict[str, Any]:
    return {"format": FORMAT, "store": plan.store, "count": plan.count, "index": plan.index, "place": plan.place}


def _where(plan: ShardPlan) -> str:
    return f"{plan.directory}/{FILE}"


def _parsed(text: bytes, plan: ShardPlan) -> Identity:
    try:
        value = loads(text)
        return Identity(**{field.name: value[field.name] for field in attrs.fields(Identity)})
    except (ValueError, TypeError, KeyError):
        raise ClusterMismatchError(_where(plan), "content", found="no identity", expected="one") from None
