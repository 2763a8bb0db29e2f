"""How a rollout is, or a file that belongs to none: what looking at a directory finds."""

from __future__ import annotations

from typing import Literal

import attrs

Health = Literal["whole", "masked", "damaged", "retired", "stale", "unreadable", "absent"]
"""`whole`: complete as far as it has come; `masked`: incomplete, but every line is good; `damaged`: lines or the state
are lost or changed; `retired`: only the fence is there; `stale`: a file that nobody needs; `unreadable`: an error says
why; `absent`: nothing is there."""


@attrs.frozen(kw_only=True)
class Finding:
    """What is known of one rollout, or of one stale file."""

    health: Health
    """How it is."""
    rollout_id: str | None = None
    """The rollout; None for a file that names none."""
    file: str | None = None
    """The stale file."""
    calls: int = 0
    """Entries that can be delivered."""
    reasons: tuple[str, ...] = ()
    """Why it is incomplete, with offsets in bytes where a reason is about lines; why it cannot be read."""
    leftovers: tuple[str, ...] = ()
    """What the next writer would clean up: `records` behind a fence (a removal that has not come to its end), and
    `unterminated:<offset>+<length>`, `unterminated_intents:...`, `unterminated_marker:...` (the end of a file lacks its
    newline)."""
    mended: bool = False
    """Whether `repair` has done something about it."""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention: whole, masked for a known reason, or retired; no leftovers."""
        if self.health == "stale":
            return self.mended
        return self.health in ("whole", "masked", "retired") and not self.leftovers
