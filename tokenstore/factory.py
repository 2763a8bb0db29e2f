"""A store from the configuration of NVIDIA NeMo Gym."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenstore.store import TokenCaptureStore

SECTION = "token_id_capture"
KNOWN_KEYS = frozenset({"enabled", "dir", "sink", "sink_kwargs", "source", "source_kwargs", "rebuild_response"})
"""Keys of the section that NeMo Gym's servers read."""


def make_token_store(global_config_dict: Any) -> TokenCaptureStore | None:
    """Make the store that a NeMo Gym configuration asks for.

    Args:
        global_config_dict: A mapping; read are `token_id_capture` (`enabled`, `dir`, `sink`, ...) and
            `model_call_capture_dir`, the directory that serves where `token_id_capture.dir` is not set.

    Returns:
        The store, or None if capture is not enabled, a sink of the user's own is set, or no directory is.

    Raises:
        ValueError: A value is not allowed or a key is unknown; the message names the key and what is allowed.
    """
    section = _section(global_config_dict)
    if not section.get("enabled") or section.get("sink"):
        return None
    for key, value in (
        (f"{SECTION}.dir", section.get("dir")),
        ("model_call_capture_dir", global_config_dict.get("model_call_capture_dir")),
    ):
        if value is not None and value != "":
            return TokenCaptureStore(_absolute(key, value))
    return None


def _section(config: Any) -> Mapping[str, Any]:
    if not hasattr(config, "get"):
        raise ValueError(f"the configuration is of type {type(config).__name__}, a mapping is allowed")
    section = config.get(SECTION)
    if section is None:
        return {}
    if not hasattr(section, "get"):
        raise ValueError(f"{SECTION} is of type {type(section).__name__}, a mapping is allowed")
    unknown = sorted(str(key) for key in section if key not in KNOWN_KEYS)
    if unknown:
        raise ValueError(f"{SECTION} has unknown keys {', '.join(unknown)}; known are {', '.join(sorted(KNOWN_KEYS))}")
    if not isinstance(section.get("enabled", False), bool):
        problem = f"{SECTION}.enabled is {section.get('enabled')!r}, true and false are allowed"
        raise ValueError(problem)  # noqa: TRY004 - a wrong value of a configuration, not a wrong argument
    return dict(section)


def _absolute(key: str, value: Any) -> Path:
    try:
        path = Path(value)
    except TypeError:
        raise ValueError(f"{key} is of type {type(value).__name__}, an absolute path is allowed") from None
    if "\0" in str(path):
        raise ValueError(f"{key} holds a NUL, an absolute path is allowed")
    if not path.is_absolute():
        raise ValueError(f"{key} is the relative path {str(path)!r}, an absolute path is allowed")
    return path
