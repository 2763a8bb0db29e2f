"""Streams in the form of OpenAI's: chat, completions and token generation, told apart by looking.

Each chunk brings the ids and log probabilities that are new. Within a chunk both must be of one length, so that a lost
log probability cannot be made up for by another chunk. SGLang's chat brings all ids at the end, in `sglext`: then only
the sums are compared. The counts of a `usage` beside ids are cumulative, so a lost chunk shows at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from tokenstore.engines.answer import Answer, Carrier, agreed, usage_counts
from tokenstore.engines.call import About
from tokenstore.engines.choices import Piece, read_choice, read_root, response_id
from tokenstore.engines.messages import Message
from tokenstore.engines.streams import Assembler
from tokenstore.engines.values import list_of, object_of, optional_object, text_of, time_of


class ChoiceAssembler(Assembler):
    """Puts a stream of one choice together."""

    def __init__(self, *, rollout_id: str, model_call_id: str, **about: Unpack[About]) -> None:
        super().__init__(rollout_id=rollout_id, model_call_id=model_call_id, **about)
        self._head: Mapping[str, Any] | None = None
        self._index: Any = None
        self._root = Piece()
        self._ids: list[int] | None = None
        self._log_probs: list[float] | None = None
        self._brought: tuple[bool, bool] | None = None
        self._message = Message()
        self._finish: str | None = None
        self._weight_versions: Any = None
        self._routed_experts: Any = None
        self._counts: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def _generated(self) -> int:
        return max(len(self._ids or ()), len(self._log_probs or ()))

    def _take(self, event: Mapping[str, Any], where: str) -> None:
        self._take_head(event, where)
        self._take_root(read_root(self._call, event))
        self._take_experts(optional_object(self._call, event, "sglext", where), f"{where}.sglext")
        choices = list_of(self._call, event["choices"], f"{where}.choices")
        if len(choices) > 1:
            problem = f"are {len(choices)}, one is needed: each would be a sample of its own, so ask for n=1"
            self._call.wrong(f"{where}.choices", problem, choices=len(choices))
        for choice in choices:
            self._take_choice(object_of(self._call, choice, f"{where}.choices[0]"), f"{where}.choices[0]")
        self._take_usage(event.get("usage"), where, beside_choices=bool(choices))

    def _take_head(self, event: Mapping[str, Any], where: str) -> None:
        """Check that all chunks are of one answer; the first says which."""
        if event.get("choices") is None:
            self._call.wrong(f"{where}.choices", "are not there; is this the stream of another engine, or endpoint?")
        given = response_id(self._call, event)
        known = given if self._head is None else response_id(self._call, self._head)
        if given != known:
            self._call.disagree(f"{where}.id", "is of another answer: two streams were mixed", chunks=self._chunks)
        self._head = self._head or event

    def _take_root(self, piece: Piece) -> None:
        """Keep prompt ids, and ids that come all at once; given again, they must be the same."""
        if not piece.prompts and not piece.ids:  # as in most chunks: a long prompt is not looked at for each token
            return
        found = self._root.add(piece)
        agreed(self._call, found.prompts)
        agreed(self._call, found.ids)
        self._root = Piece(prompts=found.prompts[:1], ids=found.ids[:1])

    def _take_choice(self, choice: Mapping[str, Any], where: str) -> None:
        index = choice.get("index", 0)
        if self._index is not None and index != self._index:
            problem = "is another: the stream holds 2 choices or more, each a sample of its own; ask for n=1"
            self._call.wrong(f"{where}.index", problem, choices=2)
        self._index = index
        piece = read_choice(self._call, choice, where)
        self._take_root(Piece(prompts=piece.prompts))
        self._take_tokens(piece, where)
        self._message.grow(self._call, choice, where)
        self._take_finish(choice, where)
        self._take_experts(choice, where)

    def _take_experts(self, holder: Mapping[str, Any], where: str) -> None:
        """Keep the routing, which is of the whole answer: what differs when it comes again would be lost."""
        given = holder.get("routed_experts")
        if given is None:
            return
        if self._routed_experts is not None and given != self._routed_experts:
            self._call.disagree(f"{where}.routed_experts", "comes a second time, and differs", chunks=self._chunks)
        self._routed_experts = given

    def _take_tokens(self, piece: Piece, where: str) -> None:
        ids, log_probs = agreed(self._call, piece.ids), agreed(self._call, piece.log_probs)
        if self._finish is not None and (ids or log_probs):
            self._call.wrong(where, f"brings {len(ids or ())} ids after the finish_reason", ids=len(ids or ()))
        if ids or log_probs:
            self._check_pair(len(ids or ()), len(log_probs or ()), where)
        if ids is not None:
            self._ids = self._ids or []
            self._ids += ids
        if log_probs is not None:
            self._log_probs = self._log_probs or []
            self._log_probs += log_probs

    def _check_pair(self, ids: int, log_probs: int, where: str) -> None:
        """Check that a chunk brings as many ids as log probabilities, or that all chunks alike lack one of them."""
        brought = bool(ids), bool(log_probs)
        if (all(brought) and ids != log_probs) or (self._brought is not None and brought != self._brought):
            problem = f"brings {ids} ids and {log_probs} log probs"
            totals = {
                "generation_token_ids": len(self._ids or ()) + ids,
                "generation_log_probs": len(self._log_probs or ()) + log_probs,
            }
            self._call.disagree(where, problem, ids=ids, log_probs=log_probs, **totals)
        self._brought = brought

    def _take_finish(self, choice: Mapping[str, Any], where: str) -> None:
        finish = text_of(self._call, choice, "finish_reason", where)
        if finish is not None and self._finish is not None:
            self._call.wrong(f"{where}.finish_reason", "comes a second time", chunks=self._chunks)
        self._finish = self._finish if finish is None else finish
        if choice.get("weight_versions") is not None:
            self._weight_versions = choice["weight_versions"]

    def _take_usage(self, usage: Any, where: str, *, beside_choices: bool) -> None:
        if usage is None:
            return
        self._counts = usage_counts(self._call, usage, f"{where}.usage")
        for field, count in self._counts[1].items():
            if beside_choices and self._ids and count != len(self._ids):
                problem = f"is {count}, but {len(self._ids)} ids have come: a chunk was lost or doubled"
                self._call.disagree(field, problem, counted=count, found=len(self._ids))

    def _answer(self) -> Answer:
        head, items = self._head or {}, self._message.items()
        ids: list[Carrier] = [] if self._ids is None else [("token_ids of all chunks", self._ids)]
        return Answer(
            finished=self._finish is not None,
            finish_reason=self._finish,
            prompts=self._root.prompts,
            ids=[*self._root.ids, *ids],
            log_probs=[] if self._log_probs is None else [("logprobs of all chunks", self._log_probs)],
            prompt_counts=self._counts[0],
            counts=self._counts[1],
            model=text_of(self._call, head, "model") or "",
            response_id=response_id(self._call, head),
            created_at=time_of(self._call, head, "created"),
            items=items,
            item_index=0 if items else None,
            routed_experts=self._routed_experts,
            weight_versions=self._weight_versions,
        )
