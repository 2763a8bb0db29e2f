"""The strict look at the values of an answer: what is no id and no log probability is refused, never converted.

JSON from anywhere, so nothing is taken for granted. Arrays of numpy and torch are told by their `tolist`, objects of
client libraries by their `model_dump`; neither library is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenstore.codec import loads
from tokenstore.engines.call import Call

LARGEST_ID = 2**32 - 1
"""The store keeps ids in 32 bits."""
ABOVE_ZERO = 0.1
"""A log probability is at most 0; so much above it is the rounding of a 16-bit softmax. Logits are far above."""

LARGEST_COUNT = 2**26
"""More tokens than any engine takes, and than a line of the store holds; what counts more is no count of tokens."""

_TOKEN_ID = re.compile(r"token_id:(0|[1-9][0-9]{0,9})")
_TOKEN_IDS = re.compile(rf"{_TOKEN_ID.pattern}(?:\n{_TOKEN_ID.pattern})*")
_TOLIST = "a tensor's .tolist() gives plain numbers"


def parsed(call: Call, response: Any) -> Any:
    """Open an answer: JSON text is parsed strictly, an object with `model_dump` is dumped, anything else is as it is.

    Raises:
        UnfinishedAnswerError: The text is not whole JSON.
        EngineAnswerError: It is JSON with `NaN`, or with two members of one name.
    """
    if isinstance(response, bytes | bytearray | str):
        text = response if isinstance(response, str) else bytes(response)
        return _loaded(call, text)
    return dumped(response)


def _loaded(call: Call, text: str | bytes) -> Any:
    try:
        return loads(text, unique_keys=True)
    except (ValueError, RecursionError) as error:
        problem = f"{len(text)} characters are no JSON that can be trusted ({error})"
        cut = hasattr(error, "pos") or isinstance(error, UnicodeDecodeError)  # the end of the text may be missing
        (call.unfinished if cut else call.wrong)("answer", problem, characters=len(text))


def dumped(value: Any) -> Any:
    """Open what a client library wraps an object in."""
    if isinstance(value, Mapping) or not callable(getattr(value, "model_dump", None)):
        return value
    return value.model_dump()


def object_of(call: Call, value: Any, field: str) -> Mapping[str, Any]:
    """Take a JSON object.

    Raises:
        EngineAnswerError: It is none.
    """
    if type(value) is dict:  # as in all parsed JSON; asking the abstract class takes ten times as long
        return value
    found = dumped(value)
    if not isinstance(found, Mapping):
        call.wrong(field, f"is {kind(value)}, it must be a JSON object; pass the parsed answer")
    return found


def optional_object(call: Call, holder: Mapping[str, Any], key: str, where: str = "") -> Mapping[str, Any]:
    """Take a JSON object that may be null or absent, which is an empty one."""
    value = holder.get(key)
    return {} if value is None else object_of(call, value, path(where, key))


def list_of(call: Call, value: Any, field: str) -> list[Any]:
    """Take a list, or an array of numpy or torch as one.

    Raises:
        EngineAnswerError: It is none.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if callable(getattr(value, "tolist", None)):
        try:
            listed = value.tolist()
        except (TypeError, ValueError, RuntimeError) as error:
            call.wrong(field, f"is {kind(value)} whose .tolist() fails with {type(error).__name__}; pass a list")
        if isinstance(listed, list):
            return listed
    return call.wrong(field, f"is {kind(value)}, it must be a list; {_TOLIST}")


def ids_of(call: Call, value: Any, field: str) -> list[int]:
    """Take token ids.

    Raises:
        EngineAnswerError: It is no list, or an element is not an int in 0 .. 2**32 - 1; the message has its position.
    """
    ids = list_of(call, value, field)
    if set(map(type, ids)) - {int}:
        ids = [_id(call, item, field, at) for at, item in enumerate(ids)]
    if ids and not (min(ids) >= 0 and max(ids) <= LARGEST_ID):
        at = next(at for at, number in enumerate(ids) if not 0 <= number <= LARGEST_ID)
        call.wrong(f"{field}[{at}]", "is outside 0 .. 2**32 - 1", position=at)
    return ids


