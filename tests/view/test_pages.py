"""The data of the pages, what holds text from outside in check, and tokenizers."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.view.given import HOSTILE, hostile, shaped, snapshot
from tokenstore import RolloutStatus, TokenEntry
from tokenstore.testing import SHAPES, agent_rollout
from tokenstore.view import Overview, TokenizerError, analyse, load_vocabulary, notes, overview_page, rollout_page
from tokenstore.view.overview import LOG_PROB_EDGES
from tokenstore.view.rollout import document


def status(**fields: Any) -> RolloutStatus:
    """Make a status."""
    facts: dict[str, Any] = {
        "rollout_id": "r",
        "state": "open",
        "incomplete": False,
        "calls": 1,
        "bytes": 9,
        "age": 1.0,
    }
    return RolloutStatus(**facts | fields)


def prompts(shown: dict[str, Any]) -> list[list[int]]:
    """Put the prompts of a page's data together again, as its script does."""
    whole: list[list[int]] = []
    for call in shown["calls"]:
        base = [] if call["base"] is None else whole[call["base"]] + shown["calls"][call["base"]]["generation"]
        assert len(base) >= call["shared"]
        whole.append(base[: call["shared"]] + call["prompt"])
    return whole


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost_by_sharing(shape: str) -> None:
    """Of every kind of rollout the prompts of the page's data are those recorded, and the rest is as it was."""
    given = shaped(shape)

    shown = document(given)

    assert prompts(shown) == [entry.prompt_token_ids for entry in given.entries]
    assert [call["log_probs"] for call in shown["calls"]] == [entry.generation_log_probs for entry in given.entries]


def test_a_page_grows_with_what_is_new() -> None:
    """Of 50 turns that repeat their history, and of 8 answers to one prompt, each prompt token is there once."""
    turns = document(snapshot(agent_rollout("r", turns=50, first_prompt=100, generated=10, added=10)))
    answers = [agent_rollout("r", turns=1, first_prompt=500, generated=4)[0]] * 8
    siblings = [
        TokenEntry(
            rollout_id="r",
            model_call_id=f"c{number}",
            prompt_token_ids=entry.prompt_token_ids,
            generation_token_ids=[number],
            generation_log_probs=[-1.0],
        )
        for number, entry in enumerate(answers)
    ]

    assert sum(len(call["prompt"]) for call in turns["calls"]) == 100 + 49 * 10
    assert [len(call["prompt"]) for call in document(snapshot(siblings))["calls"]] == [500] + [0] * 7


def test_breaks_and_fates_are_shown() -> None:
    """Each call of a rollout with breaks says where it leaves which call, and what becomes of it."""
    given = shaped("prefix_breaks")

    analysis = analyse(given)
    shown = document(given)["calls"]

    assert analysis.report is not None
    assert [call["fate"] for call in shown] == [fate.fate for fate in analysis.report.fates]
    at = {broken.model_call_id: broken.agrees for broken in analysis.report.breaks}
    assert {call["id"]: call["break"]["at"] for call in shown if call["break"]} == at


def test_ids_beyond_what_trainers_take_are_shown() -> None:
    """A rollout of which no trajectory can be made has a page that says so."""
    entry = TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[2**32 - 1],
        generation_token_ids=[1],
        generation_log_probs=[0.0],
    )

    shown = document(snapshot([entry]))

    assert "beyond int32" in shown["verdict"]["reasons"][0]
    assert (shown["calls"][0]["fate"], shown["calls"][0]["prompt"]) == (None, [2**32 - 1])


@pytest.mark.parametrize(
    ("prompt", "generation", "expected"),
    [
        ([1], [2], ()),
        ([], [2], ("empty_prompt",)),
        ([1], [], ("empty_generation",)),
        ([], [], ("empty_prompt", "empty_generation")),
        ([1], [0] * 64, ("all_padding",)),
        ([1], [0] * 95 + [5] * 5, ("all_padding",)),
        ([1], [0] * 63, ()),
        ([1], [0] * 80 + list(range(1, 21)), ()),
    ],
)
def test_odd_calls_are_named(prompt: list[int], generation: list[int], expected: tuple[str, ...]) -> None:
    """Empty prompts, empty generations and padding are named; short repetitions are not."""
    entry = TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        generation_log_probs=[0.0] * len(generation),
    )

    assert notes(entry) == expected


class Tags(html.parser.HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self._inside = tag
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, _: str) -> None:
        """Note that what follows is in no script."""
        self._inside = ""

    def handle_data(self, data: str) -> None:
        """Keep what is in scripts and styles."""
        if self._inside in ("script", "style"):
            self.scripts.append(data)


