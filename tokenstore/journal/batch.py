"""A run of puts and begin_calls on its way into the files: decided one by one, written together.

Each request is ruled by the lifecycle table against the file and against the requests before it. One that is refused is
answered alone and leaves the batch; the rest goes to the disk in one append and one sync a file.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import suppress

from tokenstore.codec import Draft
from tokenstore.errors import (
    ConflictingEntryError,
    InvalidEntryError,
    TokenCaptureFrozenError,
    TokenCaptureRetiredError,
    TokenStoreError,
)
from tokenstore.journal.files import RolloutFiles
from tokenstore.journal.lifecycle import Event, Ruling, rule
from tokenstore.journal.requests import Begin, Put, Request
from tokenstore.journal.syncs import Wish

logger = logging.getLogger("tokenstore")


class Batch:
    """Collects what to write inside one critical section."""

    def __init__(self, files: RolloutFiles) -> None:
        self._files = files
        self._shared = files.root.config.prompt_storage == "shared"
        self._drafts: dict[str, Draft] = {}
        self._lines: list[bytes] = []
        self._digests: dict[str, str] = {}
        self._intents: dict[str, None] = {}
        self._conflicts: list[Put] = []

    def add(self, request: Request) -> None:
        """Decide about a request: into the batch, a no-op, or an answer of its own."""
        event = self._classify_put(request) if isinstance(request, Put) else self._classify_begin(request)
        ruling = rule(event, self._files.index.state.status)
        if ruling is Ruling.RECORD:
            self._take(request)
        elif ruling is Ruling.CONFLICT_MARK and isinstance(request, Put):
            self._conflicts.append(request)
        elif ruling is not Ruling.NOTHING:
            request.error = late(ruling, self._files.rollout_id)

    def _classify_put(self, put: Put) -> Event:
        index, draft = self._files.index, put.draft
        call_id = put.entry.model_call_id
        if draft is None or index.state.retired:
            return Event.PUT_NEW
        if index.state.refusal_of(call_id):
            return Event.PUT_REFUSED
        if call_id in self._drafts:
            return Event.PUT_SAME if self._drafts[call_id].content == draft.content else Event.PUT_OTHER
        if call_id in index.calls:
            return Event.PUT_SAME if self._is_stored(call_id, draft) else Event.PUT_OTHER
        return Event.PUT_NEW

    def _is_stored(self, call_id: str, draft: Draft) -> bool:
        """Whether the call's line in the file has the draft's content.

        A retry mostly gives the very line that is there; then nothing has to be read to tell.
        """
        digest = self._files.index.calls[call_id]
        bases = self._files.root.prompts.fitting(self._files.rollout_id, draft.prompt) if self._shared else ()
        for base in (*bases, None):
            with suppress(InvalidEntryError):
                if hashlib.sha256(draft.line(base, checksum=self._shared)).hexdigest() == digest:
                    return True
        return self._files.content_of(call_id) == draft.content

    def _classify_begin(self, begin: Begin) -> Event:
        index, call_id = self._files.index, begin.model_call_id
        known = (
            call_id in self._files.intents.ids
            or call_id in self._intents
            or call_id in self._drafts
            or call_id in index.calls
            or index.state.refusal_of(call_id) is not None
        )
        return Event.BEGIN_KNOWN if known else Event.BEGIN_NEW

    def _take(self, request: Request) -> None:
        if isinstance(request, Begin):
            self._intents[request.model_call_id] = None
        elif request.draft is not None:
            self._take_draft(request, request.draft)

    def _take_draft(self, put: Put, draft: Draft) -> None:
        prompts, rollout_id = self._files.root.prompts, self._files.rollout_id
        base = prompts.find(rollout_id, draft.prompt) if self._shared else None
        try:
            line = draft.line(base, checksum=self._shared)
        except InvalidEntryError as error:
            put.error = error
            return
        call_id = put.entry.model_call_id
        self._drafts[call_id] = draft
        self._lines.append(line)
        self._digests[call_id] = hashlib.sha256(line).hexdigest()
        if self._shared:
            prompts.remember(rollout_id, call_id, draft.prompt, draft.generation, base, small=draft.small)

    def writing(self) -> Iterator[Wish]:
        """Make the batch durable, in steps, and everything that its no-ops rest on; then mark the conflicts.

        Raises:
            DurabilityError: A sync or a write failed: nothing of the batch may be acknowledged.
        """
        files = self._files
        try:
            if self._lines:
                last = self._digests[next(reversed(self._digests))]
                yield from files.tokens.appending(b"\n".join([*self._lines, b""]), last)
            if self._intents:
                yield from files.intents.adding(self._intents)
            files.settle()
        except BaseException:
            files.root.prompts.forget(files.rollout_id)
            raise
        for call_id, digest in self._digests.items():
            files.index.add_call(call_id, digest)
        files.index.scanned = files.tokens.size
        files.root.counters.puts += len(self._lines)
        files.root.counters.written += sum(map(len, self._lines)) + len(self._lines)
        for put in self._conflicts:
            self._mark_conflict(put)

    def _mark_conflict(self, put: Put) -> None:
        call_id = put.entry.model_call_id
        refused = self._files.index.state.refusal_of(call_id)
        problem = "was refused by the engine before" if refused else "is stored already with other content"
        try:
            self._files.mark(call_id, conflict=True)
            self._files.settle()
        except TokenStoreError as error:
            put.error = error
            return
        self._files.root.counters.conflicts += 1
        told = {"event": "conflict", "rollout_id": self._files.rollout_id, "model_call_id": call_id}
        logger.info("call %r of rollout %s conflicts", call_id, self._files.rollout_id, extra=told)
        put.error = ConflictingEntryError(self._files.rollout_id, call_id, f"{problem}; the rollout is now incomplete")


def late(ruling: Ruling, rollout_id: str) -> TokenCaptureFrozenError:
    """The error for what came after freeze or removal."""
    kind = TokenCaptureRetiredError if ruling is Ruling.RETIRED else TokenCaptureFrozenError
    return kind(rollout_id)
