"""A NeMo Gym configuration gives the store that it asks for, or none, or an error that names the key."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import pytest

from tokenstore.factory import KNOWN_KEYS, make_token_store


class DictConfig(UserDict[str, Any]):
    """Stands in for a mapping of a configuration library, which is no dict."""


def root_of(config: Any) -> Path | None:
    """Make the store of a configuration and tell its directory."""
    store = make_token_store(config)
    return None if store is None else store.root


@pytest.mark.parametrize("kind", [dict, DictConfig])
def test_uses_the_directory(kind: Any, tmp_path: Path) -> None:
    """With capture enabled and a directory set, the store lies there, whatever kind of mapping says so."""
    config = kind({"token_id_capture": kind({"enabled": True, "dir": str(tmp_path / "a")})})

    assert root_of(config) == tmp_path / "a"
    assert (tmp_path / "a").is_dir()


def test_falls_back_to_the_capture_directory(tmp_path: Path) -> None:
    """Where `dir` is not set, `model_call_capture_dir` serves; where both are, `dir` does."""
    other = {"model_call_capture_dir": str(tmp_path / "b"), "unrelated": 1}

    assert root_of({"token_id_capture": {"enabled": True}, **other}) == tmp_path / "b"
    assert root_of({"token_id_capture": {"enabled": True, "dir": None}, **other}) == tmp_path / "b"
    assert root_of({"token_id_capture": {"enabled": True, "dir": ""}, **other}) == tmp_path / "b"
    assert root_of({"token_id_capture": {"enabled": True, "dir": tmp_path / "a"}, **other}) == tmp_path / "a"


@pytest.mark.parametrize(
    "section",
    [
        None,
        {},
        {"enabled": False, "dir": "/nowhere"},
        {"dir": "/nowhere"},
        {"enabled": True, "dir": "/nowhere", "sink": "my.module:Sink"},
        {"enabled": True},
        {"enabled": True, "dir": ""},
    ],
    ids=str,
)
def test_gives_none_where_nothing_is_asked_for(section: Any) -> None:
    """Not enabled, a sink of the user's own, or no directory: there is no store, and nothing is made."""
    assert make_token_store({"token_id_capture": section}) is None
    assert make_token_store({}) is None
    assert not Path("/nowhere").exists()


def test_known_keys_are_accepted(tmp_path: Path) -> None:
    """Keys that are meant for others of the framework are no error."""
    others = dict.fromkeys(KNOWN_KEYS - {"enabled", "dir", "sink"}, True)

    assert root_of({"token_id_capture": {"enabled": True, "dir": str(tmp_path), "sink": None, **others}}) == tmp_path


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"token_id_capture": {"enabled": True, "dir": "rel/path"}}, r"token_id_capture\.dir is the relative path"),
        ({"token_id_capture": {"enabled": True}, "model_call_capture_dir": "x"}, "model_call_capture_dir is the rel"),
        ({"token_id_capture": {"enabled": True, "dir": "/a\0b"}}, r"token_id_capture\.dir holds a NUL"),
        ({"token_id_capture": {"enabled": True, "dir": 7}}, r"token_id_capture\.dir is of type int, an absolute path"),
        ({"token_id_capture": {"enabled": "yes"}}, r"token_id_capture\.enabled is 'yes', true and false are allowed"),
        ({"token_id_capture": {"enabled": 1}}, r"token_id_capture\.enabled is 1"),
        ({"token_id_capture": {"enabled": True, "dri": "/x"}}, "token_id_capture has unknown keys dri; known are dir"),
        ({"token_id_capture": {"b": 1, "a": 2}}, "unknown keys a, b"),
        ({"token_id_capture": "yes"}, "token_id_capture is of type str, a mapping is allowed"),
        ([("token_id_capture", {})], "the configuration is of type list, a mapping is allowed"),
        (None, "the configuration is of type NoneType"),
    ],
)
def test_names_the_key_that_is_wrong(config: Any, message: str) -> None:
    """A wrong value or an unknown key is a ValueError that names it and what is allowed, and nothing is made."""
    with pytest.raises(ValueError, match=message):
        make_token_store(config)
