"""SGLang's `/generate` as a stream: whether a chunk holds everything so far or only what is new is told by looking.

SGLang streams cumulative lists, or deltas where its server runs with `--incremental-streaming-output`; lmdeploy streams
deltas. `completion_tokens` counts all ids so far in both, so with K ids known, N in the chunk and T counted:

| seen | is |
|---|---|
| N = T, and the chunk begins with the K known | everything |
| K + N = T | what is new |
| no T, and the chunk does not begin with the K known | what is new |
| an abort with N = T - K + 1, the last id twice | what is new, and again the last id and all log probabilities |
| anything else | refused: a chunk was lost or doubled, or it cannot be told |

K = 0 falls under both first lines, which then mean the same.
"""

from __future__ import annotations

import attrs

from tokenstore.engines.call import Call


@attrs.frozen(kw_only=True)
class Part:
    """What one chunk holds."""

    ids: list[int]
    """Generated ids."""
    logged_ids: list[int]
    """The ids beside the log probabilities."""
    log_probs: list[float] | None
    """Log probabilities, None if the chunk has none."""
    text: str
    """Decoded, without special tokens."""


class Growth:
    """What is known of an answer while its chunks come."""

    def __init__(self, call: Call) -> None:
        self.ids: list[int] = []
        self.log_probs: list[float] | None = None
        self._texts: list[str] = []
        self._call = call

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def take(self, part: Part, *, total: int | None, aborted: bool, where: str) -> None:
        """Take a chunk.

        Args:
            part: What the chunk holds.
            total: How many ids the engine counts so far.
            aborted: The chunk ends an aborted answer.
            where: Names the chunk.

        Raises:
            DisagreeingAnswerError: The chunk is neither everything nor what is new, or its lists differ.
        """
        known, brought = len(self.ids), len(part.ids)
        whole = part.ids[:known] == self.ids
        if aborted and total is not None and len(part.log_probs or ()) > total:
            self._replace(self._without_repetition(part, total, where), where)
        elif total is not None and brought == total and whole:
            self._replace(part, where)
        elif known + brought == total or (total is None and (not whole or not known)):
            self._append(part, where)
        elif aborted and total is not None:
            self._replace(self._without_repetition(part, total, where), where)
        else:
            told = "gives no count, so it cannot be told if this is" if total is None else f"counts {total}, not"
            numbers = {"known": known, "ids": brought} | ({} if total is None else {"counted": total})
            problem = f"brings {brought} ids to {known} known and {told} everything or what is new"
            self._call.disagree(where, problem, **numbers)

    def _replace(self, part: Part, where: str) -> None:
        """Take a chunk that holds everything."""
        self._check_pair(part, where, before=0)
        known = self.log_probs or []
        if (part.log_probs or [])[: len(known)] != known:
            self._call.disagree(where, f"repeats {len(known)} log probs, but other ones", known=len(known))
        self.ids, self.log_probs, self._texts = part.ids, part.log_probs, [part.text]

    def _append(self, part: Part, where: str) -> None:
        """Take a chunk that holds what is new; in place, for there may be one for each token."""
        lacking = part.log_probs is None and self.log_probs is not None and part.ids
        late = part.log_probs is not None and self.log_probs is None and self.ids
        self._check_pair(part, where, before=len(self.ids), strict=bool(lacking or late))
        self.ids += part.ids
        if part.log_probs is not None:
            self.log_probs = self.log_probs or []
            self.log_probs += part.log_probs
        self._texts.append(part.text)

    def _without_repetition(self, part: Part, total: int, where: str) -> Part:
        """Make everything of an abort among deltas: what is new, then the last id again and everything else."""
        fresh, known = part.ids[:-1], len(self.ids)
        ids = self.ids + fresh
        if not ids or len(ids) != total or part.ids[-1] != ids[-1]:
            problem = f"brings {len(part.ids)} ids to {known} known and counts {total}"
            self._call.disagree(where, problem, known=known, ids=len(part.ids), counted=total)
        logged, log_probs = part.logged_ids[-total:], part.log_probs
        if log_probs is not None:
            new, log_probs = log_probs[:-total], log_probs[-total:]
            if new and (len(new) != len(fresh) or log_probs[known:] != new):
                self._call.disagree(where, f"repeats {len(new)} log probs, but other ones", repeated=len(new))
        text = part.text[max(len(part.text) - len(self.text), 0) // 2 :]  # what is new, and then all of it
        return Part(ids=ids, logged_ids=logged, log_probs=log_probs, text=text)

    def _check_pair(self, part: Part, where: str, *, before: int, strict: bool = False) -> None:
        """Check that each id has its log probability beside it, or that the answer has none at all."""
        if part.log_probs is None and not strict:
            return
        log_probs = len(part.log_probs or ())
        if len(part.ids) != log_probs or strict:
            lengths = {
                "generation_token_ids": before + len(part.ids),
                "generation_log_probs": (len(self.log_probs or ()) if before else 0) + log_probs,
            }
            problem = "makes it {generation_token_ids} ids and {generation_log_probs} log probs".format(**lengths)
            self._call.disagree(where, problem, **lengths)
        for at, (one, other) in enumerate(zip(part.ids, part.logged_ids, strict=True)):
            if one != other:
                self._call.disagree(f"{where}.meta_info.output_token_logprobs[{at}]", "is of another id", position=at)
