"""Entry to line and back: the format of the store, apart from files.

`plain` is JSON and the one converter, `checks` looks at elements, `content` says when two entries mean the same,
`draft` writes a line with its checksum, `line` reads it, `prompts` shares prompts between lines. Nothing outside
imports ujson or cattrs, and nothing above knows that a stored prompt may be a base and a rest.
"""

from __future__ import annotations

from tokenstore.codec.checks import check_text
from tokenstore.codec.content import content_digest
from tokenstore.codec.draft import Draft, check_entry, prepare
from tokenstore.codec.line import (
    DamagedLineError,
    LineHead,
    NewerSchemaError,
    StoredLine,
    UnacceptableLineError,
    decode_line,
    inspect_line,
)
from tokenstore.codec.plain import decode_entry, dumps, encode_entry, loads, to_plain
from tokenstore.codec.prompts import KnownPrompt, PromptCache, PromptReader

__all__ = [
    "DamagedLineError",
    "Draft",
    "KnownPrompt",
    "LineHead",
    "NewerSchemaError",
    "PromptCache",
    "PromptReader",
    "StoredLine",
    "UnacceptableLineError",
    "check_entry",
    "check_text",
    "content_digest",
    "decode_entry",
    "decode_line",
    "dumps",
    "encode_entry",
    "inspect_line",
    "loads",
    "prepare",
    "to_plain",
]
