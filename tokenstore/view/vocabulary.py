"""Ids to text, by a Hugging Face tokenizer: the only module that imports `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from tokenstore.errors import TokenStoreError

_REMEDY = "give the path of a tokenizer.json, or leave --tokenizer out to see the ids"


class TokenizerError(TokenStoreError, ValueError):
    """A tokenizer cannot be had. Give the path of a `tokenizer.json`, or do without: the ids are shown then."""


class Vocabulary(Protocol):
    """What the page needs of a tokenizer."""

    def pieces(self, ids: Iterable[int]) -> dict[int, str]:
        """Give the text of each id alone; ids that it does not know are left out."""
        ...


class _Tokenizer:
    """A tokenizer of the package `tokenizers`."""

    def __init__(self, tokenizer: object) -> None:
        self._tokenizer = tokenizer

    def pieces(self, ids: Iterable[int]) -> dict[int, str]:
        """Give the text of each id alone. What is only part of a letter stays as the vocabulary spells it."""
        found = {}
        for token in set(ids):
            spelled = self._tokenizer.id_to_token(token) if token < 2**31 else None  # type: ignore[attr-defined]
            if spelled is not None:
                text = self._tokenizer.decode([token], skip_special_tokens=False)  # type: ignore[attr-defined]
                found[token] = spelled if not text or "\ufffd" in text else text
        return found


def load_vocabulary(source: str) -> Vocabulary:
    """Load a tokenizer.

    Args:
        source: A path of a `tokenizer.json` or of the folder that holds it, which needs no network; or a name on the
            Hugging Face hub.

    Raises:
        TokenizerError: The package is missing, the file is none, or the name cannot be fetched.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise TokenizerError("tokenizers is not installed; \"pip install 'tokenstore[view]'\" adds it") from None
    path = Path(source)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.exists() and _is_path(source):
        raise TokenizerError(f"{source} does not exist; {_REMEDY}")
    try:
        return _Tokenizer(Tokenizer.from_file(str(path)) if path.exists() else Tokenizer.from_pretrained(source))
    except Exception as error:  # what the package raises is a bare Exception
        where = "is no tokenizer.json" if path.exists() else "is no file here and cannot be fetched from the hub"
        raise TokenizerError(f"{source} {where} ({_brief(error)}); {_REMEDY}") from error


def _is_path(source: str) -> bool:
    """Tell a slip in a path from a name, for which the hub would be asked again and again for half a minute."""
    return source.endswith((".json", "/")) or source.startswith((".", "/", "~")) or source.count("/") > 1


def _brief(error: Exception) -> str:
    line = " ".join(str(error).split())
    return line if len(line) <= 160 else f"{line[:157]}..."
