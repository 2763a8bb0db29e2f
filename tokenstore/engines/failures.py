"""What an engine says when it fails, and which of these are refusals: a call that never generated anything.

| what came | is |
|---|---|
| HTTP 400 to 499, but for those below | a refusal: `refuse_call` settles the intent and the rollout goes on |
| 408 and 499, a time-out and a client that left: generation may have begun | a lost call |
| 500 and more, no status at all, a good answer | a lost call, or none |
| an error after ids or text had come, or one of a number that is no JSON (NaN: the model had run) | a lost call |

The code kept is the engine's own word for the reason, or `context_length_exceeded`, by whatever words it says that;
never its message, which may quote the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from tokenstore.codec import loads
from tokenstore.engines.call import Call
from tokenstore.engines.values import dumped
from tokenstore.errors import EngineFailureError
from tokenstore.records import RefusalRecord

MAYBE_BEGUN = frozenset({408, 499})
"""Statuses under 500 after which the engine may have generated something."""

_BEFORE_GENERATION = frozenset({"response.created", "response.queued", "response.in_progress", "response.failed"})
"""Events of a response that say nothing of what was generated."""

_TOO_LONG = re.compile(
    r"context[ _]length|context[ _]size|context window|exceed_context|max_model_len|maximum model length"
    r"|maximum (?:allowed|input) length|too many (?:input )?tokens",
    re.IGNORECASE,
)
_AFTER_GENERATION = re.compile(r"not json compliant", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


@attrs.frozen(kw_only=True)
class Failure:
    """An error object of an engine."""

    status: int | None = None
    """The HTTP status that it names."""
    code: str = "error"
    """The engine's word for the reason."""
    generated: bool = False
    """The message, or what came with it, says that the model had run."""


def raise_failure(call: Call, body: Mapping[str, Any], *, generated: int) -> None:
    """Raise what an error object says; anything else passes.

    Raises:
        EngineFailureError: The body is an error object.
    """
    failure = failure_in(body)
    if failure is not None:
        count = max(generated, int(failure.generated or _holds_an_answer(body)))
        call.failed(status=failure.status, code=failure.code, generated=count)


def failure_in(body: Mapping[str, Any]) -> Failure | None:
    """Find the error object in a body: under `error`, or the body itself (`object` is `"error"`)."""
    error = dumped(body.get("error"))
    if error is None:
        return _failure(body) if body.get("object") == "error" else None
    return _failure(error) if isinstance(error, Mapping) else Failure(code=_code_in(str(error), None, None))


def refusal_in(response: Any, *, model_call_id: str, status: int | None = None) -> RefusalRecord | None:
    """Tell a refusal before generation from everything else; each engine's file offers it.

    Args:
        response: The body (parsed or as text), an object of an HTTP library, an exception of the openai client, or the
            `EngineFailureError` that a stream raised.
        model_call_id: The call.
        status: The HTTP status, if the response does not carry it.

    Returns:
        The refusal, for `refuse_call`; or None: then mark the call lost, unless it gave an entry. Record no refusal of
        a call that will be sent again under the same id, for example after 429.
    """
    if isinstance(response, EngineFailureError):
        failure: Failure | None = Failure(status=response.status, code=response.code, generated=response.generated > 0)
    else:
        status = status if status is not None else _status_of(response)
        failure = _failure_of(_body_of(response))
    known = status if status is not None else failure.status if failure else None
    if known is None or not 400 <= known < 500 or known in MAYBE_BEGUN or (failure and failure.generated):
        return None
    code = failure.code if failure and failure.code != "error" else f"http_{known}"
    return RefusalRecord(model_call_id=model_call_id, code=code)


def speaks(event: Mapping[str, Any]) -> bool:
    """Tell whether an event of a stream, with ids or without, holds something that was generated."""
    kind = event.get("type")
    if isinstance(kind, str) and kind.startswith("response."):
        return kind not in _BEFORE_GENERATION
    choices = event.get("choices")
    held = [_spoken(choice) for choice in choices if isinstance(choice, Mapping)] if isinstance(choices, list) else []
    return any(held) or any(event.get(key) for key in ("text", "content", "output_ids", "tokens"))


def status_in(value: object) -> int | None:
    """Give an HTTP status as a plain int, None if the value is none."""
    plain = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if plain and 100 <= value < 600 else None  # type: ignore[operator, call-overload]


def _spoken(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta")
    said = [value for key, value in delta.items() if key != "role"] if isinstance(delta, Mapping) else []
    return bool(choice.get("text") or choice.get("token_ids") or any(said))


def _failure_of(body: Any) -> Failure | None:
    """Find an error in a body whose status said that it is one, so that the bare object of OpenAI's client counts."""
    if not isinstance(body, Mapping):
        return None
    return Failure(generated=True) if _holds_an_answer(body) else failure_in(body) or _failure(body)


def _holds_an_answer(body: Mapping[str, Any]) -> bool:
    return any(body.get(key) for key in ("choices", "output", "output_ids", "tokens"))


def _failure(error: Mapping[str, Any]) -> Failure:
    message = error.get("message")
    code, kind = error.get("code"), error.get("type")
    text = message if isinstance(message, str) else ""
    return Failure(
        status=status_in(code),
        code=_code_in(f"{text} {kind}", code, kind),
        generated=bool(_AFTER_GENERATION.search(text)),
    )


def _code_in(text: str, code: Any, kind: Any) -> str:
    if _TOO_LONG.search(text):
        return "context_length_exceeded"
    words = (word for word in (code, kind) if isinstance(word, str) and _WORD.fullmatch(word))
    return next(words, "error")


def _status_of(response: Any) -> int | None:
    """Read the status off an object of httpx, requests, aiohttp or the openai client."""
    for name in ("status_code", "status"):
        found = status_in(getattr(response, name, None))
        if found is not None:
            return found
    return None


def _body_of(response: Any) -> Any:
    """Read the body off the same, or take the response for the body."""
    found = dumped(response)
    for name in ("body", "content"):
        if not isinstance(found, Mapping | str | bytes | bytearray):
            found = dumped(getattr(found, name, found))
    if isinstance(found, str | bytes | bytearray):
        try:
            return loads(found if isinstance(found, str) else bytes(found), unique_keys=True)
        except (ValueError, RecursionError):
            return None
    return found
