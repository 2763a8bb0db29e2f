"""The page of a whole directory: states, sizes, lengths, log probabilities, and what was masked when. Without script.

`Overview` adds up one rollout after the other, so that memory does not grow with their contents.
"""

from __future__ import annotations

import html
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import attrs

from tokenstore.records import RolloutState, RolloutStatus, TokenCaptureSnapshot
from tokenstore.view.page import asset, page

LOG_PROB_EDGES = (
    -12.0,
    -10.0,
    -8.0,
    -7.0,
    -6.0,
    -5.0,
    -4.0,
    -3.0,
    -2.5,
    -2.0,
    -1.5,
    -1.0,
    -0.75,
    -0.5,
    -0.25,
    -0.1,
    0.0,
)
"""Where the bars of log probabilities begin; the first one also holds what is below, the last one is exactly 0."""
TIME_BARS = 24
"""Bars of the picture over time."""
MASKED_SHOWN = 500
"""Rows of the table of masked rollouts."""


@attrs.define
class Overview:
    """What is in a directory, added up."""

    states: Counter[str] = attrs.field(factory=Counter)
    incomplete: Counter[str] = attrs.field(factory=Counter)
    calls: list[int] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    prompts: Counter[int] = attrs.field(factory=Counter)
    generations: Counter[int] = attrs.field(factory=Counter)
    log_probs: list[int] = attrs.field(factory=lambda: [0] * len(LOG_PROB_EDGES))
    reasons: Counter[str] = attrs.field(factory=Counter)
    masked: list[tuple[float, str, tuple[str, ...]]] = attrs.field(factory=list)
    unreadable: dict[str, str] = attrs.field(factory=dict)

    def add(self, status: RolloutStatus, snapshot: TokenCaptureSnapshot | None) -> None:
        """Count a rollout; its snapshot is `None` if it is retired or cannot be read."""
        self.states[status.state] += 1
        self.incomplete[status.state] += status.incomplete if snapshot is None else snapshot.incomplete
        if status.state != "retired":
            self.calls.append(status.calls)
            self.sizes.append(status.bytes)
        if snapshot is None:
            return
        for entry in snapshot.entries:
            self.prompts[_magnitude(len(entry.prompt_token_ids))] += 1
            self.generations[_magnitude(len(entry.generation_token_ids))] += 1
            self._add_log_probs(entry.generation_log_probs)
        if snapshot.incomplete:
            self.reasons.update(_code(reason) for reason in snapshot.incomplete_reasons)
            self.masked.append((status.age, status.rollout_id, snapshot.incomplete_reasons))

    def add_unreadable(self, status: RolloutStatus, problem: str) -> None:
        """Count a rollout that cannot be read."""
        self.add(status, None)
        self.unreadable[status.rollout_id] = problem

    def _add_log_probs(self, log_probs: Iterable[float]) -> None:
        for value, count in Counter(log_probs).items():
            self.log_probs[max(0, bisect_right(LOG_PROB_EDGES, value) - 1)] += count


def overview_page(overview: Overview, root: str) -> str:
    """Show a directory as one HTML page.

    Args:
        overview: What is in it.
        root: Its name.

    Returns:
        The whole file.
    """
    charts = [
        _chart("Calls of a rollout", _by_magnitude(overview.calls)),
        _chart("Bytes of a rollout", _by_magnitude(overview.sizes)),
        _chart("Prompt tokens of a call", _sorted(overview.prompts)),
        _chart("Generated tokens of a call", _sorted(overview.generations)),
        _chart("Log probability of generated tokens", _log_prob_bars(overview)),
        _chart("Masked rollouts by their last change", _time_bars(overview)),
    ]
    body = "".join(
        [
            f"<header><h1>{_text(root)}</h1><p>{_summary(overview)}</p></header><main>",
            _table("States", ("state", "rollouts", "incomplete"), _state_rows(overview)),
            f'<div class="charts">{"".join(charts)}</div>',
            _table("Why rollouts are masked", ("reason", "times"), overview.reasons.most_common()),
            _masked_table(overview),
            _table("Not readable", ("rollout", "why"), sorted(overview.unreadable.items())),
            "</main>",
        ]
    )
    return page(f"tokenstore {root}", body, style=asset("common.css") + asset("overview.css"))


def _summary(overview: Overview) -> str:
    calls, size = sum(overview.calls), sum(overview.sizes)
    tokens = sum(overview.log_probs)
    return f"{sum(overview.states.values()):,} rollouts, {calls:,} calls, {tokens:,} generated tokens, {size:,} bytes"


