"""Where a request goes, told by its path and headers alone.

| path | is |
|---|---|
| `/rollouts/<id>/...`, `/ng-rollout/<id>/...` | a request of that rollout; the rest is the engine's path |
| anything, with the header `X-Rollout-Id` | the same |
| `/metrics`, `/control/...` | the proxy's own, never the engine's |

Paths are decoded once and sent on encoded anew, so that engine and proxy read the same: `%2F` hides nothing. Segments
that servers read differently (empty, `.`, `..`) are turned away.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import attrs

from tokenstore.errors import InvalidRolloutIdError
from tokenstore.ids import validate_rollout_id
from tokenstore.serve.problems import ProxyError

PREFIXES = ("rollouts", "ng-rollout")
"""First segments of a path whose second is a rollout id."""
OWN = ("metrics", "control")
"""First segments that the proxy answers itself; below a rollout, and unless they are routed before, nobody does."""
ROLLOUT_HEADER = b"x-rollout-id"
CALL_HEADER = b"x-model-call-id"

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case and values, as ASGI has them."""


@attrs.frozen
class Route:
    """Where a request goes."""

    path: str
    """The engine's path, decoded."""
    rollout_id: str | None
    """The rollout, if the request names one."""

    @property
    def target(self) -> str:
        """The engine's path, encoded."""
        return quote(self.path, safe="/:@!$&'()*+,;=~-._")


def route_of(path: str, headers: Headers, *, own: Sequence[str] = OWN) -> Route:
    """Find where a request goes.

    Args:
        path: Decoded, with its first slash.
        headers: Of the request.
        own: First segments that are not the engine's.

    Raises:
        ProxyError: The path is ambiguous, the rollout id is none, or two places name different ones.
    """
    segments = path.removeprefix("/").split("/")
    if segments != [""] and any(segment in ("", ".", "..") for segment in segments):
        raise ProxyError(
            400, "ambiguous_path", "the path holds an empty segment, '.' or '..'; servers disagree on those"
        )
    named = {value.decode("latin-1").strip() for name, value in headers if name == ROLLOUT_HEADER}
    while len(segments) > 1 and segments[0] in PREFIXES:  # an engine behind might take the second for its own
        named.add(segments[1])
        segments = segments[2:]
    if segments[:1] and segments[0] in own:
        raise ProxyError(404, "not_found", "there is no such route; those of the proxy have no rollout before them")
    return Route("/" + "/".join(segments), _only(named))


def _only(named: set[str]) -> str | None:
    if len(named) > 1:
        raise ProxyError(400, "two_rollouts", "path and header X-Rollout-Id name more than one rollout; name one")
    try:
        return validate_rollout_id(named.pop()) if named else None
    except InvalidRolloutIdError as error:
        raise ProxyError(400, "invalid_rollout_id", str(error)) from error
