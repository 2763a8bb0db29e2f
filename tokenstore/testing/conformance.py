"""Whether a token store keeps its promises: a suite that any sink and source can run, with or without pytest.

    await check_token_store(make_sink, make_source)

`make_sink` and `make_source` give a new client of one shared backend at each call; a store that is both passes one
factory twice. They may be plain or async functions. The suite closes every client that it makes, makes rollouts of its
own with random ids, and deletes them after each check that passed, so that it may run beside other users of a backend.

`CHECKS` is the table of what is checked; the docstring of each check is the promise. To run one under a test
framework's names, parametrize over `CHECKS` and call `run_check`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import anyio

from tokenstore.protocols import TokenSink, TokenSource
from tokenstore.testing.checks import calls, concurrency, consuming, recording, removing, values
from tokenstore.testing.trial import Check, ConformanceError, Trial

CHECK_SECONDS = 50.0
"""Longest time for one check; each takes a fraction of a second on a local disk."""

MakeSink = Callable[[], TokenSink | Awaitable[TokenSink]]
"""Gives a new client to write with."""
MakeSource = Callable[[], TokenSource | Awaitable[TokenSource]]
"""Gives a new client to consume with."""

C = TypeVar("C", TokenSink, TokenSource)


def _table(*checks: Check) -> Mapping[str, Check]:
    return MappingProxyType({check.__name__: check for check in checks})


CHECKS: Mapping[str, Check] = _table(
    recording.put_is_visible,
    recording.rollouts_are_separate,
    recording.twins_are_two_calls,
    recording.repeated_put_is_noop,
    recording.equal_content_is_noop,
    recording.repeated_put_after_freeze_is_noop,
    recording.conflicting_put_masks,
    recording.every_field_is_content,
    recording.put_of_refused_call_masks,
    recording.refusal_of_recorded_call_masks,
    recording.conflict_and_mark_count_once,
    calls.lost_call_masks,
    calls.settled_calls_do_not_mask,
    calls.begin_again_is_noop,
    calls.refusals_are_kept,
    calls.repeated_refusal_is_noop,
    calls.other_refusal_code_raises,
    calls.marks_mask,
    calls.mark_without_call_masks,
    calls.mark_after_freeze_masks,
    consuming.freeze_of_unknown_is_empty,
    consuming.freeze_is_idempotent,
    consuming.snapshot_ids_differ,
    consuming.late_writes_after_freeze_raise,
    consuming.drop_needs_the_pair,
    consuming.drop_of_open_is_false,
    consuming.drop_again_is_true,
    consuming.mark_defeats_drop,
    removing.retire_leaves_fences,
    removing.retire_tells_what_was_there,
    removing.drop_after_retire_is_true,
    removing.delete_tells_what_was_there,
    removing.delete_frees_the_id,
    removing.old_pair_does_not_drop_the_new_rollout,
    removing.delete_after_retire_lifts_the_fence,
    removing.empty_batch_is_noop,
    removing.duplicates_count_once,
    removing.bare_string_raises,
    removing.batch_is_checked_before_it_changes,
    values.agent_rollout_comes_back,
    values.every_shape_comes_back,
    values.unknown_fields_come_back,
    values.deep_items_come_back,
    values.log_probs_come_back,
    values.unusual_ids_come_back,
    values.later_changes_do_not_show,
    values.bad_entries_are_refused,
    values.bad_call_ids_are_refused,
    values.bad_refusal_codes_are_refused,
    values.bad_rollout_ids_are_refused,
    concurrency.many_puts_into_one_rollout,
    concurrency.many_rollouts_at_once,
    concurrency.same_put_at_once_counts_once,
    concurrency.one_of_conflicting_puts_wins,
    concurrency.freezes_at_once_agree,
    concurrency.freeze_takes_what_was_acknowledged,
    concurrency.cancelled_put_can_be_retried,
    concurrency.cancelled_put_is_whole_or_absent,
    concurrency.clients_see_each_other,
    concurrency.clients_write_into_one_rollout,
    concurrency.drops_at_once_agree,
    concurrency.close_loses_nothing,
)
"""Every check by its name, in the order in which `check_token_store` runs them."""


async def check_token_store(make_sink: MakeSink, make_source: MakeSource) -> None:
    """Check that a sink and a source keep every promise of the contract.

    Args:
        make_sink: Gives a new client to write with, or an awaitable of one.
        make_source: Gives a new client to consume with, or an awaitable of one; of the same backend.

    Raises:
        ConformanceError: A promise is broken; the error names the check, what was expected and what was found.
    """
    for name in CHECKS:
        await run_check(name, make_sink, make_source)


async def run_check(name: str, make_sink: MakeSink, make_source: MakeSource) -> None:
    """Run one check with clients of its own, two of each kind.

    The factories are called, and the clients closed, in the calling task and outside any cancel scope of the suite, so
    a client may be bound to the task that made it.

    Raises:
        ConformanceError: The promise is broken.
        KeyError: There is no check of this name in `CHECKS`.
    """
    check = CHECKS[name]
    clients: list[TokenSink | TokenSource] = []
    try:
        sinks = [await _made(make_sink, clients) for _ in range(2)]
        sources = [await _made(make_source, clients) for _ in range(2)]
        await _judge(check, Trial(name, sinks, sources))
    finally:
        with anyio.CancelScope(shield=True):
            for client in clients:
                await client.close()


async def _made(make: Callable[[], C | Awaitable[C]], clients: list[TokenSink | TokenSource]) -> C:
    made = make()
    client: C = await made if inspect.isawaitable(made) else made
    clients.append(client)
    return client


async def _judge(check: Check, trial: Trial) -> None:
    """Run a check, and report whatever it did not expect under its name too."""
    try:
        with anyio.fail_after(CHECK_SECONDS):
            await check(trial)
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(trial.check, "no error", repr(error)) from error
    await trial.tidy()
