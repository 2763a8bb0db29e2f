"""What a call came to that gave no entry: refused, with proof that nothing was generated, or lost.

| what came | is | proof |
|---|---|---|
| no connection | refused, `engine_unreachable` | nothing was sent |
| 400 to 499, 429 too, but not 408 and 499 | refused, the engine's code | the engine turned the request away |
| 503 | refused, the engine's code | it had no room |
| an error of such a status after HTTP 200, with no id or text before it | refused, the engine's code | the same |
| any of these whose body holds ids or text, or says that the model had run | lost | |
| 408, 499, other 5xx, 1xx, 3xx, time-out, broken connection, client gone | lost | |
"""

from __future__ import annotations

from types import ModuleType

from tokenstore.errors import EngineFailureError

UNREACHABLE = "engine_unreachable"
"""Code of a call whose engine could not be connected to."""
NO_ROOM = 503
"""The one status from 500 on that says that nothing was begun."""
_TURNED_AWAY = 400


def refusal_code(engine: ModuleType, call_id: str, status: int, body: bytes) -> str | None:
    """Give the code of a refusal, None if the call is lost.

    Args:
        engine: Reads the answer.
        call_id: The call.
        status: HTTP status of an answer that is no good one.
        body: Its body.
    """
    taken = _TURNED_AWAY if status == NO_ROOM else status  # what the body says counts as it would with 400
    found = engine.refusal_from_response(body, model_call_id=call_id, status=taken)
    if found is None:
        return None
    return f"http_{status}" if found.code == f"http_{taken}" else str(found.code)


def failure_code(engine: ModuleType, call_id: str, failure: EngineFailureError) -> str | None:
    """The same for an error that came after HTTP 200."""
    if failure.status == NO_ROOM and not failure.generated:
        return failure.code if failure.code != "error" else f"http_{NO_ROOM}"
    found = engine.refusal_from_response(failure, model_call_id=call_id)
    return None if found is None else found.code
