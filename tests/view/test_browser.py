"""The pages in a real browser: what a user sees, points at, folds and looks for. `.ci/run` installs Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.view.given import HOSTILE, hostile, large, shaped, snapshot
from tokenstore import RolloutStatus, TokenCaptureSnapshot
from tokenstore.view import Overview, overview_page, rollout_page

pytestmark = [pytest.mark.kernel, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SIZES = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
OVERLAPS = """() => {
  const boxes = ["header", "#bar", "#tree", "#view"].map(s => document.querySelector(s).getBoundingClientRect());
  const cut = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b => cut(a, b))).length;
}"""
"""Counts the parts of the page that lie over each other."""
CONTRAST = """(selector) => {
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const found = document.querySelector(selector);
  let under = found;
  while (getComputedStyle(under).backgroundColor === "rgba(0, 0, 0, 0)") under = under.parentElement;
  const pair = [light(getComputedStyle(found).color), light(getComputedStyle(under).backgroundColor)].sort();
  return (pair[1] + 0.05) / (pair[0] + 0.05);
}"""
"""How well a text stands out from what is behind it, as WCAG counts."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Run Chromium without a window."""
    path = shutil.which("chromium")
    api = pytest.importorskip("playwright.sync_api") if path or os.environ.get("TOKENSTORE_KERNEL") else None
    if path is None or api is None:
        if os.environ.get("TOKENSTORE_KERNEL") == "required":
            pytest.fail("chromium is not installed")
        pytest.skip("chromium is not installed")
    sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield browser
        browser.close()


