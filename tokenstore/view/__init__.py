"""Pages that show what was captured: one rollout token by token, or a whole directory at a glance.

`rollout_page` and `overview_page` give self-contained HTML: no network, no other file. `analysis` finds the tree of a
rollout's calls, `notes` names what is odd, `document` and `overview` make the data, `page` the file, `vocabulary` turns
ids into text. All of it is pure.

No text of a rollout can run. It enters the page as JSON in which `<`, `>` and `&` are escapes, or as escaped text; the
script makes text nodes of it and nothing else; and the Content-Security-Policy lets only the page's own script and
style run, which it names by their hashes, and loads nothing.
"""

from __future__ import annotations

from tokenstore.view.analysis import AnalysedCall, Analysis, analyse
from tokenstore.view.notes import Note, notes
from tokenstore.view.overview import Overview, overview_page
from tokenstore.view.rollout import rollout_page
from tokenstore.view.vocabulary import TokenizerError, Vocabulary, load_vocabulary

__all__ = [
    "AnalysedCall",
    "Analysis",
    "Note",
    "Overview",
    "TokenizerError",
    "Vocabulary",
    "analyse",
    "load_vocabulary",
    "notes",
    "overview_page",
    "rollout_page",
]
