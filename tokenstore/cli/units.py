"""Times and sizes as users write them: `2d`, `1h30m`, `10MB`, `1.5GiB`."""

from __future__ import annotations

import argparse
import math
import re

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_BYTES: dict[str, int] = {"": 1, **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)}}
_BYTES |= {"b": 1, **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)}}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.ASCII)


def seconds(text: str) -> float:
    """Read a duration, for argparse."""
    parts = _PART.findall(text)
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text or not math.isfinite(total):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write for example 30s, 10m, 2h, 1h30m, 2d or 1w")
    return total


def size(text: str) -> int:
    """Read a size in bytes, for argparse."""
    match = _SIZE.fullmatch(text.lower())
    if match is None or match[2] not in _BYTES or not math.isfinite(float(match[1])):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write for example 500, 10kB, 1.5MB or 2GiB")
    return int(float(match[1]) * _BYTES[match[2]])