def _state_rows(overview: Overview) -> list[tuple[Any, ...]]:
    return [(state, overview.states[state], overview.incomplete[state]) for state in get_args(RolloutState)]


def _masked_table(overview: Overview) -> str:
    ordered = sorted(overview.masked)
    rows = [(rollout_id, ", ".join(reasons), _age(age)) for age, rollout_id, reasons in ordered[:MASKED_SHOWN]]
    more = f", the latest {MASKED_SHOWN:,} of {len(ordered):,}" if len(ordered) > MASKED_SHOWN else ""
    return _table(f"Masked rollouts{more}", ("rollout", "reasons", "last change"), rows, folded=True)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, folded: bool = False) -> str:
    if not rows:
        return ""
    head = "".join(_head(column, number=isinstance(cell, int)) for column, cell in zip(columns, rows[0], strict=True))
    lines = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    shut = "" if folded else " open"
    return f"<details{shut}><summary>{_text(title)} ({len(rows):,})</summary>{table}</details>"


def _head(column: str, *, number: bool) -> str:
    return f'<th class="number">{_text(column)}</th>' if number else f"<th>{_text(column)}</th>"


def _cell(value: Any) -> str:
    return f'<td class="number">{value:,}</td>' if isinstance(value, int) else f"<td>{_text(value)}</td>"


def _chart(title: str, bars: Sequence[tuple[str, int]]) -> str:
    """Draw bars without a word in the picture, which is stretched to the page's width.

    Of a label what stands before a semicolon is written below, and the whole shown at the pointer.
    """
    if not any(count for _, count in bars):
        return ""
    highest = max(count for _, count in bars)
    drawn = []
    for at, (label, count) in enumerate(bars):
        height = 100 * count / highest
        # The empty rectangle over the whole height is what the pointer finds.
        drawn.append(
            f'<g><title>{_text(label)}: {count:,}</title><rect class="ground" x="{at}" y="0" width="1" height="100"/>'
            f'<rect class="bar" x="{at + 0.05:.2f}" y="{100 - height:.2f}" width="0.9" height="{height:.2f}"/></g>'
        )
    ends = "".join(f"<span>{_text(label.partition('; ')[0])}</span>" for label in (bars[0][0], bars[-1][0]))
    name = _text(f"{title}, highest bar {highest:,}")
    return (
        f'<figure><figcaption>{name}</figcaption><svg viewBox="0 0 {len(bars)} 100" preserveAspectRatio="none" '
        f'role="img" aria-label="{name}">{"".join(drawn)}</svg><div class="ends">{ends}</div></figure>'
    )


def _magnitude(value: int) -> int:
    """The power of two below a length; 0 for nothing."""
    return value.bit_length()


def _by_magnitude(values: Iterable[int]) -> list[tuple[str, int]]:
    return _sorted(Counter(map(_magnitude, values)))


def _sorted(magnitudes: Counter[int]) -> list[tuple[str, int]]:
    if not magnitudes:
        return []
    return [(_range(at), magnitudes[at]) for at in range(min(magnitudes), max(magnitudes) + 1)]


def _range(magnitude: int) -> str:
    first = 2**magnitude // 2
    last = 2**magnitude - 1
    return f"{first:,}" if last <= first else f"{first:,} to {last:,}"


def _log_prob_bars(overview: Overview) -> list[tuple[str, int]]:
    labels = [f"from {edge:g}" for edge in LOG_PROB_EDGES]
    labels[0], labels[-1] = f"below {LOG_PROB_EDGES[1]:g}", "0"
    return list(zip(labels, overview.log_probs, strict=True))


def _time_bars(overview: Overview) -> list[tuple[str, int]]:
    """Count masked rollouts in equal times, the oldest on the left."""
    if not overview.masked:
        return []
    width = max(math.ceil(max(age for age, _, _ in overview.masked) / TIME_BARS), 1)
    rollouts: Counter[int] = Counter()
    reasons: dict[int, Counter[str]] = {}
    for age, _, given in overview.masked:
        at = min(TIME_BARS - 1, int(age / width))
        rollouts[at] += 1
        reasons.setdefault(at, Counter()).update(map(_code, given))
    return [(_time_label(at, width, reasons.get(at, Counter())), rollouts[at]) for at in reversed(range(TIME_BARS))]


def _time_label(at: int, width: int, reasons: Counter[str]) -> str:
    counted = "".join(f"; {reason} {count:,}" for reason, count in reasons.most_common())
    return f"{_age(at * width)} to {_age((at + 1) * width)} ago{counted}"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _code(reason: str) -> str:
    return reason.partition(":")[0]


def _text(value: object) -> str:
    return html.escape(str(value))
