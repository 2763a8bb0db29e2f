"""What a conformance check works with: clients, fresh rollout ids, ordinary entries, and expectations that name it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

import anyio

from tokenstore.errors import TokenCaptureRetiredError
from tokenstore.protocols import TokenSink, TokenSource
from tokenstore.records import TokenCaptureSnapshot, TokenEntry
from tokenstore.testing.equality import first_difference

P = ParamSpec("P")
E = TypeVar("E", bound=Exception)


class ConformanceError(AssertionError):
    """A store does not keep a promise.

    Attributes:
        check: name of the check, a key of `CHECKS`.
        expected: what should have happened.
        found: what happened instead.
    """

    def __init__(self, check: str, expected: str, found: str) -> None:
        super().__init__(check, expected, found)
        self.check = check
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.check}: expected {self.expected}, found {self.found}"


class Check(Protocol):
    """One behaviour of a store: returns if the store has it, else raises `ConformanceError`."""

    __name__: str

    async def __call__(self, trial: Trial, /) -> None: ...


class Trial:
    """One run of one check: two sinks and two sources over one backend, and rollouts that nobody else uses.

    Attributes:
        check: Name of the check.
        sink, source: The clients that a check uses.
        other_sink, other_source: More clients of the same backend.
    """

    def __init__(self, check: str, sinks: Sequence[TokenSink], sources: Sequence[TokenSource]) -> None:
        self.check = check
        self.sink, self.other_sink = sinks
        self.source, self.other_source = sources
        self._prefix = f"conformance-{secrets.token_hex(8)}"
        self._rollouts: list[str] = []

    def rollout(self, *, length: int = 0) -> str:
        """Make a rollout id that was never used, at least `length` characters long."""
        rollout_id = f"{self._prefix}-{len(self._rollouts)}".ljust(length, "x")
        self._rollouts.append(rollout_id)
        return rollout_id

    def entry(self, rollout_id: str, call_id: str = "c1", **fields: Any) -> TokenEntry:
        """Make a small ordinary entry."""
        known: dict[str, Any] = {
            "prompt_token_ids": [1, 2, 3],
            "generation_token_ids": [4, 5],
            "generation_log_probs": [-0.5, -1.25e-5],
            "model": "m",
            "output_items": [{"type": "message", "text": "Grüße 😊"}],
            "token_item_index": 0,
            "created_at": 1.5,
            "extra": {"group_id": "g"},
        }
        return TokenEntry(rollout_id=rollout_id, model_call_id=call_id, **{**known, **fields})

    def fail(self, expected: str, found: str) -> NoReturn:
        """Fail the check."""
        raise ConformanceError(self.check, expected, found)

    def equal(self, found: object, expected: object, what: str) -> None:
        """Fail the check unless two values are equal."""
        if found != expected:
            self.fail(f"{what} to be {expected!r}", repr(found))

    async def raises(
        self, kind: type[E], doing: str, function: Callable[P, Awaitable[object]], *args: P.args, **kwargs: P.kwargs
    ) -> E:
        """Fail the check unless a call raises this kind of error; a retired error is not taken for a frozen one."""
        try:
            await function(*args, **kwargs)
        except kind as error:
            if isinstance(error, TokenCaptureRetiredError) == issubclass(kind, TokenCaptureRetiredError):
                return error
            problem: Exception = error
        except Exception as error:  # noqa: BLE001 - it is reported below
            problem = error
        else:
            self.fail(f"{kind.__name__} from {doing}", "no error")
        raise ConformanceError(self.check, f"{kind.__name__} from {doing}", repr(problem)) from problem

    async def freezes(
        self,
        rollout_id: str,
        *,
        version: int,
        entries: Sequence[TokenEntry] = (),
        refusals: Mapping[str, str | None] | None = None,
        reasons: Collection[str] = (),
        ordered: bool = True,
    ) -> TokenCaptureSnapshot:
        """Freeze a rollout and fail the check unless the snapshot is exactly this one.

        Of a call that masks the rollout the store may tell more reasons than the ones given.
        """
        snapshot = await self.source.freeze(rollout_id)
        self.equal(snapshot.rollout_id, rollout_id, "the snapshot's rollout_id")
        self.equal(snapshot.frozen, True, "the snapshot's frozen")
        if not snapshot.snapshot_id:
            self.fail("a snapshot_id", "an empty one")
        self.same_entries(snapshot.entries, entries, ordered=ordered)
        found_refusals = {refusal.model_call_id: refusal.code for refusal in snapshot.refusals}
        self.equal(found_refusals, dict(refusals or {}), "the refusals")
        self._same_reasons(snapshot, reasons)
        self.equal(snapshot.version, version, "the version")
        return snapshot

    def same_entries(
        self, found: Sequence[TokenEntry], expected: Sequence[TokenEntry], *, ordered: bool = True
    ) -> None:
        """Fail the check unless a snapshot holds exactly these entries, value for value."""
        arrange = list if ordered else sorted
        self.equal(
            arrange([entry.model_call_id for entry in found]),
            arrange([entry.model_call_id for entry in expected]),
            "the calls of the snapshot",
        )
        by_call = {entry.model_call_id: entry for entry in found}
        for entry in expected:
            place = first_difference(entry, by_call[entry.model_call_id])
            if place is not None:
                self.fail(f"call {entry.model_call_id} to come back as it was put", f"a difference at {place}")

    async def together(self, calls: Sequence[Callable[[], Awaitable[object]]]) -> list[object]:
        """Make calls at the same time and give what each returned or raised, in the order of the calls."""
        outcomes: dict[int, object] = {}

        async def run(position: int, call: Callable[[], Awaitable[object]]) -> None:
            try:
                outcomes[position] = await call()
            except Exception as error:  # noqa: BLE001 - the check judges it
                outcomes[position] = error

        async with anyio.create_task_group() as tasks:
            for position, call in enumerate(calls):
                tasks.start_soon(run, position, call)
        return [outcomes[position] for position in range(len(calls))]

    def succeeded(self, outcomes: Sequence[object], doing: str) -> None:
        """Fail the check if one of several calls raised."""
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise ConformanceError(self.check, f"success of {doing}", repr(outcome)) from outcome

    async def tidy(self) -> None:
        """Remove the rollouts of this run. Other checks test removal, so a failure here says nothing."""
        with contextlib.suppress(Exception):
            await self.source.delete(self._rollouts)

    def _same_reasons(self, snapshot: TokenCaptureSnapshot, reasons: Collection[str]) -> None:
        self.equal(snapshot.incomplete, bool(reasons), "the snapshot's incomplete")
        found = snapshot.incomplete_reasons
        calls = {reason.partition(":")[2] for reason in reasons}
        if not set(reasons) <= set(found) or not {reason.partition(":")[2] for reason in found} <= calls:
            self.fail(f"the incomplete_reasons {sorted(reasons)}", repr(found))