def test_hostile_text_is_data() -> None:
    """Hostile text makes no element, no attribute and no end of a script, and comes back whole as data."""
    pages = [rollout_page(hostile()), rollout_page(shaped("one_token"))]
    overviews = [Overview(), Overview()]
    overviews[0].add(status(incomplete=True), hostile())
    overviews[0].add_unreadable(status(), HOSTILE)
    overviews[1].add(status(incomplete=True), shaped("one_token", incomplete=True, incomplete_reasons=("flagged",)))
    overviews[1].add_unreadable(status(), "why")

    parsed = [Tags(page) for page in pages]
    drawn = [Tags(overview_page(overview, root)) for overview, root in zip(overviews, (HOSTILE, "r"), strict=True)]

    assert [tag for tag, _ in parsed[0].tags] == [tag for tag, _ in parsed[1].tags]
    assert "img" not in {tag for tag, _ in drawn[0].tags}
    assert not [name for tag, attrs in drawn[0].tags for name in attrs if name.startswith("on") or name == "style"]
    data = json.loads(parsed[0].scripts[1])
    assert data["refusals"][0]["code"] == HOSTILE
    assert not re.search("[<>&\u2028]", parsed[0].scripts[1])


@pytest.mark.parametrize("kind", ["rollout", "overview"])
def test_the_policy_names_all_that_runs(kind: str) -> None:
    """Nothing is allowed but the page's own script and style, by hashes that fit, and nothing refers elsewhere."""
    text = rollout_page(shaped("one_token")) if kind == "rollout" else overview_page(Overview(), "r")
    parsed = Tags(text)

    policy = next(attrs["content"] for _, attrs in parsed.tags if attrs.get("http-equiv") == "Content-Security-Policy")

    assert policy is not None
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in parsed.scripts]
    style, script = digests[0], f"'sha256-{digests[-1]}'" if kind == "rollout" else "'none'"
    assert policy == (
        f"default-src 'none'; script-src {script}; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
    )
    assert not [attrs for _, attrs in parsed.tags if {"src", "href", "action"} & attrs.keys()]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://", text.replace("http-", "")
    )


def test_an_overview_counts_everything() -> None:
    """Each call, token and reason is in one bar or row, wherever the log probability lies."""
    values = [-20.0, -12.0, -11.9, -0.3, -0.1, 0.0, 0.5]
    entry = TokenEntry(
        rollout_id="r",
        model_call_id="c",
        prompt_token_ids=[1, 2, 3],
        generation_token_ids=[1] * len(values),
        generation_log_probs=values,
    )
    overview = Overview()
    overview.add(
        status(incomplete=True), snapshot([entry], incomplete=True, incomplete_reasons=("marked:a", "marked:b"))
    )
    overview.add(status(state="retired"), None)

    page = overview_page(overview, "r")

    assert sum(overview.log_probs) == len(values)
    assert (overview.log_probs[0], overview.log_probs[-2:]) == (3, [1, 2])
    assert len(list(accumulate(LOG_PROB_EDGES))) == len(overview.log_probs)
    assert overview.reasons == {"marked": 2}
    assert "2 rollouts, 1 calls, 7 generated tokens" in page


def trained(folder: Path) -> Path:
    """Train a small byte-level tokenizer, so that letters may be split over tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the store keeps the tokens"] * 20, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_tokens_are_text_with_a_tokenizer(tmp_path: Path) -> None:
    """With a tokenizer from a path each token has its text, offline; parts of letters and unknown ids stay."""
    path = trained(tmp_path)
    tokenizers = pytest.importorskip("tokenizers")
    ids = tokenizers.Tokenizer.from_file(str(path)).encode("the tokens é").ids
    vocabulary = load_vocabulary(str(tmp_path))

    pieces = vocabulary.pieces([*ids, 299, 2**32 - 1])

    assert "".join(pieces[token] for token in ids[:-2]) == "the tokens "
    assert [pieces[token] for token in ids[-2:]] == ["Ã", "©"]
    assert 2**32 - 1 not in pieces


def test_a_tokenizer_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no tokenizer, and a missing package, say what to do."""
    pytest.importorskip("tokenizers")
    file = tmp_path / "odd.json"
    file.write_text("{}")
    with pytest.raises(TokenizerError, match="leave --tokenizer out"):
        load_vocabulary(str(file))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TokenizerError, match="cannot be fetched"):
        load_vocabulary("no such name")

    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match="pip install 'tokenstore"):
        load_vocabulary(str(file))
