"""`tokenstore show`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.cli.running import Runner
from tokenstore import TokenCaptureStore
from tokenstore.cli.show import _common_prefix
from tokenstore.testing.rollouts import shaped_rollout


async def fill(root: Path) -> None:
    """Make a rollout whose prompts break, with a refused, a lost and a marked call."""
    async with TokenCaptureStore(root) as store:
        for entry in shaped_rollout("prefix_breaks", "r"):
            await store.put(entry)
        await store.begin_call("r", "refused")
        await store.refuse_call("r", model_call_id="refused", code="context_length_exceeded")
        await store.begin_call("r", "in-flight")
        await store.mark_incomplete("r", "broken")


def test_a_rollout_is_shown_call_by_call(run: Runner, tmp_path: Path, backend: Sequence[str]) -> None:
    """Each call has its lengths and says how much of the call before it its prompt begins with."""
    anyio.run(fill, tmp_path)

    result = run("show", "r", "--root", tmp_path, *backend)

    assert (result.status, result.err) == (0, "")
    assert "open, incomplete" in result.out
    assert "first" in result.out
    assert result.out.count("breaks, ") == 3
    assert "breaks, 401 of 490 agree" in result.out
    assert "incomplete: marked:broken" in result.out
    assert "open call: in-flight" in result.out
    assert "refused call: refused (context_length_exceeded)" in result.out


def test_json_has_exact_numbers(run: Runner, tmp_path: Path) -> None:
    """With `--json` the rollout is one document."""
    anyio.run(fill, tmp_path)

    shown = json.loads(run("show", "r", "--json", "--root", tmp_path).out)

    assert (shown["state"], shown["incomplete"], shown["snapshot_id"]) == ("open", True, "")
    assert shown["incomplete_reasons"] == ["marked:broken"]
    assert shown["open_calls"] == ["in-flight"]
    assert [refusal["code"] for refusal in shown["refusals"]] == ["context_length_exceeded"]
    assert [call["agrees"] for call in shown["calls"][:2]] == [None, 401]
    assert [call["prompt_tokens"] for call in shown["calls"][:2]] == [400, 501]
    assert shown["calls"][1]["previous_tokens"] == 490


def test_an_extending_rollout_says_so(run: Runner, tmp_path: Path) -> None:
    """A prompt that begins with the whole call before it extends it; frozen and complete are shown."""
    store = TokenCaptureStore(tmp_path)
    for entry in shaped_rollout("append_only", "r"):
        store.append(entry)
    store.freeze_now("r")

    result = run("show", "r", "--root", tmp_path)

    assert "frozen, complete" in result.out
    assert result.out.count("extends, ") == 4
    assert "extends, 660 agree" in result.out


def test_showing_changes_nothing(run: Runner, tmp_path: Path) -> None:
    """No file is made, changed or removed by a look."""
    anyio.run(fill, tmp_path)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()}

    run("show", "r", "--root", tmp_path)
    run("show", "unknown", "--root", tmp_path)

    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.iterdir()} == before


def test_a_retired_rollout_is_a_fence(run: Runner, tmp_path: Path) -> None:
    """A retired rollout is shown as such, without error."""
    anyio.run(fill, tmp_path)
    TokenCaptureStore(tmp_path).retire_now(["r"])

    assert run("show", "r", "--root", tmp_path) == (0, "rollout r: retired, only its fence is left\n", "")
    assert json.loads(run("show", "r", "--json", "--root", tmp_path).out) == {"rollout_id": "r", "state": "retired"}


def test_an_empty_frozen_rollout_is_there(run: Runner, tmp_path: Path) -> None:
    """A rollout frozen without a call is one; it has no table."""
    TokenCaptureStore(tmp_path).freeze_now("r")

    result = run("show", "r", "--root", tmp_path)

    assert result.status == 0
    assert "frozen, complete, version 1" in result.out
    assert "0 calls" in result.out


def test_what_ls_lists_can_be_shown(run: Runner, tmp_path: Path) -> None:
    """A rollout whose first call never came, so that its file is empty, is shown as it is listed."""
    (tmp_path / "r.tokens.jsonl").touch()
    assert run("ls", "--ids", "--root", tmp_path).out == "r\n"

    result = run("show", "r", "--root", tmp_path)

    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("rollout r: open, complete, version 0, 0 calls\n")


@pytest.mark.parametrize(("rollout", "said"), [("unknown", "there is no rollout unknown"), ("a/b", "rollout id")])
def test_an_unknown_rollout_is_an_error(run: Runner, tmp_path: Path, rollout: str, said: str) -> None:
    """A rollout that is not there, or cannot be, is an error of one line."""
    result = run("show", rollout, "--root", tmp_path)

    assert (result.status, result.out) == (1, "")
    assert said in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("left", "right", "agree"), [([], [], 0), ([1], [], 0), ([1, 2], [1, 2], 2), ([1], [2], 0)])
def test_short_prefixes(left: list[int], right: list[int], agree: int) -> None:
    """The common prefix of short lists is counted right."""
    assert _common_prefix(left, right) == agree


def test_every_length_of_a_common_prefix() -> None:
    """The common prefix is found wherever the break is."""
    left = list(range(40))
    for place in left:
        right = [*left[:place], -1, *left[place + 1 :]]
        assert _common_prefix(left, right) == place


def test_a_directory_of_the_reference_is_shown(run: Runner, tmp_path: Path) -> None:
    """Rollouts that the reference wrote are shown as its own freeze judges them."""
    folder = os.environ.get("TOKENSTORE_REFERENCE_DATA")
    if not folder:
        pytest.skip("TOKENSTORE_REFERENCE_DATA is not set")
    root = tmp_path / "copy"
    shutil.copytree(folder, root, copy_function=partial(shutil.copyfile))
    root.chmod(0o700)

    shown = json.loads(run("show", "frozen", "--json", "--root", root).out)

    assert (shown["state"], shown["version"], len(shown["calls"])) == ("frozen", 3, 2)
    assert json.loads(run("show", "intents", "--json", "--root", root).out)["open_calls"] == ["c2"]
    assert json.loads(run("show", "dropped", "--json", "--root", root).out)["state"] == "retired"