@contextmanager
def opened(chromium: Any, html: str, folder: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """Open a page, and see in the end that nothing went wrong in it and nothing was asked of a network."""
    file = folder / "page.html"
    file.write_text(html, encoding="utf-8")
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    troubles: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("dialog", lambda dialog: troubles.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    yield page
    assert troubles == []
    assert asked == [file.as_uri()]
    context.close()


def marked() -> TokenCaptureSnapshot:
    """Make a rollout with branches that was marked."""
    return shaped("branches", incomplete=True, incomplete_reasons=("marked:c",))


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_a_rollout_fits_its_window(chromium: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """At each width and in each scheme no part covers another, nothing is cut off aside, and texts can be read."""
    with opened(chromium, rollout_page(marked()), tmp_path, width, scheme) as page:
        assert page.evaluate(OVERLAPS) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("#view").bounding_box()["height"] > 200
        for selector in (
            "#title",
            "#totals",
            "#verdict .bad",
            "#rows .t",
            ".call .facts",
            "#rows .note",
            "#legend .p6",
        ):
            assert page.evaluate(CONTRAST, selector) >= 4.5, selector


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_an_overview_fits_its_window(chromium: Any, tmp_path: Path, width: int, scheme: str) -> None:
    """At each width and in each scheme the overview is as wide as the window, with six pictures."""
    overview = Overview()
    for number in range(20):
        facts: dict[str, Any] = {"rollout_id": f"r{number}", "state": "open", "incomplete": True}
        overview.add(RolloutStatus(**facts, calls=9 + number, bytes=1000 + 400 * number, age=90.0 * number), marked())

    with opened(chromium, overview_page(overview, "captures"), tmp_path, width, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("figure svg").count() == 6
        assert page.evaluate(CONTRAST, "figcaption") >= 4.5
        page.locator("summary", has_text="Masked rollouts").click()
        assert page.get_by_text("marked:c").first.is_visible()


def test_a_token_tells_what_it_is(chromium: Any, tmp_path: Path) -> None:
    """Over a generated token its id, log probability, position, call and loss mask are shown."""
    given = shaped("prefix_breaks")
    entry = given.entries[0]
    at = next(at for at, value in enumerate(entry.generation_log_probs) if value < -0.5)

    with opened(chromium, rollout_page(given), tmp_path) as page:
        page.locator("#search").fill(str(entry.generation_token_ids[at]))
        page.locator("#rows .t.g.hit").first.hover()
        said = page.locator("#tip").inner_text()

        page.mouse.move(640, 20)
        assert page.locator("#tip").is_hidden()

    assert f"id {entry.generation_token_ids[at]}" in said
    assert f"log probability {entry.generation_log_probs[at]}" in said
    assert f"position {len(entry.prompt_token_ids) + at} of call {entry.model_call_id}" in said
    assert "loss mask 1" in said


def test_a_masked_rollout_says_so_everywhere(chromium: Any, tmp_path: Path) -> None:
    """In a rollout that is masked as a whole each call and each token says it, whatever its trajectory says."""
    with opened(chromium, rollout_page(marked()), tmp_path) as page:
        page.locator("#rows .t").first.hover()

        assert "all is masked: incomplete" in page.locator("#tip").inner_text()
        page.locator(".call").nth(1).click()
        assert page.locator(".row.note", has_text="loss mask 1; all is masked: incomplete").count() > 0


def test_an_id_turns_no_other_text_around(chromium: Any, tmp_path: Path) -> None:
    """Letters in a call's id that turn the direction of writing do so up to its end, and not what the page says."""
    entry = attrs.evolve(shaped("append_only").entries[0], model_call_id="a\u202eb")
    place = """(at) => {
      const range = document.createRange(), text = document.querySelector(".row.head .more").firstChild;
      range.setStart(text, at); range.setEnd(text, at + 1); return range.getBoundingClientRect().left; }"""

    with opened(chromium, rollout_page(snapshot([entry])), tmp_path) as page:
        assert page.evaluate(place, 1) < page.evaluate(place, 10)


def test_calls_fold(chromium: Any, tmp_path: Path) -> None:
    """A call folds to its head, all of them do, and come back."""
    given = shaped("append_only")

    with opened(chromium, rollout_page(given), tmp_path) as page:
        height = page.evaluate("document.getElementById('space').offsetHeight")
        page.locator(".row.head").first.click()
        one = page.evaluate("document.getElementById('space').offsetHeight")
        page.locator("#fold").click()
        heads = page.evaluate("document.getElementById('space').offsetHeight")
        page.locator("#unfold").click()

        assert height > one > heads == 22 * len(given.entries)
        assert page.evaluate("document.getElementById('space').offsetHeight") == height


def test_a_call_is_found(chromium: Any, tmp_path: Path) -> None:
    """A call is found by its id, also when all is folded, and a click in the tree leads to it."""
    given = shaped("append_only")
    wanted = given.entries[-1].model_call_id

    with opened(chromium, rollout_page(given), tmp_path, 390) as page:
        page.locator("#fold").click()
        page.locator("#search").fill(wanted[-8:])
        page.locator(".row.head.hit").wait_for()
        assert page.locator("#found").inner_text() == "1 of 1"
        assert wanted in page.locator(".row.head.hit").inner_text()

        page.locator("#unfold").click()
        page.locator("#search").fill("")
        page.locator(".call", has_text=wanted).click()
        top = page.locator("#view").bounding_box()["y"]
        assert abs(page.locator(".row.head", has_text=wanted).first.bounding_box()["y"] - top) < 23


def test_no_text_runs(chromium: Any, tmp_path: Path) -> None:
    """Hostile text is shown as it is, in the page of a rollout and in that of a directory."""
    given = hostile()
    overview = Overview()
    overview.add(RolloutStatus(rollout_id="r", state="open", incomplete=True, calls=1, bytes=9, age=1.0), given)

    with opened(chromium, rollout_page(given), tmp_path) as page:
        assert page.title() == "rollout r"
        assert page.locator("img").count() == 0
        assert HOSTILE[:40] in page.locator("#rows").inner_text()

    with opened(chromium, overview_page(overview, HOSTILE), tmp_path) as page:
        assert page.title().startswith("tokenstore </script>")
        assert page.locator("img, script").count() == 0


def test_the_policy_stops_a_script_that_got_in(chromium: Any, tmp_path: Path) -> None:
    """Even if markup got into the page, the policy would not let it run, or load anything."""
    planted = rollout_page(shaped("one_token")).replace("<header>", f"<header>{HOSTILE}", 1)
    file = tmp_path / "planted.html"
    file.write_text(planted, encoding="utf-8")
    page = chromium.new_page()

    page.goto(file.as_uri())

    assert page.title() == "rollout r"
    page.close()


def test_200_000_tokens_stay_few_elements(chromium: Any, tmp_path: Path) -> None:
    """Of 200,000 tokens only those in sight are elements, wherever the page is scrolled to."""
    given = large()

    with opened(chromium, rollout_page(given), tmp_path) as page:
        end = page.evaluate("document.getElementById('view').scrollHeight")
        frames = []
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            place = int(end * share)
            frames.append(
                page.evaluate(
                    f"() => {{ const t = performance.now(); const v = $('view'); v.scrollTop = {place};"
                    " show(true); v.offsetHeight; return performance.now() - t; }"
                )
            )
            page.wait_for_timeout(50)
            assert page.locator(".t").count() < 3000
        print(f"milliseconds of five jumps: {[round(frame, 1) for frame in frames]}")  # noqa: T201 - a measurement
        page.locator("#view").evaluate("view => view.scrollTop = view.scrollHeight")
        page.locator(f".row[data-row='{page.evaluate('rows.length - 1')}']").wait_for(timeout=5000)