def log_probs_of(call: Call, value: Any, field: str) -> list[float]:
    """Take log probabilities.

    Raises:
        EngineAnswerError: It is no list, or an element is null, not finite or above 0; the message has its position.
    """
    found = list_of(call, value, field)
    if set(map(type, found)) - {float}:
        found = [_log_prob(call, item, field, at) for at, item in enumerate(found)]
    if all(map(math.isfinite, found)) and max(found, default=0.0) <= ABOVE_ZERO:
        return found
    for at, number in enumerate(found):
        if not math.isfinite(number):
            call.wrong(f"{field}[{at}]", f"is {number}, a log prob is a finite number", position=at)
        if number > ABOVE_ZERO:
            problem = f"is {number:g}, of a probability above 1; ask the engine for log probs, not for logits"
            call.wrong(f"{field}[{at}]", problem, position=at)
    return found


def named_ids(call: Call, tokens: Sequence[Any], field: str) -> list[int] | None:
    """Take the ids out of tokens that are written as `token_id:<n>`; None if none is.

    Raises:
        EngineAnswerError: Only some are, or what follows the colon is no id.
    """
    if (ids := _all_named(tokens)) is not None:
        return ids_of(call, ids, field)
    named = [isinstance(token, str) and token.startswith("token_id:") for token in tokens]
    if not any(named):
        return None
    if not all(named):
        problem = f"{sum(named)} of {len(named)} tokens are written as ids"
        call.wrong(field, problem, named=sum(named), tokens=len(named))
    matches = [_TOKEN_ID.fullmatch(token) for token in tokens]
    if None in matches:
        at = matches.index(None)
        call.wrong(f"{field}[{at}]", "is no 'token_id:' and a decimal number", position=at)
    return ids_of(call, [int(match[1]) for match in matches if match], field)


def _all_named(tokens: Sequence[Any]) -> list[int] | None:
    """Take the ids if every token is one, at the speed of C; None says nothing."""
    if set(map(type, tokens)) != {str} or _TOKEN_IDS.fullmatch(text := "\n".join(tokens)) is None:
        return None
    ids = [int(number) for number in text.removeprefix("token_id:").split("\ntoken_id:")]
    return ids if len(ids) == len(tokens) else None  # one token may hold several lines


def count_of(call: Call, value: Any, field: str) -> int:
    """Take a count of tokens.

    Raises:
        EngineAnswerError: It is not an int from 0 on, or beyond any prompt and any answer.
    """
    if type(value) is not int or value < 0:
        call.wrong(field, f"is {kind(value)}, it must be an int from 0 on")
    if value > LARGEST_COUNT:
        call.wrong(field, f"is above {LARGEST_COUNT}, which no engine counts")
    return value


def optional_count(call: Call, holder: Mapping[str, Any], key: str, where: str = "") -> int | None:
    """Take a count of tokens that may be null or absent."""
    return None if holder.get(key) is None else count_of(call, holder[key], path(where, key))


def text_of(call: Call, holder: Mapping[str, Any], key: str, where: str = "") -> str | None:
    """Take a string that may be null or absent.

    Raises:
        EngineAnswerError: It is something else.
    """
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        call.wrong(path(where, key), f"is {kind(value)}, it must be a string or null")
    return value


def time_of(call: Call, holder: Mapping[str, Any], key: str) -> float:
    """Take seconds since the epoch, 0.0 if there are none.

    Raises:
        EngineAnswerError: It is something else.
    """
    value = holder.get(key)
    if value is None:
        return 0.0
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not abs(value) < 2**53:  # a comparison that NaN fails too
        call.wrong(key, f"is {kind(value)}, it must be seconds since the epoch")
    return float(value)


def path(where: str, key: str) -> str:
    """Name a key inside an object of an answer."""
    return f"{where}.{key}" if where else key


def kind(value: object) -> str:
    """Name a value in a message, without showing text."""
    return "null" if value is None else f"of type {type(value).__name__}"


def _plain(value: Any) -> Any:
    """Open a scalar of numpy or torch."""
    return value.tolist() if callable(getattr(value, "tolist", None)) else value


def _id(call: Call, value: Any, field: str, at: int) -> int:
    found = _plain(value)
    if not isinstance(found, int) or isinstance(found, bool):
        call.wrong(f"{field}[{at}]", f"is {kind(value)}, an id is an int; {_TOLIST}", position=at)
    return int(found)


def _log_prob(call: Call, value: Any, field: str, at: int) -> float:
    if value is None:
        problem = "is null, a log prob is a finite number; engines write NaN as null"
        call.wrong(f"{field}[{at}]", problem, position=at)
    found = _plain(value)
    if not isinstance(found, int | float) or isinstance(found, bool):
        call.wrong(f"{field}[{at}]", f"is {kind(value)}, a log prob is a finite number; {_TOLIST}", position=at)
    try:
        return float(found)
    except OverflowError:
        call.wrong(f"{field}[{at}]", "is an integer beyond the range of a double", position=at)
