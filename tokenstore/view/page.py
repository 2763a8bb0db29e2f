"""One HTML file out of a body, data, a script and a style, with a policy under which nothing else runs or is loaded."""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files
from typing import Any

from tokenstore.codec import dumps

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}
"""What could end the element that holds the data; inside JSON these stand in strings only, where an escape is right."""


def asset(name: str) -> str:
    """Read a script or a style of this package."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def page(title: str, body: str, *, style: str, script: str = "", data: Any = None) -> str:
    """Put a page together.

    Args:
        title: Any text.
        body: HTML, in which every text from outside is escaped already.
        style: CSS.
        script: JavaScript that finds the data as JSON in the element `data`; none if empty.
        data: A JSON value.

    Returns:
        HTML.
    """
    scripts = f"'{_hash(script)}'" if script else "'none'"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{style}</style></head><body>",
        body,
    ]
    if script:
        parts.append(f'<script type="application/json" id="data">{embed(data)}</script>')
        parts.append(f"<script>{script}</script>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def embed(value: Any) -> str:
    """Write a JSON value so that no text in it can end the element around it."""
    return dumps(value).decode().translate(_ESCAPES)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
